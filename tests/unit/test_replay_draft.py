"""A replay with a draft model does what the live run did, and asks the draft model nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echodraft.backends.memo import MOST, TOP, MemoBackend, Saying, Sayings
from echodraft.backends.toy import ToyBackend
from echodraft.bench.draft import priced, remembering
from echodraft.bench.methods import parse
from echodraft.bench.record import describe, record
from echodraft.bench.recording import Recording, Writer
from echodraft.bench.replay import Corpus, Replayed, compare, fidelity, price, replay, speedup
from echodraft.bench.suites import Item
from echodraft.build import make_drafter, make_policy
from echodraft.core.accept import Stops
from echodraft.core.backend import Backend, Need, Request
from echodraft.core.budget import CostCurve, Fixed
from echodraft.core.draft import Draft
from echodraft.core.draft_model import DraftModel
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.drafters import DRAFTERS, drafter_class
from echodraft.drafters.none import NoDrafter
from echodraft.errors import EchodraftError, Unsupported, UsageError
from echodraft.memory import Memory
from echodraft.text.tokenizer import Text
from harness import Scripted, decoded, drive, run
from models import prompt, tiny

CURVE = CostCurve((1, 4, 16, 64), ((1.0, 1.1, 1.5, 4.0),), (20,), "of the test", (0.1,))
MOST_NEW = 40
PROMPTS = [prompt(6) * 3, prompt(9, seed=2), prompt(7, seed=1) * 3, prompt(6) * 3]
WITH_MODEL = [name for name in DRAFTERS if Need.MODEL in drafter_class(name).needs]
METHODS = [name for name in WITH_MODEL if fidelity(make_drafter(name, {})) == "exact"]


def target() -> Any:
    return ToyBackend(copy=100.0, context=128)


DRAFTS: dict[str, Any] = {
    "toy": lambda: ToyBackend(copy=100.0, seed=5),
    "itself": target,
    "small context": lambda: ToyBackend(context=30),
    "chunks": lambda: ToyBackend(copy=100.0, seed=5, chunk=4),
    "llama": lambda: torch_backend("llama"),
    "NaN": lambda: Scripted(lambda path: np.full(97, np.nan)),
}


def torch_backend(name: str) -> Any:
    from echodraft.backends.transformers import TransformersBackend

    return TransformersBackend(tiny(name), chunk=7)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "r"
    decoder = Decoder(Engine(target(), NoDrafter(), Fixed(0)), Text(None, []), "toy")
    writer = Writer(folder, {**describe(decoder, "suite", ()), "settings": {"max_new_tokens": MOST_NEW, "limit": None}}, False)
    record([Item(f"item {i}", "", ids, ()) for i, ids in enumerate(PROMPTS)], decoder, writer, lambda _: MOST_NEW)
    return folder


def model(backend: Backend) -> DraftModel:
    return DraftModel(
        backend,
        lambda name: make_drafter(name, {}, {"memory": Memory()}),
        lambda drafter: make_policy("auto", CURVE, drafter),
        cost=0.2,
        curve=CURVE,
    )


def fingerprint(steps: Sequence[Step]) -> list[Any]:
    return [
        (s.proposed, s.draft.token.tolist(), s.draft.parent.tolist(), s.draft.prob.tolist(), s.draft.cost, s.draft.source, s.verdict)
        for s in decoded(steps)
    ]


def live(method: str, budget: str | int, draft: Backend) -> list[Any]:
    name, knobs = parse(method)
    drafter = make_drafter(name, knobs, {"memory": Memory(), "draft_model": model(draft)})
    engine = Engine(target(), drafter, make_policy(budget, CURVE, drafter))
    out = []
    for ids in PROMPTS:
        session = engine.open(ids, stops=Stops(max_new_tokens=MOST_NEW))
        out.append(fingerprint(drive(engine, [session])[session.id]))
        engine.close(session)
    return out


def replayed(recording: Path, method: str, budget: str | int, draft: Backend) -> tuple[list[Any], list[Replayed]]:
    steps: list[list[Step]] = []

    def watch(step: Step) -> None:
        if step.prefill:
            steps.append([])
        steps[-1].append(step)

    found = replay(Corpus(Recording(recording)), method, budget, curve=CURVE, draft=model(draft), watch=watch)
    return [fingerprint(each) for each in steps], found


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("budget", ["auto", 6])
@pytest.mark.parametrize("method", [*METHODS, "speculative:gamma=3", "cascade:drafter=prompt-lookup", "cascade:drafter=recycling"])
def test_drafts_and_counts_are_those_of_the_live_run_and_nothing_is_asked_twice(
    recording: Path, method: str, budget: str | int, draft: str
) -> None:
    if "recycling" in method and draft in ("llama", "NaN"):
        pytest.skip("which of equals comes first is not kept")
    sayings = Sayings()
    there = live(method, budget, DRAFTS[draft]())
    for asked in (True, False):
        backend = DRAFTS[draft]()
        here, found = replayed(recording, method, budget, MemoBackend(backend, sayings))
        assert here == there
        assert (backend.forwards > 0) == asked
        assert any(record.drafting for record in found)


@pytest.mark.parametrize("budget", ["auto", 6])
def test_an_answer_for_a_rejected_guess_is_the_models_own_though_the_text_was_known(recording: Path, budget: str | int) -> None:
    """Best ids of all rows are read once the text has moved on; the memo holds the text from another drafter."""
    sayings = Sayings()
    replayed(recording, "cascade:drafter=suffix", budget, MemoBackend(target(), sayings))
    here, _ = replayed(recording, "cascade:drafter=recycling", budget, MemoBackend(target(), sayings))
    assert here == live("cascade:drafter=recycling", budget, target())


def test_a_tree_is_priced_by_its_rows_and_a_text_that_is_read_as_it_was_measured() -> None:
    curve = CostCurve((1, 64), ((1.0, 10.0),), (200,), read=(3.0,))
    assert price([(65, 200)], curve) == price([(65, 200)], curve, reads=True) == pytest.approx(curve.table(65, 200)[65])
    assert price([(200, 200)], curve) == pytest.approx(curve.table(200, 200)[200])
    assert price([(200, 200)], curve, reads=True) == pytest.approx(3.0)


def test_the_forwards_that_are_charged_are_those_of_a_run_without_a_memo(recording: Path) -> None:
    sayings, forwards = Sayings(), []
    for _ in range(2):
        _, found = replayed(recording, "speculative", "auto", MemoBackend(target(), sayings))
        forwards.append([record.drafting for record in found])
    assert forwards[0] == forwards[1]
    plain = target()
    live("speculative", "auto", plain)
    assert sum(map(len, forwards[0])) == plain.forwards
    assert forwards[0][0][0] == (len(PROMPTS[0]) + 1, len(PROMPTS[0]) + 1)  # the prompt and the first token of the output


@pytest.mark.parametrize("method", [name for name in WITH_MODEL if name not in METHODS])
def test_what_learns_from_rejected_drafts_is_approximate_and_runs(recording: Path, method: str) -> None:
    (row,) = compare(Corpus(Recording(recording)), [method], [8], CURVE, draft=model(MemoBackend(target(), Sayings())))
    assert row["replay"] == "approximate"
    assert row["all"]["accepted"] > 0
    assert row["all"]["draft_forwards"] > 0
    assert row["all"]["draft_cost"] > 0.2 * row["all"]["draft_forwards"] * 0.99


def test_a_memo_is_kept_on_disk_for_one_model_alone(recording: Path, tmp_path: Path) -> None:
    path, sayings = tmp_path / "memo.safetensors", Sayings()
    replayed(recording, "speculative", 4, MemoBackend(target(), sayings))
    sayings.save(path, {"model": "a"})
    for about, known in (({"model": "a"}, len(sayings)), ({"model": "b"}, 0)):
        again = Sayings()
        again.load(path, about)
        assert len(again) == known
    backend = target()
    kept = Sayings()
    kept.load(path, {"model": "a"})
    replayed(recording, "speculative", 4, MemoBackend(backend, kept))
    assert backend.forwards == 0


def test_what_another_run_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "memo.safetensors"
    for key in (1, 2):
        own = Sayings()
        own.add(key, saying(key))
        own.save(path, {"model": "a"})
    both = Sayings()
    both.load(path, {"model": "a"})
    assert len(both) == 2


def test_a_memo_that_cannot_be_read_or_written_is_told_and_does_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "memo.safetensors"
    path.write_bytes(b"nothing")
    Sayings().load(path, {})
    assert "cannot be read" in caplog.text
    Sayings().save(tmp_path / "nowhere" / "memo.safetensors", {})
    assert "cannot be written" in caplog.text


def saying(token: int) -> Saying:
    ids, probs = np.full(TOP, -1, np.int32), np.zeros(TOP)
    ids[0], probs[0] = token, 1.0
    return Saying(ids, probs)


def test_a_memo_is_bounded_and_forgets_the_oldest(tmp_path: Path) -> None:
    held = Sayings(most=5)
    for key in range(12):
        held.add(key, saying(key))
        held.add(key, saying(99))
    assert [key for key in range(12) if held.get(key) is not None] == [7, 8, 9, 10, 11]
    assert [int(found.ids[0]) for key in range(7, 12) if (found := held.get(key))] == [7, 8, 9, 10, 11]
    held.save(tmp_path / "m.safetensors", {})
    again = Sayings(most=3)
    again.load(tmp_path / "m.safetensors", {})
    assert [key for key in range(12) if again.get(key) is not None] == [9, 10, 11]
    assert Sayings().most == MOST


def test_a_forward_larger_than_the_memo_is_still_answered() -> None:
    memo = MemoBackend(target(), Sayings(most=2))
    slot = memo.open()
    for _ in range(2):
        (scores,) = memo.score([Request(slot, PROMPTS[0], Draft.chain([1, 2, 3, 4]))], frozenset())
        assert len(scores.argmax()) == 5


def test_a_memo_refuses_what_it_does_not_hold() -> None:
    for sampler in (Sampler(Rule(temperature=1.0)), Sampler(processors=(lambda _, row: row,))):
        with pytest.raises(Unsupported, match="greedily"):
            run(Engine(MemoBackend(target(), Sayings()), NoDrafter(), Fixed(0)), PROMPTS[0], 2, sampler)
    with pytest.raises(EchodraftError, match="NaN"):
        run(Engine(MemoBackend(DRAFTS["NaN"](), Sayings()), NoDrafter(), Fixed(0)), PROMPTS[0], 2)


def test_the_estimate_charges_what_the_draft_model_computes() -> None:
    one = Replayed(None, False)  # type: ignore[arg-type]
    one.stats.emitted, one.stats.prefill_emitted = 9, 1
    one.forwards, one.drafting = [(1, 20), (4, 20)], [(16, 20), (1, 21), (1, 22)]
    assert price(one.drafting, CURVE) == pytest.approx(3.5)
    assert speedup([one], CURVE, model(target())) == pytest.approx(8 / (2.1 + 0.2 * 3.5))
    assert speedup([one], CURVE) == pytest.approx(8 / 2.1)


def test_what_a_draft_forward_costs_is_measured_or_named_and_never_guessed() -> None:
    slow = CostCurve((1, 8), ((1.0, 2.0),), (200,), "slow", (0.4,))
    assert priced(None, CURVE, slow) == (pytest.approx(0.25), CURVE)
    assert priced("0.12", CURVE, slow) == (0.12, slow)
    for price_, target_ in ((None, None), (None, CostCurve((1,), ((1.0,),))), ("-1", slow), ("nan", slow)):
        with pytest.raises(UsageError, match="costs"):
            priced(price_, CURVE, target_)
    with pytest.raises(UsageError, match="cost curve"):
        priced("gpu-flatt", CURVE, slow)


def test_a_draft_model_of_a_recording_keeps_its_memo_beside_it(recording: Path) -> None:
    held = Recording(recording)
    draft = Decoder(Engine(target(), NoDrafter(), Fixed(0)), Text(None, []), "some/toy")
    drafting = remembering(held, None, draft, None, 0.3, CURVE)
    assert replay(Corpus(held), "speculative", 4, draft=drafting.model)
    drafting.save()
    assert drafting.path.parent == recording
    assert drafting.path.name.startswith("memo-toy-")
    assert remembering(held, None, draft, "int8", 0.3, CURVE).path != drafting.path
    assert len(remembering(held, None, draft, None, 0.3, CURVE).memo.sayings) == len(drafting.memo.sayings) > 0
    drafting.path.unlink()
