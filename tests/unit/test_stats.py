"""The counts, each against a case worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from echodraft.backends.toy import ToyBackend
from echodraft.core.accept import Verdict
from echodraft.core.draft import Draft, DraftBuilder
from echodraft.core.step import Step, Times
from echodraft.decoder import Decoder
from echodraft.metrics.stats import Stats


def step(draft: Draft, tokens: int, path: tuple[int, ...], proposed: int, prefill: bool = False, batch: int = 1) -> Step:
    session: Any = None
    times = Times(propose=1.0, score=2.0, accept=3.0, commit=4.0)
    return Step(session, proposed, draft, Verdict(tuple(range(tokens)), path, None), 1, prefill, batch, times)


def tree() -> Draft:
    """Three chained nodes of 'a', a sibling of 'b' and a probe."""
    builder = DraftBuilder()
    node = -1
    for token in (1, 2, 3):
        node = builder.add(node, token, 0.9 - token / 10, "a")
    builder.add(-1, 7, 0.1, "b")
    builder.add(-1, 8, 0.05, "b", probe=True)
    return builder.build()


def counted() -> Stats:
    stats = Stats()
    stats.add(step(Draft.chain([]), 1, (), 0, prefill=True))
    stats.add(step(tree(), 3, (0, 1), 9))
    stats.add(step(tree(), 2, (3,), 5))
    stats.add(step(Draft.chain([]), 1, (), 0))
    return stats


def test_every_count_has_its_definition() -> None:
    stats = counted()
    assert (stats.steps, stats.prefills, stats.emitted) == (3, 1, 7)
    assert (stats.drafted, stats.verified, stats.probes, stats.accepted) == (14, 8, 2, 3)
    assert stats.by_source == {"a": 2, "b": 1}
    assert stats.histogram == {2: 1, 1: 1, 0: 1}
    assert stats.mean_accepted == 6 / 3
    assert stats.block_efficiency == 7 / 4
    assert stats.acceptance == 3 / 10


def test_depths_count_guesses_that_the_target_was_asked_about() -> None:
    stats = counted()  # a path of two and its child refused; a leaf at depth one
    assert dict(stats.reached) == {1: 2, 2: 1, 3: 1}
    assert dict(stats.kept) == {1: 2, 2: 1}
    stats.add(step(tree(), 1, (), 5))
    assert (stats.reached[1], stats.kept[1]) == (3, 2)
    stats.add(step(tree(), 1, (0,), 5))  # the output ended on the accepted node, whose child nobody asked about
    assert (stats.reached[1], stats.reached[2], stats.kept[1]) == (4, 1, 3)
    held = stats.as_dict()
    assert (held["reached_by_depth"], held["kept_by_depth"]) == ([4, 1, 1], [3, 1])


def test_seconds_of_a_shared_forward_are_divided() -> None:
    stats = Stats()
    stats.add(step(Draft.chain([]), 1, (), 0, prefill=True))
    stats.add(step(tree(), 1, (), 5, batch=2))
    assert (stats.prefill_seconds, stats.decode_seconds, stats.seconds) == (10.0, 5.0, 15.0)
    assert stats.draft_share == pytest.approx(0.1)
    assert stats.tokens_per_second == pytest.approx(1 / 5)


def test_plain_decoding_emits_exactly_one_token_a_step() -> None:
    from echodraft.build import load

    stats = load(backend="toy", drafter="none").generate("abc", max_new_tokens=20, eos=()).stats
    assert (stats.mean_accepted, stats.block_efficiency, stats.drafted) == (1.0, 1.0, 0)
    assert stats.emitted == 20


def test_nothing_done_divides_by_nothing() -> None:
    held = Stats().as_dict()
    assert (held["mean_accepted"], held["block_efficiency"], held["tokens_per_second"], held["draft_share"]) == (0.0, 0.0, 0.0, 0.0)


def test_requests_add_up() -> None:
    total = Stats.total([counted(), counted()])
    assert (total.steps, total.emitted, total.histogram[2], total.by_source["a"]) == (6, 14, 2, 4)
    assert total.mean_accepted == counted().mean_accepted


def test_what_json_gets_is_plain_and_complete() -> None:
    import json

    held = json.loads(json.dumps(counted().as_dict()))
    assert held["accepted_by_source"] == {"a": 2, "b": 1}
    assert held["accepted_histogram"] == {"0": 1, "1": 1, "2": 1}
    assert set(held["seconds"]) == {"total", "prefill", "decode", "propose", "score", "accept", "commit"}


def test_a_batch_adds_up_to_the_time_it_took() -> None:
    from echodraft.build import load

    decoder = load(backend="toy")
    assert isinstance(decoder, Decoder)
    assert isinstance(decoder.engine.backend, ToyBackend)
    results = decoder.generate(["abc", "xyz"], max_new_tokens=10, eos=())
    assert [result.stats.emitted for result in results] == [10, 10]
    assert results[0].stats.score_seconds == results[1].stats.score_seconds > 0
