"""`echodraft store build`, and the drafter that uses what it made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echodraft.stores.corpus import FILE, load_corpus
from echodraft.text import documents
from outcome import Cli


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("the cat sat on the mat\n" * 3)
    (folder / "deep" / "b.jsonl").write_text("".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(4)))
    (folder / ".hidden").write_text("secret")
    return folder


def build(cli: Cli, folder: Path, *args: str | Path) -> dict[str, object]:
    done = cli("store", "build", "-m", folder, "--json", *args)
    assert done.code == 0, done.err
    told: dict[str, object] = json.loads(done.out)
    return told


def test_a_corpus_is_made_of_files_and_folders_and_drafts_what_it_holds(cli: Cli, base: Path, texts: Path, tmp_path: Path) -> None:
    run = ("run", "-m", base, "--raw", "-n", "24", "--budget", "8", "--json", "the cat sat")
    plain = json.loads(cli(*run, "-d", "none").out)
    (texts / "said.txt").write_text("the cat sat" + plain["text"])
    told = build(cli, base, "--corpus", texts / "said.txt", "--corpus", texts, "--out", tmp_path / "corpus")
    assert told["texts"] == 7
    assert load_corpus(tmp_path / "corpus").about.name == str(base)
    drafted = json.loads(cli(*run, "-d", "rest", "-o", f"corpus={tmp_path / 'corpus'}").out)
    assert drafted["ids"] == plain["ids"]
    assert drafted["stats"]["steps"] < plain["stats"]["steps"]


def test_a_long_text_is_read_in_pieces_and_cut_at_the_limit(
    cli: Cli, base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(cli, base, "--corpus", texts / "a.txt", "--out", tmp_path / "whole")
    monkeypatch.setattr(documents, "PIECE", 30)
    assert build(cli, base, "--corpus", texts / "a.txt", "--out", tmp_path / "parts") == whole | {"corpus": str(tmp_path / "parts")}
    done = cli("store", "build", "-m", base, "--corpus", texts, "--out", tmp_path / "cut", "--tokens", "5", "--json")
    assert json.loads(done.out)["tokens"] == 5
    assert "--tokens takes more" in done.err


def test_a_corpus_of_another_tokenizer_is_refused(cli: Cli, base: Path, texts: Path, tmp_path: Path) -> None:
    from tinychat import save_model

    build(cli, base, "--corpus", texts, "--out", tmp_path / "corpus")
    other = save_model(tmp_path / "other")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(other)
    done = cli("run", "-m", other, "-d", "rest", "-o", f"corpus={tmp_path / 'corpus'}", "-n", "4", "hello")
    assert done.code == 2
    assert "another tokenizer" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "--corpus FILE --out DIR"),
        (("--corpus", "nowhere", "--out", "x"), "no file or folder nowhere"),
        (("--corpus", "empty", "--out", "x"), "no files in empty"),
        (("--corpus", "blank.txt", "--out", "x"), "no text in blank.txt"),
        (("--corpus", "binary.bin", "--out", "x"), "not UTF-8 text"),
        (("--corpus", "rows.jsonl", "--out", "x"), "line 2 has no text 'text'. It has: said. Name one with --field."),
        (("--corpus", "broken.jsonl", "--out", "x"), "not JSON lines"),
        (("--corpus", "blank.txt", "--out", "there"), "already"),
    ],
)
def test_what_cannot_be_right_is_told_in_a_line(cli: Cli, base: Path, tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "there").mkdir()
    for name, content in {
        "blank.txt": b"",
        "binary.bin": b"\xff\xfe\x00",
        "rows.jsonl": b'{"text": "a"}\n{"said": "b"}\n',
        "broken.jsonl": b"{",
        f"there/{FILE}": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
    done = cli("store", "build", "-m", base, *args)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "x").exists()


def test_an_interrupted_build_leaves_nothing_half_done(
    cli: Cli, base: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(text: str) -> list[str]:
        raise KeyboardInterrupt

    from echodraft.bench import corpus

    monkeypatch.setattr(corpus, "pieces", interrupted)
    assert cli("store", "build", "-m", base, "--corpus", texts, "--out", tmp_path / "x").code == 130
    assert not (tmp_path / "x").exists()
