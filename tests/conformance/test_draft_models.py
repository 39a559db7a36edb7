"""Draft models that are wrong in every way, and one that is right: the output is the target's, in as few steps as the drafts earn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tinychat
from conforming import NEW, RULES, draft_model, sampler, twin
from echodraft.backends.toy import ToyBackend, ToyTokenizer
from echodraft.backends.transformers import TransformersBackend
from echodraft.backends.transformers_rounded import quantize
from echodraft.build import make_drafter
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import Adaptive, CostCurve, Fixed
from echodraft.core.draft_model import DraftModel
from echodraft.core.engine import Engine
from echodraft.core.retokenize import OtherIds
from echodraft.core.sampling import Sampler, pick
from echodraft.drafters import DRAFTERS, drafter_class
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError
from echodraft.stores.grams import Grams
from echodraft.stores.suffix import SuffixStore
from echodraft.text.tokenizer import Text
from harness import Scripted, decoded, drive, run, stream
from models import generate, prompt, tiny

WITH_MODEL = [name for name in DRAFTERS if Need.MODEL in drafter_class(name).needs]
TEXTS = [prompt(5), prompt(17) * 2, prompt(10)]


class Pairs(ToyTokenizer):
    """The toy's alphabet, and some pairs of letters as one token each."""

    PAIRS = ("th", "e ", "ab", "  ", "aa", "\n\n")

    def encode(self, text: str) -> list[int]:
        out, i = [], 0
        while i < len(text):
            pair = text[i : i + 2]
            out += [97 + self.PAIRS.index(pair)] if pair in self.PAIRS else super().encode(text[i])
            i += 2 if pair in self.PAIRS else 1
        return out

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.PAIRS[i - 97] if 97 <= i < 103 else super(Pairs, self).decode([i]) for i in ids)


def other_ids(mine: Any, theirs: Any) -> Any:
    return lambda: OtherIds(Text(mine), Text(theirs))


DRAFT_MODELS: dict[str, Any] = {
    "itself": lambda: draft_model(ToyBackend()),
    "another": lambda: draft_model(ToyBackend(seed=5)),
    "nearly itself": lambda: draft_model(ToyBackend(copy=4.0)),
    "one that ends at once": lambda: draft_model(ToyBackend(), eos=frozenset(range(97))),
    "one that ends early": lambda: draft_model(ToyBackend(), eos=frozenset(range(0, 97, 4))),
    "one with a small context": lambda: draft_model(ToyBackend(context=20)),
    "one with fewer ids": lambda: draft_model(ToyBackend(vocab_size=60)),
    "one with more ids": lambda: draft_model(ToyBackend(vocab_size=140)),
    "one that says NaN": lambda: draft_model(Scripted(lambda path: np.full(97, np.nan))),
    "one that says infinity": lambda: draft_model(Scripted(lambda path: np.where(np.arange(97) == len(path) % 97, np.inf, 0.0))),
    "one with another tokenizer": lambda: draft_model(ToyBackend(vocab_size=103), reading=other_ids(ToyTokenizer(), Pairs())),
}


def alone(backend: Any, ids: list[int], mode: str, n: int = NEW) -> list[int]:
    return run(Engine(twin(backend), NoDrafter(), Fixed(0)), ids, n, Sampler(RULES[mode]))


@pytest.mark.parametrize("kind", DRAFT_MODELS)
@pytest.mark.parametrize("mode", ["greedy", "keyed"])
@pytest.mark.parametrize("nodes", [9, 30])
@pytest.mark.parametrize("name", WITH_MODEL)
def test_whatever_the_draft_model_is_the_output_is_the_targets(name: str, nodes: int, mode: str, kind: str) -> None:
    """A ragged batch, one session of which goes back and on. More nodes than tokens along a draft leave some for branches."""
    backend = ToyBackend()
    engine = Engine(backend, make_drafter(name, {"gamma": min(4, nodes)}, {"draft_model": DRAFT_MODELS[kind]()}), Fixed(nodes))
    sessions = [engine.open(ids, Sampler(RULES[mode]), Stops(max_new_tokens=NEW)) for ids in TEXTS]
    engine.step()
    engine.step()
    engine.rewind(sessions[1], len(TEXTS[1]) - 3)
    drive(engine)
    assert [s.output for s in (sessions[0], sessions[2])] == [alone(backend, TEXTS[i], mode) for i in (0, 2)]
    assert sessions[1].tokens[: len(TEXTS[1]) - 3] == TEXTS[1][:-3]
    assert sessions[1].output == alone(backend, TEXTS[1][:-3], mode, len(sessions[1].output))
    engine.close(sessions[2])
    engine.extend(sessions[0], [1, 2, 3])
    ids = list(sessions[0].tokens)
    drive(engine)
    assert sessions[0].output == alone(backend, ids, mode)


@pytest.mark.parametrize("mode", ["greedy", "keyed"])
@pytest.mark.parametrize("name", ["speculative", "cascade"])
@pytest.mark.parametrize(("top_k", "nodes"), [(1, 5), (3, 40)])
def test_a_draft_model_that_is_the_target_is_accepted_in_full(top_k: int, nodes: int, name: str, mode: str) -> None:
    model = draft_model(ToyBackend())
    engine = Engine(ToyBackend(), make_drafter(name, {"gamma": 5, "top_k": top_k}, {"draft_model": model}), Fixed(nodes))
    sessions = [engine.open(ids, Sampler(RULES[mode]), Stops(max_new_tokens=NEW)) for ids in TEXTS]
    steps = drive(engine)
    for session in sessions:
        for step in decoded(steps[session.id]):
            assert step.verdict.accepted == step.draft.source.count(name) == step.draft.depth.max(initial=0)
        assert len(decoded(steps[session.id])) == -(-(NEW - 1) // 6)


def test_the_draft_model_catches_up_in_the_forward_of_the_next_draft() -> None:
    """After full acceptance the last guess and the bonus token are both new to it; after a rejection the rest is forgotten."""
    for seed in (0, 5):
        model = draft_model(ToyBackend(seed=seed))
        engine = Engine(ToyBackend(), make_drafter("speculative", {"top_k": 1}, {"draft_model": model}), Fixed(3))
        session = engine.open(TEXTS[0], stops=Stops(max_new_tokens=NEW))
        steps = decoded(drive(engine)[session.id])
        assert model.backend.forwards == sum(step.proposed for step in steps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["greedy", "keyed", "torch"])
@pytest.mark.parametrize("int8", [False, True])
def test_a_real_draft_model_serves_a_ragged_batch(mode: str, int8: bool) -> None:
    target, same = tiny("llama"), tiny("llama")
    if int8:
        torch.manual_seed(0)
        sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}  # int8 is for layers of some size
        same = type(target)(type(target.config)(**(target.config.to_dict() | sizes))).float().eval()
    ids = [prompt(n) for n in (5, 17, 10)]
    least: list[int] = []

    def outputs(drafter: Any, nodes: int = 6) -> list[list[int]]:
        engine = Engine(TransformersBackend(target), drafter, Fixed(nodes))
        sessions = [engine.open(p, sampler(mode), Stops(max_new_tokens=NEW)) for p in ids]
        steps = drive(engine)
        least.append(min(step.verdict.accepted for s in sessions for step in decoded(steps[s.id])[:-1]))
        return [s.output for s in sessions]

    inner = TransformersBackend(same, quantize(same) if int8 else None)
    found = outputs(make_drafter("speculative", {}, {"draft_model": draft_model(inner)}))
    assert found == outputs(make_drafter("speculative", {"gamma": 4}, {"draft_model": draft_model(inner)}), 24)
    if mode != "torch" and not int8:
        assert least[-1] >= 4  # a tree is scored in the draft model, and what is right of it stays cached
    assert found == outputs(NoDrafter())
    if mode == "greedy":
        assert found == [generate(target, p, NEW) for p in ids]


def test_int8_rounds_the_draft_model_and_only_inside_its_forwards() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(300, 400, dtype=torch.bfloat16)
    model = torch.nn.Sequential(layer)
    x = torch.randn(3, 300, dtype=torch.bfloat16)
    with torch.inference_mode():
        plain = model(x)
        with quantize(model).active():
            rounded = model(x)
        assert torch.equal(model(x), plain)
    assert rounded.dtype == plain.dtype
    assert not torch.equal(rounded, plain)
    assert torch.allclose(rounded.float(), plain.float(), atol=0.05)


def test_siblings_are_the_other_candidates_of_the_trunk_and_stay_within_the_budget() -> None:
    model = draft_model(ToyBackend(seed=5))
    engine = Engine(ToyBackend(), make_drafter("speculative", {"gamma": 4, "width": 0}, {"draft_model": model}), Fixed(9))
    session = engine.open(TEXTS[1], stops=Stops(max_new_tokens=NEW))
    for step in decoded(drive(engine)[session.id]):
        draft = step.draft
        trunk = [i for i, source in enumerate(draft.source) if source == "speculative"]
        assert len(draft) <= 9
        assert len(trunk) == draft.depth.max(initial=0) <= 4
        assert {int(draft.parent[i]) for i in range(len(draft)) if i not in trunk} <= {-1, *trunk}
        # Siblings end where they are, and are never likelier than the trunk beside them.
        assert set(draft.parent.tolist()) <= {-1, *trunk}


@pytest.mark.parametrize("name", ["speculative", "ouroboros"])
@pytest.mark.parametrize("mode", ["greedy", "keyed"])
def test_behind_siblings_stands_what_the_draft_model_says_there_for_no_more_forwards(mode: str, name: str) -> None:
    rule, drafts = RULES[mode], []
    for width in (0, 3):
        model = draft_model(ToyBackend(seed=5))
        engine = Engine(ToyBackend(), make_drafter(name, {"gamma": 5, "width": width}, {"draft_model": model}), Fixed(60))
        sessions = [engine.open(ids, Sampler(rule), Stops(max_new_tokens=NEW)) for ids in TEXTS]
        engine.step()
        texts = [list(session.tokens) for session in sessions]
        steps = engine.step()
        drafts.append([step.draft for step in steps])
        assert model.backend.forwards <= len(sessions) + 4  # type: ignore[attr-defined]
    longer = 0
    for text, plain, wide in zip(texts, *drafts, strict=True):
        sources = wide.source
        assert sources.count(name) == plain.source.count(name) == 5
        assert wide.depth.max() <= 5 or name == "ouroboros"
        paths = [text]
        for node, (parent, token) in enumerate(zip(wide.parent.tolist(), wide.token.tolist(), strict=True)):
            paths.append([*paths[parent + 1], token])
            said = [i for i in np.flatnonzero(wide.parent == node).tolist() if sources[i].startswith(name)]
            if sources[node] == f"{name}-sibling" and said:
                likeliest = max(said, key=wide.prob.__getitem__)
                assert wide.token[likeliest] == pick(ToyBackend(seed=5)._logits(paths[-1]), rule, len(paths[-1]))
                longer += 1
    assert longer > 6


def test_a_draft_ends_behind_a_token_that_the_draft_model_is_not_sure_of() -> None:
    sure, unsure = 9.0, 0.1
    logits = np.eye(97)
    model = Scripted(lambda path: logits[7] * (unsure if len(path) % 5 == 0 else sure) * 10)
    drafter = make_drafter("speculative", {"confidence": 0.4, "top_k": 1}, {"draft_model": draft_model(model)})
    engine = Engine(stream([7]), drafter, Fixed(20))
    session = engine.open([7, 7], stops=Stops(max_new_tokens=40))
    lengths = [len(step.draft) for step in decoded(drive(engine)[session.id])]
    assert set(lengths[1:-1]) == {4}
    assert len(lengths) < 12


def test_the_heuristic_rule_grows_by_two_and_shrinks_by_one() -> None:
    said = [5, 6, 7, 8]
    engine = Engine(
        stream(said), make_drafter("speculative", {"heuristic": True, "top_k": 1}, {"draft_model": draft_model(stream(said))}), Fixed(40)
    )
    session = engine.open([5], stops=Stops(max_new_tokens=60))
    assert [len(step.draft) for step in decoded(drive(engine)[session.id])][:4] == [5, 7, 9, 11]
    wrong = draft_model(stream([9]))
    engine = Engine(stream(said), make_drafter("speculative", {"heuristic": True, "top_k": 1}, {"draft_model": wrong}), Fixed(40))
    session = engine.open([5], stops=Stops(max_new_tokens=10))
    assert [len(step.draft) for step in decoded(drive(engine)[session.id])][:5] == [5, 4, 3, 2, 1]


FLAT = CostCurve((1, 64), ((1.0, 1.5),))


def adaptive(target: Any, model: DraftModel, n: int, **knobs: Any) -> tuple[list[Any], float]:
    """The decoding steps, and what drafting and scoring cost beyond plain steps."""
    drafter = make_drafter("speculative", knobs, {"draft_model": model})
    engine = Engine(target, drafter, Adaptive(FLAT, draft=drafter.cost))
    session = engine.open([5, 6], stops=Stops(max_new_tokens=n))
    steps = decoded(drive(engine)[session.id])
    table = FLAT.table(100, 0)
    return steps, sum(step.draft.cost + float(table[1 + len(step.draft)]) - 1.0 for step in steps)


RANDOM = np.random.default_rng(1).integers(0, 97, 2003).tolist()


def test_a_draft_model_that_is_always_wrong_costs_at_most_two_percent() -> None:
    wrong = [(token + 1) % 97 for token in RANDOM]
    model = draft_model(stream(wrong), cost=0.3)
    steps, _ = adaptive(stream(RANDOM), model, 1500)
    assert sum(step.draft.cost for step in steps) <= 0.02 * len(steps) + 1.0
    assert any(step.proposed for step in steps)


def test_a_draft_model_that_is_always_right_drafts_long_and_one_that_costs_much_drafts_short() -> None:
    lengths = {}
    for cost in (0.05, 0.3):
        steps, _ = adaptive(stream(RANDOM), draft_model(stream(RANDOM), cost=cost), 1500)
        lengths[cost] = float(np.mean([step.verdict.accepted for step in steps[len(steps) // 2 :]]))
    assert lengths[0.05] > lengths[0.3] > 4


def test_a_draft_ends_where_one_more_forward_is_not_worth_it() -> None:
    """The draft model is right about three tokens in four, and says so only where it is unsure."""
    shaky = {i: i % 8 == 0 for i in range(2003)}
    scores = np.eye(97)

    def says(path: list[int]) -> np.ndarray:
        at = len(path) % 2003
        return scores[RANDOM[at]] * 12 if not shaky[at] else scores[(RANDOM[at] + 1) % 97] * 4.0

    model = draft_model(Scripted(says), cost=0.4)
    steps, extra = adaptive(stream(RANDOM), model, 1500, top_k=1)
    late = steps[len(steps) // 2 :]
    wasted = sum(step.proposed > 8 for step in late)
    assert wasted < 0.1 * len(late)
    assert 1.5 * (len(steps) + extra) < 1500


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("speculative", {"gamma": -1}),
        ("speculative", {"top_k": 0}),
        ("speculative", {"width": -1}),
        ("speculative", {"confidence": 1.5}),
        ("cascade", {"drafter": "speculative"}),
        ("cascade", {"drafter": "nothing"}),
    ],
)
def test_wrong_knobs_are_refused(name: str, knobs: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make_drafter(name, knobs)


def test_a_cascade_drafts_the_same_in_fewer_forwards_of_the_draft_model() -> None:
    forwards, outputs = {}, {}
    for name in ("speculative", "cascade"):
        model = draft_model(ToyBackend(copy=100.0))
        engine = Engine(ToyBackend(copy=100.0), make_drafter(name, {"top_k": 1}, {"draft_model": model}), Fixed(8))
        outputs[name] = run(engine, prompt(6) * 3, 48)
        forwards[name] = model.backend.forwards  # type: ignore[attr-defined]
    assert outputs["cascade"] == outputs["speculative"]
    assert forwards["cascade"] < 0.7 * forwards["speculative"]


@pytest.mark.parametrize("inner", ["suffix", "prompt-lookup"])
def test_the_drafter_of_a_cascade_takes_in_every_token_of_the_text_once(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is rejected: what the draft model guesses is looked up, not taken in. A rewind of the request is told to it."""
    taken: list[int] = []
    append, extend = SuffixStore.append, Grams.extend

    def counted_append(self: SuffixStore, seq: int, tokens: Sequence[int]) -> None:
        taken.append(len(tokens))
        append(self, seq, tokens)

    def counted_extend(self: Grams, tokens: Sequence[int]) -> None:
        taken.append(len(tokens))
        extend(self, tokens)

    model = draft_model(ToyBackend(seed=5))
    engine = Engine(ToyBackend(), make_drafter("cascade", {"drafter": inner}, {"draft_model": model}), Fixed(9))
    monkeypatch.setattr(SuffixStore, "append", counted_append)
    monkeypatch.setattr(Grams, "extend", counted_extend)
    session = engine.open(prompt(80), stops=Stops(max_new_tokens=2 * NEW))
    steps = decoded(drive(engine)[session.id])
    assert sum(step.verdict.accepted < len(step.draft) for step in steps) > 5
    assert len(session.tokens) - 10 <= sum(taken) <= len(session.tokens)
    engine.rewind(session, 40)
    drive(engine)
    assert session.output == alone(ToyBackend(), session.tokens[:40], "greedy", len(session.output))


# Another tokenizer.


def test_by_way_of_its_text_a_draft_model_that_is_the_target_is_accepted() -> None:
    model = draft_model(ToyBackend(), reading=other_ids(ToyTokenizer(), ToyTokenizer()))
    engine = Engine(ToyBackend(), make_drafter("speculative", {"top_k": 1}, {"draft_model": model}), Fixed(5))
    session = engine.open(ToyTokenizer().encode("one two one two " * 8), stops=Stops(max_new_tokens=2 * NEW))
    steps = decoded(drive(engine)[session.id])
    assert all(step.verdict.accepted == len(step.draft) for step in steps)
    assert len(steps) <= NEW // 2


TOKENIZERS = {"bytes": tinychat.byte_level, "pieces": tinychat.sentencepiece}


@pytest.mark.parametrize("mine", TOKENIZERS)
@pytest.mark.parametrize("theirs", TOKENIZERS)
def test_what_the_draft_model_reads_is_the_targets_text_and_what_it_says_goes_on_with_it(mine: str, theirs: str) -> None:
    target, draft = Text(TOKENIZERS[mine]()), Text(TOKENIZERS[theirs]())
    text, more = "the cat sat on the mat, and the dog sat on the cat." * 9, " the cat sat on the cat."
    tokens, whole = target.encode(text), target.encode(text + more)
    reading = OtherIds(target, draft)
    for end in (1, 7, 100, 60, len(tokens) - 1, len(tokens)):
        read = reading.read(tokens[:end])
        assert "".join(draft.decode(read).split()) == "".join(target.decode(tokens[:end]).split())
    said = draft.split(more)
    found = reading.write(tokens, [([token], [0.9]) for token in said])
    ids = [ids[0] for ids, _ in found]
    assert target.decode(tokens + ids).split() == target.decode(whole).split()
    assert all(0.0 < probs[0] <= 1.0 for _, probs in found)
    if mine == theirs == "bytes":
        assert tokens + ids == whole


def test_half_a_character_is_neither_read_nor_said() -> None:
    target = draft = Text(tinychat.byte_level())
    ids = target.encode("the 🙂")
    assert draft.spell(OtherIds(target, draft).read(ids[:-1])) == "the "
    reading = OtherIds(target, draft)
    reading.read(target.encode("the "))
    assert reading.write(target.encode("the "), [([token], [1.0]) for token in draft.encode("🙂")[:-1]]) == []


def test_tokenizers_with_the_same_ids_are_recognised() -> None:
    one, other, pieces = tinychat.byte_level(), tinychat.byte_level(), tinychat.sentencepiece()
    assert Text(one).same_ids(Text(other))
    other.add_tokens(["<|extra|>"])
    assert Text(one).same_ids(Text(other))
    assert Text(other).same_ids(Text(one))
    assert not Text(one).same_ids(Text(pieces))
    assert Text(one).same_ids(Text())
    assert not Text(ToyTokenizer()).same_ids(Text(Pairs()))
