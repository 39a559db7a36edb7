"""Recordings on disk: what is in them, and what becomes of them after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from echodraft.backends.toy import ToyBackend, ToyTokenizer
from echodraft.backends.transformers import TransformersBackend
from echodraft.bench.record import describe, read_layers, record
from echodraft.bench.recording import Recording, Writer
from echodraft.bench.replay import Corpus
from echodraft.bench.suites import Item
from echodraft.build import make_drafter
from echodraft.core.backend import Backend
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.decoder import Decoder
from echodraft.errors import EchodraftError, UsageError
from echodraft.text.tokenizer import Text
from models import generate, prompt, tiny

MOST = 24
HEAD = prompt(40)
PROMPTS = [HEAD, prompt(5, seed=1), [*HEAD, *prompt(6, seed=2)], [*HEAD, *prompt(6, seed=2), *prompt(3, seed=3)], HEAD]


def items(prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Item]:
    return [Item(f"item {i}", "", list(ids), ()) for i, ids in enumerate(prompts)]


def decoder(backend: Backend | None = None, drafter: str = "suffix") -> Decoder:
    held = backend or TransformersBackend(tiny("llama"), chunk=16)
    return Decoder(Engine(held, make_drafter(drafter, {}), Fixed(9)), Text(None), "llama")


def writer(folder: Path, held: Decoder, layers: str = "norm", resume: bool = False, **changed: Any) -> Writer:
    about = describe(held, "suite", read_layers(layers))
    return Writer(folder, {**about, "settings": {"max_new_tokens": MOST, "limit": None}, **changed}, resume)


def make(folder: Path, layers: str = "norm", some: slice = slice(None), resume: bool = False, drafter: str = "suffix") -> Recording:
    held = decoder(drafter=drafter)
    record(items()[some], held, writer(folder, held, layers, resume), lambda _: MOST)
    return Recording(folder)


def states(ids: Sequence[int], layer: int | None = None) -> np.ndarray:
    """The model's own hidden states: of the final norm, or behind so many layers (not the last, which transformers shows normed)."""
    with torch.inference_mode():
        out = tiny("llama").model(torch.tensor([list(ids)]), output_hidden_states=True)
    found: np.ndarray = (out.last_hidden_state if layer is None else out.hidden_states[layer])[0].numpy()
    return found


def test_a_recording_holds_what_the_model_says_and_computes(tmp_path: Path) -> None:
    found = make(tmp_path / "r", layers="norm,1")
    assert (found.width, found.vocab_size, found.context, found.top) == (32, 97, 128, 8)
    for entry, ids in zip(found.entries, PROMPTS, strict=True):
        held = found.trajectory(entry)
        assert (held.prompt, held.output) == (ids, generate(tiny("llama"), ids, MOST))
        assert (entry.prompt_tokens, entry.output_tokens, entry.finish) == (len(ids), MOST, "length")
        fed = [*held.prompt, *held.output[:-1]]
        for layer, name in ((None, "norm"), (1, "1")):
            np.testing.assert_allclose(found.hidden(entry, name), states(fed, layer), atol=2e-3, rtol=2e-3)
        with torch.inference_mode():
            logits = tiny("llama")(torch.tensor([fed])).logits[0, len(ids) - 1 :]
        assert held.top.tolist() == logits.topk(8).indices.tolist()
        assert held.top.dtype == np.int32


def test_the_beginning_that_requests_share_is_stored_once(tmp_path: Path) -> None:
    found = make(tmp_path / "r")
    shared = [entry.prefix and (entry.prefix["file"], entry.prefix["tokens"]) for entry in found.entries]
    assert shared[:2] == [None, None]
    assert shared[2] == ("000000.safetensors", 40)
    assert shared[3] is not None
    assert (shared[3][0], shared[3][1] >= 46) == ("000002.safetensors", True)  # which itself begins in the first
    assert shared[4] == ("000000.safetensors", 63)  # all of it
    rows = [len(load_file(tmp_path / "r" / entry.file)["hidden"]) for entry in found.entries]
    assert rows == [e.prompt_tokens + e.output_tokens - 1 - (e.prefix["tokens"] if e.prefix else 0) for e in found.entries]


def test_the_drafter_changes_nothing_in_a_recording(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one"), make(tmp_path / "other", drafter="recycling")
    for a, b in zip(one.entries, other.entries, strict=True):
        assert a == b
        first, second = load_file(one.folder / a.file), load_file(other.folder / b.file)
        for name in ("prompt", "output", "top"):
            assert first[name].tolist() == second[name].tolist()
        np.testing.assert_allclose(first["hidden"], second["hidden"], atol=1e-3)


def test_a_kill_loses_the_request_it_hit_and_nothing_else(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    make(tmp_path / "r", some=slice(0, 3))
    # Killed while it wrote: arrays without their line, half a line, a file that is not whole.
    save_file({"prompt": np.zeros(1, dtype=np.int32)}, tmp_path / "r" / "000003.safetensors")
    (tmp_path / "r" / "000004.unfinished").write_bytes(b"half")
    with (tmp_path / "r" / "requests.jsonl").open("a") as file:
        file.write('{"id": "item 3", "cat')
    assert len(Recording(tmp_path / "r").entries) == 3
    found = make(tmp_path / "r", resume=True)
    assert found.entries == whole.entries
    for entry in found.entries:
        assert found.hidden(entry).tolist() == whole.hidden(entry).tolist()


@pytest.mark.parametrize(
    ("key", "value"), [("model", "other"), ("dtype", "float16"), ("suite", "other"), ("layers", "norm,1"), ("vocab_size", 5)]
)
def test_a_recording_of_something_else_is_not_continued(tmp_path: Path, key: str, value: Any) -> None:
    make(tmp_path / "r", some=slice(0, 1))
    before = (tmp_path / "r" / "requests.jsonl").read_text()
    with pytest.raises(UsageError, match=f"another {key}"):
        writer(tmp_path / "r", decoder(), resume=True, **{key: value})
    with pytest.raises(UsageError, match="another max_new_tokens"):
        writer(tmp_path / "r", decoder(), resume=True, settings={"max_new_tokens": 1})
    with pytest.raises(UsageError, match="--resume"):
        writer(tmp_path / "r", decoder())
    writer(tmp_path / "r", decoder(), resume=True, settings={"max_new_tokens": MOST, "limit": 7})
    assert (tmp_path / "r" / "requests.jsonl").read_text() == before


def test_what_is_no_recording_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="echodraft record"):
        Recording(tmp_path)
    folder = make(tmp_path / "r", some=slice(0, 1)).folder
    (folder / "000000.safetensors").write_bytes(b"nothing")
    held = Recording(folder)
    with pytest.raises(EchodraftError, match="cannot be read"):
        held.trajectory(held.entries[0])
    (folder / "manifest.json").write_text(json.dumps({"version": 9, "vocab_size": 1, "width": 1}))
    with pytest.raises(UsageError, match="version 9"):
        Recording(folder)


@pytest.mark.parametrize("at", range(6))
def test_there_is_a_row_for_every_token_wherever_the_output_ends(tmp_path: Path, at: int) -> None:
    """An end that was accepted as part of a draft was scored, but is not fed again."""
    said = decoder(ToyBackend(copy=100.0)).generate(prompt(6) * 3, max_new_tokens=12, eos=()).ids
    held = Decoder(Engine(ToyBackend(copy=100.0), make_drafter("suffix", {}), Fixed(9)), Text(None, [said[at]]), "toy")
    record(items([prompt(6) * 3]), held, writer(tmp_path / "r", held), lambda _: 12)
    arrays, n = load_file(tmp_path / "r" / "000000.safetensors"), said.index(said[at]) + 1
    assert (len(arrays["output"]), arrays["top"].shape, len(arrays["hidden"])) == (n, (n, 8), 18 + n - 1)


def test_a_prompt_that_fills_the_context_is_left_out(tmp_path: Path) -> None:
    held = decoder()
    kept = writer(tmp_path / "r", held)
    assert record(items([prompt(128), prompt(9)]), held, kept, lambda _: MOST) == ["item 0"]
    assert [entry.id for entry in kept.entries] == ["item 1"]


def test_later_turns_follow_the_recorded_answers(tmp_path: Path) -> None:
    held = Decoder(Engine(ToyBackend(), make_drafter("suffix", {}), Fixed(4)), Text(ToyTokenizer()), "toy")
    text = held.text
    first = Item("a", "", text.encode("tell me"), ())
    later = Item("a/turn-2", "", [], (), turns=("tell me", "and then?"), earlier=("a",))
    for resume in (False, True):  # the second time the first answer comes from the folder
        kept = writer(tmp_path / "r", held, resume=resume)
        record([first, later][: 1 + resume], held, kept, lambda _: 12)
    found = Recording(tmp_path / "r")
    answer = held.generate(first.ids, max_new_tokens=12).text
    assert found.entries[0].text == answer
    assert found.trajectory(found.entries[1]).prompt == later.after([answer], text).ids


@pytest.mark.parametrize(("layers", "told"), [("norm,x", "not 'x'"), ("norm,0", "no layer 0"), ("3", "layers 1 to 2")])
def test_layers_that_are_none_are_refused(tmp_path: Path, layers: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        writer(tmp_path / "r", decoder(), layers)
    assert not (tmp_path / "r").exists()


def test_only_the_norm_is_shown_where_layers_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="final norm only"):
        writer(tmp_path / "r", decoder(ToyBackend()), "norm,1")
    held = decoder(drafter="pld+")
    with pytest.raises(UsageError, match="another drafter"):
        record(items(), held, writer(tmp_path / "r", held, "norm,1"), lambda _: MOST)


def test_a_replay_shows_drafters_the_layer_that_it_is_told(tmp_path: Path) -> None:
    held = make(tmp_path / "r", layers="norm,1", some=slice(2))
    entry = held.entries[0]
    for layer in ("norm", "1"):
        states = Corpus(held, layer=layer).trajectories[0].states
        assert states is not None
        assert (states() == held.hidden(entry, layer)).all()
    assert (held.hidden(entry, "1") != held.hidden(entry)).any()
    with pytest.raises(UsageError, match="no states of layer 7, only norm, 1"):
        Corpus(held, layer="7")
