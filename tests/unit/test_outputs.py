"""Answers by the request that they answer: found by likeness, bounded, forgotten, made again from arrays."""

from __future__ import annotations

import numpy as np
import pytest

from echodraft.memory import DAY, Limits, Memory
from echodraft.stores import outputs
from echodraft.stores.folder import Identity
from echodraft.stores.outputs import OutputStore

KEYS = np.eye(4, dtype=np.float16)


def filled(*texts: list[int], when: float = 1e9) -> OutputStore:
    store = OutputStore()
    for i, ids in enumerate(texts):
        store.add(KEYS[i % 4], ids, when + i)
    return store


def held(store: OutputStore) -> list[list[int]]:
    return [entry["ids"] for entry in store.entries()]


def test_the_likest_request_comes_first_whatever_the_length_of_its_vector() -> None:
    store = filled([1], [2], [3])
    found = store.similar(np.asarray([1.0, 30.0, 9.0, 0.0]), 2)
    assert [ids.tolist() for ids in found] == [[2], [3]]


def test_of_equally_like_requests_the_latest_comes_first() -> None:
    store = OutputStore()
    for ids in ([1], [2], [3]):
        store.add(KEYS[0] * len(ids), ids, 0.0)
    assert [ids.tolist() for ids in store.similar(KEYS[0], 10)] == [[3], [2], [1]]


@pytest.mark.parametrize("key", [np.zeros(4), np.full(4, np.nan), np.full(4, np.inf)])
def test_a_key_without_a_direction_is_like_nothing_and_harms_nothing(key: np.ndarray) -> None:
    store = filled([1], [2])
    store.add(key, [3], 0.0)
    assert [ids.tolist() for ids in store.similar(KEYS[1], 1)] == [[2]]
    assert len(store.similar(key, 3)) == 3
    assert OutputStore.restore(store.arrays()).tokens == 3


def test_another_width_finds_nothing_and_is_refused() -> None:
    store = filled([1])
    assert store.similar(np.ones(3), 5) == []
    with pytest.raises(ValueError, match="4 values, not 3"):
        store.add(np.ones(3), [2], 0.0)
    with pytest.raises(ValueError, match="negative"):
        store.add(KEYS[0], [-1], 0.0)
    assert held(store) == [[1]]


def test_the_oldest_are_forgotten_beyond_the_tokens_and_the_days() -> None:
    store = filled([1, 1], [2, 2], [3, 3])
    store.prune(5)
    assert held(store) == [[2, 2], [3, 3]]
    store.prune(5, 1e9 + 2)
    assert (held(store), store.tokens, len(store)) == ([[3, 3]], 2, 1)
    assert [ids.tolist() for ids in store.similar(KEYS[1], 9)] == [[3, 3]]
    store.prune(0)
    assert (held(store), store.tokens, store.nbytes) == ([], 0, 0)


def test_no_more_answers_are_kept_than_a_request_can_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST", 20)
    store = filled(*([i] for i in range(300)))
    assert held(store) == [[i] for i in range(280, 300)]
    assert store.nbytes <= 20 * 5 // 4 * 8 + 4 * 20


def test_a_store_made_again_is_the_same() -> None:
    store = filled([1, 2], [], [70_000])
    again = OutputStore.restore(store.arrays())
    assert list(again.entries()) == list(store.entries())
    assert [ids.tolist() for ids in again.similar(KEYS[2], 3)] == [ids.tolist() for ids in store.similar(KEYS[2], 3)]
    assert OutputStore.restore(OutputStore().arrays()).tokens == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("keys", lambda a: a[:-1]),
        ("keys", lambda a: a[0]),
        ("keys", lambda a: a.astype(np.float32)),
        ("keys", lambda a: np.full_like(a, np.nan)),
        ("lengths", lambda a: a + 1),
        ("lengths", lambda a: np.asarray([4, -1], np.int64)),
        ("times", lambda a: np.full_like(a, np.inf)),
        ("times", lambda a: a.astype(np.float32)),
        ("ids", lambda a: a - 5),
        ("ids", lambda a: a.reshape(1, -1)),
        ("ids", None),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(name: str, change: object) -> None:
    arrays = filled([1, 2], [3]).arrays()
    if callable(change):
        arrays[name] = change(arrays[name])
    else:
        del arrays[name]
    with pytest.raises(ValueError, match="answers"):
        OutputStore.restore(arrays)


def test_a_memory_keeps_saves_bounds_and_forgets_them_by_tenant(tmp_path: pytest.TempPathFactory) -> None:
    ours = Identity("m", "t", "ours")
    with Memory(str(tmp_path), Limits(tokens=3)) as memory:
        memory.bind(ours)
        for tenant in ("a", "b"):
            store = memory.store(tenant, OutputStore, OutputStore)
            for i in range(3):
                store.add(KEYS[i], [i, i], 2e9)
            memory.settle(tenant)
            assert held(store) == [[2, 2]]
    with Memory(str(tmp_path)) as memory:
        memory.bind(ours)
        assert held(memory.store("a", OutputStore, OutputStore)) == [[2, 2]]
        assert memory.forget("a")
        assert held(memory.store("a", OutputStore, OutputStore)) == []
        assert held(memory.store("b", OutputStore, OutputStore)) == [[2, 2]]
    with Memory(str(tmp_path), Limits(days=0)) as memory:
        memory.bind(ours)
        store = memory.store("b", OutputStore, OutputStore)
        store.add(KEYS[0], [9], 1e9 - DAY)
        memory.settle("b")
        assert 9 not in [id for ids in held(store) for id in ids]
