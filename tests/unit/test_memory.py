"""What outlives a request: by tenant, within limits, whole on disk at every moment."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from echodraft.errors import EchodraftError, UsageError
from echodraft.memory import DAY, Limits, Memory
from echodraft.stores import STORES
from echodraft.stores.folder import Folder, Identity
from texts import Texts

OURS, THEIRS = Identity("model", "tokenizer", "ours"), Identity("other", "tokenizer", "theirs")
TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORES, "texts", "texts:Texts")


def remember(memory: Memory, tenant: str, *texts: list[int], when: float | None = None) -> Texts:
    """One request of the tenant that leaves these texts behind."""
    store = memory.store(tenant, Texts, Texts)
    for ids in texts:
        store.add(ids, time.time() if when is None else when)
    memory.settle(tenant)
    return store


def texts(memory: Memory, tenant: str) -> list[list[int]]:
    store = memory.store(tenant, Texts, Texts)
    memory.settle(tenant)
    return [ids for _, ids in store.held]


def opened(folder: Path, identity: Identity = OURS, limits: Limits | None = None) -> Memory:
    memory = Memory(folder, limits)
    memory.bind(identity)
    return memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that remembers alice and bob."""
    with opened(tmp_path / "memory") as memory:
        remember(memory, "alice", [1, 2, 3])
        remember(memory, "bob", [4, 5])
    return tmp_path / "memory"


def test_what_one_request_left_the_next_one_of_the_same_tenant_finds_and_no_other() -> None:
    memory = Memory()
    store = remember(memory, "alice", [1, 2, 3])
    assert memory.store("alice", Texts, Texts) is store
    assert memory.store("bob", Texts, Texts) is not store
    assert texts(memory, "bob") == []


def test_a_memory_comes_back_from_its_folder_by_tenant(folder: Path) -> None:
    with opened(folder) as memory:
        assert texts(memory, "alice") == [[1, 2, 3]]
        assert texts(memory, "bob") == [[4, 5]]
        assert texts(memory, "carol") == []


@pytest.mark.parametrize("name", ["", "a/b", "../../up", "a b", "ä" * 200, ".", "alice?", "ALICE", "nul\0"])
def test_any_name_is_a_tenant_of_its_own_inside_the_folder(folder: Path, name: str) -> None:
    before = sorted(folder.parent.rglob("*"))
    with opened(folder) as memory:
        assert texts(memory, name) == []
        remember(memory, name, [9])
    assert all(folder in path.parents for path in set(folder.parent.rglob("*")) - set(before))
    with opened(folder) as memory:
        assert texts(memory, name) == [[9]]
        assert texts(memory, "alice") == [[1, 2, 3]]


def test_oldest_texts_go_beyond_the_tokens_and_the_days() -> None:
    memory = Memory(limits=Limits(tokens=5, days=1.0))
    remember(memory, "alice", [1, 1, 1], [2, 2, 2])
    assert texts(memory, "alice") == [[2, 2, 2]]
    remember(memory, "alice", [3], when=time.time() - 2 * DAY)
    assert texts(memory, "alice") == [[2, 2, 2]]


def test_texts_that_aged_on_disk_are_not_found_again(tmp_path: Path) -> None:
    with opened(tmp_path) as memory:
        remember(memory, "alice", [1], when=time.time() - 2 * DAY)
    with opened(tmp_path, limits=Limits(days=1.0)) as memory:
        assert texts(memory, "alice") == []


def test_tenants_longest_unused_go_beyond_the_bytes_but_none_that_is_in_use() -> None:
    memory = Memory(limits=Limits(bytes=100))
    held = memory.store("busy", Texts, Texts)
    for name in ("old", "new"):
        remember(memory, name, [1] * 6)
    held.add([7], time.time())
    assert {tenant for tenant, _ in memory} == {"busy", "new", "old"}
    remember(memory, "newest", [1] * 6)
    assert {tenant for tenant, _ in memory} == {"busy", "newest"}


def test_a_tenant_that_had_to_leave_comes_back_from_the_folder(tmp_path: Path) -> None:
    with opened(tmp_path, limits=Limits(bytes=1000)) as memory:
        remember(memory, "alice", [1] * 100)
        remember(memory, "bob", [2] * 100)
        assert {tenant for tenant, _ in memory} == {"bob"}
        assert texts(memory, "alice") == [[1] * 100]


def test_files_are_held_to_the_bytes_too(folder: Path) -> None:
    with opened(folder, limits=Limits(bytes=1500)) as memory:
        remember(memory, "carol", [1] * 100)
    held = list(Folder(folder).headers())
    assert "carol" in {header.tenant for header in held}
    assert sum(header.bytes for header in held) <= 1500


def test_a_forgotten_tenant_is_gone_from_memory_and_disk_even_if_a_session_is_open(folder: Path) -> None:
    with opened(folder) as memory:
        store = memory.store("alice", Texts, Texts)
        assert memory.forget("alice")
        store.add([8], time.time())
        memory.settle("alice")
        assert not memory.forget("alice")
    assert b"alice" not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    with opened(folder) as memory:
        assert texts(memory, "alice") == []
        assert texts(memory, "bob") == [[4, 5]]


def test_a_store_of_another_model_is_refused_in_words(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"belongs to another model \(ours\)"):
        opened(folder, THEIRS)
    with pytest.raises(UsageError, match="belongs to another tokenizer"):
        opened(folder, Identity("model", "else"))


def test_a_memory_whose_tokenizer_is_not_known_is_the_models_own(folder: Path) -> None:
    with opened(folder, Identity("model", "")) as memory:
        assert texts(memory, "alice") == [[1, 2, 3]]


def test_a_memory_in_use_by_one_model_is_refused_to_another() -> None:
    memory = Memory()
    memory.bind(OURS)
    memory.bind(OURS)
    with pytest.raises(UsageError, match="another model"):
        memory.bind(THEIRS)


def test_a_second_writer_says_so_and_only_reads(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = opened(folder)
    with caplog.at_level(logging.WARNING, "echodraft"):
        second = opened(folder)
    assert "read only" in caplog.text
    assert texts(second, "alice") == [[1, 2, 3]]
    remember(second, "alice", [6])
    second.close()
    remember(first, "alice", [7])
    with pytest.raises(EchodraftError, match="Another process"):
        second.forget("alice")
    first.close()
    with opened(folder) as third:
        assert texts(third, "alice") == [[1, 2, 3], [7]]


def test_a_second_writer_may_wait(folder: Path) -> None:
    code = "import sys, time; from echodraft.memory import Memory; m = Memory(sys.argv[1]); print('held', flush=True); time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert not Folder(folder).writable
        waited = Folder(folder, wait=30.0)
        assert waited.writable
        waited.close()


WRITER = """
import sys, time
from echodraft.memory import Memory
from echodraft.stores import STORES
from echodraft.stores.folder import Identity
from texts import Texts
STORES["texts"] = "texts:Texts"
memory = Memory(sys.argv[1])
memory.bind(Identity("model", "tokenizer", "ours"))
for n in range(100_000):
    store = memory.store("alice", Texts, Texts)
    store.add([n] * 20_000, time.time())
    store.held = store.held[-2:]
    memory.settle("alice")
    memory.save()
    print(n, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.0007, 0.0013, 0.0029])
def test_a_kill_in_the_middle_of_a_save_loses_nothing_that_was_saved(tmp_path: Path, delay: float) -> None:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as writer:
        assert writer.stdout is not None
        saved = [int(writer.stdout.readline()) for _ in range(5)]
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        saved += [int(line) for line in writer.stdout.read().split()]
    with opened(tmp_path) as memory:
        held = [ids[0] for ids in texts(memory, "alice")]
    assert held[-1] in (saved[-1], saved[-1] + 1)
    assert len(held) == 2


def test_a_failed_save_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    memory = opened(folder)
    remember(memory, "alice", [6])
    monkeypatch.setattr("echodraft.stores.folder.save_file", broken)
    with pytest.raises(OSError, match="disk full"):
        memory.close()
    monkeypatch.undo()
    monkeypatch.setitem(STORES, "texts", "texts:Texts")
    with opened(folder) as again:
        assert texts(again, "alice") == [[1, 2, 3]]


@pytest.mark.parametrize("damage", [b"", b"rubbish", b"\xff" * 64])
def test_a_damaged_file_is_told_by_name(folder: Path, damage: bytes) -> None:
    (path,) = folder.glob("alice-*/texts.safetensors")
    path.write_bytes(damage)
    with pytest.raises(EchodraftError, match=r"alice-.*texts.safetensors cannot be read"):
        opened(folder)


def test_arrays_that_cannot_be_right_are_told_as_damage(folder: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    (path,) = folder.glob("alice-*/texts.safetensors")
    with safe_open(path, framework="numpy") as held:
        header = held.metadata()
    arrays = load_file(path)
    arrays["lengths"] = arrays["lengths"] + 1
    save_file(arrays, path, metadata=header)
    with opened(folder) as memory, pytest.raises(EchodraftError, match="lengths and ids differ"):
        texts(memory, "alice")


def test_a_file_of_another_format_or_kind_is_told_as_such(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    (path,) = folder.glob("alice-*/texts.safetensors")
    save_file(load_file(path), path, metadata={"echodraft": json.dumps({"format": 99, "kind": "texts"})})
    with pytest.raises(EchodraftError, match="this version reads format 1"):
        opened(folder)


def test_a_memory_folder_needs_to_know_its_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must know its model"):
        Memory(tmp_path).store("alice", Texts, Texts)


def test_a_file_is_no_memory_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        Memory(tmp_path / "file")


@pytest.mark.parametrize("wrong", [{"tokens": -1}, {"bytes": -5}, {"days": -0.5}])
def test_limits_below_zero_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="cannot hold"):
        Limits(**wrong)  # type: ignore[arg-type]


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    with opened(tmp_path / "memory") as memory:
        remember(memory, "alice", [1])
    assert (tmp_path / "memory").stat().st_mode & 0o077 == 0
