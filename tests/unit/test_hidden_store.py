"""Hidden states as keys: what is nearest, what follows it, and that what is removed is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from echodraft.memory import Limits, Memory
from echodraft.stores import hidden_keys
from echodraft.stores.folder import Folder, Identity
from echodraft.stores.hidden import HiddenStore
from echodraft.stores.hidden_keys import EXACT

RANDOM = np.random.default_rng(0)


def states(n: int, width: int = 24, seed: int = 0, offset: float = 3.0) -> NDArray[np.float16]:
    """Vectors around something that all of them share, as a model's states are."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, width)) + offset).astype(np.float16)


def alike(n: int, width: int = 192, kinds: int = 400, seed: int = 0) -> NDArray[np.float16]:
    """Vectors that come in kinds, some nearer to their kind than others, as the states of a model are."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((kinds, width))
    apart = random.uniform(0.2, 2.0, (n, 1))
    return (centres[random.integers(0, kinds, n)] + apart * random.standard_normal((n, width)) + 4.0).astype(np.float16)


def filled(keys: NDArray[Any], length: int = 50, tokens: NDArray[Any] | None = None) -> HiddenStore:
    """Finished sequences of `length` pairs, whose tokens count on."""
    store = HiddenStore()
    told = np.arange(len(keys)) if tokens is None else tokens
    for at in range(0, len(keys), length):
        seq = store.begin()
        store.append(seq, told[at : at + length], keys[at : at + length])
        store.end(seq, float(at))
    return store


def cosines(keys: NDArray[Any], queries: NDArray[Any], centre: NDArray[Any]) -> NDArray[np.float64]:
    keys, queries = keys.astype(np.float64) - centre, queries.astype(np.float64) - centre
    return (queries @ keys.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(keys, axis=1)


def recall(store: HiddenStore, keys: NDArray[Any], length: int, n: int = 100, k: int = 8, noise: float = 0.25) -> float:
    """How much of the k best by exact cosine a search finds, ties counted as found."""
    queries = keys[RANDOM.permutation(len(keys))[:n]] + noise * RANDOM.standard_normal((n, keys.shape[1]))
    exact = cosines(keys, queries, keys.mean(axis=0, dtype=np.float64))
    exact[:, length - 1 :: length] = -1.0  # nothing follows these
    least = np.sort(exact, axis=1)[:, -k]
    found = store.search(queries, k)
    return float(np.mean([(exact[i, store.token(near.row)] >= least[i] - 1e-6).sum() / k for i, near in enumerate(found)]))


def test_a_small_store_finds_the_nearest_keys_by_centred_cosine() -> None:
    keys = states(300)
    store = filled(keys)
    exact = cosines(keys, keys[:20], keys.mean(axis=0, dtype=np.float64))
    exact[:, 49::50] = -1.0
    for i, near in enumerate(store.search(keys[:20], 5)):
        assert store.token(near.row).tolist() == np.argsort(-exact[i])[:5].tolist()
        assert near.cosine == pytest.approx(np.sort(exact[i])[::-1][:5], abs=1e-3)
    assert not store.coded


def test_what_all_keys_share_does_not_count() -> None:
    keys = states(200, offset=500.0)
    store = filled(keys)
    (near,) = store.search(keys[:1], 2)
    assert store.token(near.row)[0] == 0
    assert near.cosine[0] == pytest.approx(1.0, abs=1e-3)
    assert near.cosine[1] < 0.9  # 0.99998 without a centre


def test_a_large_store_finds_nearly_all_of_the_nearest_keys_in_at_most_512_bytes_each() -> None:
    keys = alike(6000, width=1536)
    half, store = filled(keys[:3000]), filled(keys)
    assert store.coded
    assert recall(store, keys, 50) >= 0.95
    each = (store.nbytes - half.nbytes) / 3000
    fixed = store.nbytes - 6000 * each
    assert fixed + 100_000 * each <= 512 * 100_000


@pytest.mark.parametrize("width", [1, 16, 64, 100, 896])
def test_any_width_is_searched_small_and_large(width: int) -> None:
    for n in (100, EXACT + 200):
        keys = states(n, width)
        store = filled(keys)
        found = store.search(keys[:30], 4)
        assert all(len(near.row) == 4 for near in found)
        assert all((np.diff(near.cosine) <= 0).all() for near in found)
        if width >= 64:
            assert [int(store.token(near.row)[0]) for near in found] == list(range(30))


def test_the_cosine_is_around_a_mean_that_moves_with_the_keys() -> None:
    early, late = states(EXACT + 100, 192, seed=1, offset=3.0), alike(5000, 192, seed=2) - np.float16(3.0)
    keys = np.concatenate([early, late])
    store = filled(keys)
    exact = cosines(keys, late[:1], keys.mean(axis=0, dtype=np.float64))
    (near,) = store.search(late[:1], 8)
    assert near.cosine == pytest.approx(exact[0, store.token(near.row)], abs=0.1)
    assert recall(store, keys, 50) >= 0.8


def test_what_follows_a_key_is_the_rest_of_its_sequence_however_sequences_grew() -> None:
    store, keys = HiddenStore(), states(60)
    one, two = store.begin(), store.begin()
    for i in range(0, 60, 6):
        store.append(one, range(i, i + 4), keys[i : i + 4])
        store.append(two, range(100 + i, 102 + i), keys[i + 4 : i + 6])
    (near,) = store.search(keys[:1], 1)
    rows = store.follow(near.row, 50)
    told = [i for i in range(60) if i % 6 < 4]
    assert store.token(rows[rows >= 0]).tolist() == told
    assert rows[0, len(told) :].tolist() == [-1] * (50 - len(told))


def test_a_key_that_nothing_follows_is_no_neighbour() -> None:
    store, keys = HiddenStore(), states(3)
    seq = store.begin()
    store.append(seq, [1, 2, 3], keys)
    assert store.token(store.search(keys[2:], 8)[0].row).tolist() != []
    assert 3 not in store.token(store.search(keys[2:], 8)[0].row)
    store.append(seq, [4], states(1, seed=5))
    assert store.token(store.search(keys[2:], 1)[0].row).tolist() == [3]


Act = tuple[str, int, int]


@given(st.lists(st.tuples(st.sampled_from(["append", "end", "remove", "begin"]), st.integers(0, 5), st.integers(1, 9)), max_size=40))
def test_a_store_holds_what_a_list_of_lists_holds(acts: list[Act]) -> None:
    store = HiddenStore()
    held: dict[int, tuple[list[int], bool]] = {}
    keys, at = states(400, 16), 0
    for act, which, n in acts:
        known = list(held)
        if act == "begin" or not known:
            held[store.begin()] = ([], True)
            continue
        seq = known[which % len(known)]
        if act == "remove":
            assert store.remove(seq)
            assert not store.remove(seq)
            del held[seq]
        elif held[seq][1] and act == "end":
            store.end(seq, 1.0)
            held[seq] = (held[seq][0], False)
        elif held[seq][1]:
            store.append(seq, range(at, at + n), keys[at : at + n])
            held[seq] = (held[seq][0] + list(range(at, at + n)), True)
            at += n
    assert store.tokens == sum(len(tokens) for tokens, _ in held.values())
    assert sorted(e["ids"] for e in store.entries()) == sorted(tokens for tokens, growing in held.values() if not growing)
    for tokens, _ in held.values():
        for i, token in enumerate(tokens[:-1]):
            (near,) = store.search(keys[token : token + 1], 1)
            assert store.token(near.row).tolist() == [token]
            assert store.token(store.follow(near.row, len(tokens) - i))[0].tolist() == tokens[i:]


@pytest.mark.parametrize("n", [400, EXACT + 1000])
def test_what_is_removed_is_found_no_more_and_its_place_is_used_again(n: int) -> None:
    keys = alike(n)
    store = filled(keys)
    size = store.nbytes
    for seq in range(1, n // 100):
        assert store.remove(seq)
    gone = 50 * (n // 100 - 1)
    found = store.search(keys[:40], 8)
    assert min(int(store.token(near.row).min()) for near in found) >= gone
    for at in range(0, gone, 50):
        seq = store.begin()
        store.append(seq, range(at, at + 50), keys[at : at + 50])
        store.end(seq, 1.0)
    assert store.nbytes <= size
    assert [int(store.token(near.row)[0]) for near in store.search(keys[:40], 1)] == list(range(40))


def test_the_last_sequence_to_go_takes_all_with_it() -> None:
    store = filled(alike(EXACT + 50, 64), length=EXACT + 50)
    store.prune(0)
    assert (store.tokens, store.coded) == (0, False)
    assert store.nbytes < 20_000
    assert store.search(states(1, 64), 8)[0].row.tolist() == []
    store.append(store.begin(), [1, 2], states(2, 8))  # of any width


def test_pruning_drops_the_oldest_and_those_before_a_time() -> None:
    store = filled(states(250))
    store.prune(120)
    assert [e["ids"][0] for e in store.entries()] == [150, 200]
    store.prune(1000, before=200.0)
    assert [e["ids"][0] for e in store.entries()] == [200]
    growing = store.begin()
    store.append(growing, [7] * 30, states(30))
    store.prune(0)
    assert store.tokens == 30  # what still grows stays


@pytest.mark.parametrize("n", [300, EXACT + 500])
def test_a_store_from_a_file_finds_the_same(n: int, tmp_path: Any) -> None:
    keys = alike(n)
    store = filled(keys, length=40)
    store.remove(2)
    store.survival = np.arange(6.0)
    folder, identity = Folder(tmp_path / "memory"), Identity("m", "t")
    folder.save("a", store, identity)
    again = folder.load("a", "hidden", identity)
    assert isinstance(again, HiddenStore)
    assert list(again.entries()) == list(store.entries())
    assert again.survival.tolist() == store.survival.tolist()
    for one, two in zip(store.search(keys[:20], 8), again.search(keys[:20], 8), strict=True):
        assert store.token(one.row).tolist() == again.token(two.row).tolist()
        assert one.cosine == pytest.approx(two.cosine, abs=1e-4)
    assert len(again.follow(np.asarray([0]), 50)[0]) == 50
    seq = again.begin()
    again.append(seq, [1, 2], keys[:2])
    assert again.tokens == store.tokens + 2


def damages() -> dict[str, dict[str, Any]]:
    return {
        "a missing array": {"sum": None},
        "another type": {"tokens": np.zeros(300, np.int64)},
        "fewer keys": {"whole": np.zeros((3, 64), np.float32)},
        "no number": {"length": np.full(300, np.nan, np.float32)},
        "another format": {"format": np.asarray([1], np.int64)},
        "an older format, which had no number": {"format": None},
        "a negative id": {"tokens": np.full(300, -1, np.int32)},
        "lengths that do not add up": {"lengths": np.asarray([299], np.int64)},
        "a negative length": {"lengths": np.asarray([301, -1], np.int64), "times": np.zeros(2)},
        "times of other sequences": {"times": np.zeros(2)},
        "counts below zero": {"survival": np.full(4, -1.0)},
        "a huge width": {"shape": np.asarray([1 << 40, 300, 0, 1], np.int64)},
    }


@pytest.mark.parametrize("what", damages())
def test_a_damaged_file_is_refused(what: str) -> None:
    arrays: dict[str, Any] = filled(states(300), length=300).arrays()
    HiddenStore.restore(arrays)
    arrays |= damages()[what]
    with pytest.raises(ValueError, match="hidden store"):
        HiddenStore.restore({name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(("name", "value"), [("base", -1), ("base", 1 << 20), ("base_gain", 1.0), ("base_code", None), ("shape", 5)])
def test_a_damaged_file_of_codes_is_refused(name: str, value: float | None) -> None:
    arrays: dict[str, Any] = filled(alike(EXACT + 100)).arrays()
    HiddenStore.restore(arrays)
    if value is None:
        arrays[name] = arrays[name][1:]
    else:
        arrays[name][-1 if name == "shape" else 0] = value
    with pytest.raises(ValueError, match="hidden store"):
        HiddenStore.restore(arrays)


def test_states_that_are_no_numbers_do_no_harm() -> None:
    store, keys = HiddenStore(), states(10)
    keys[3] = np.inf
    keys[4] = np.nan
    keys[5] = 0.0
    seq = store.begin()
    store.append(seq, range(10), keys)
    assert store.token(store.search(keys[:1], 1)[0].row).tolist() == [0]
    assert np.isfinite(store.search(keys, 4)[3].cosine).all()


def test_wrong_pairs_are_refused_and_change_nothing() -> None:
    store = HiddenStore()
    seq = store.begin()
    store.append(seq, [1, 2], states(2))
    for tokens, keys in (([1], states(2)), ([1, 2], states(2, 8)), ([-1], states(1)), ([1], states(1)[0])):
        with pytest.raises(ValueError, match=r"states|negative"):
            store.append(seq, tokens, keys)
    with pytest.raises(KeyError):
        store.append(seq + 1, [1], states(1))
    assert store.tokens == 2


def test_a_memory_holds_a_tenants_keys_to_its_limits() -> None:
    memory = Memory(limits=Limits(tokens=100))
    for tenant in ("a", "b"):
        for at in range(4):
            store = memory.store(tenant, HiddenStore, HiddenStore)
            seq = store.begin()
            store.append(seq, range(40), states(40, seed=at))
            store.end(seq, 1e9 + at)
            memory.settle(tenant)
        assert store.tokens <= 100
    assert {tenant for tenant, _ in memory} == {"a", "b"}
    assert memory.forget("a")
    assert memory.store("a", HiddenStore, HiddenStore).tokens == 0


def test_the_sketch_is_what_finds_keys_in_a_large_store(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = alike(EXACT + 3000)
    store = filled(keys)
    good = recall(store, keys, 50)
    monkeypatch.setattr(hidden_keys, "CLOSE", 8)
    assert recall(store, keys, 50) < good


def close(n: int, width: int = 192, seed: int = 0) -> NDArray[np.float16]:
    """Vectors in groups of thirty that are all but the same, as where a text is said again in slightly other words."""
    random = np.random.default_rng(seed)
    groups = np.repeat(random.standard_normal((-(-n // 30), width)), 30, axis=0)[:n]
    return (groups + 0.06 * random.standard_normal((n, width)) + 4.0)[random.permutation(n)].astype(np.float16)


def test_keys_that_are_all_but_the_same_are_told_apart_by_what_is_left_of_them_beside_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = close(EXACT + 2000)
    good = recall(filled(keys), keys, 50, noise=0.06)
    monkeypatch.setattr(hidden_keys, "FIRST", 1)
    monkeypatch.setattr(hidden_keys, "SHARE", 1 << 30)
    assert recall(filled(keys), keys, 50, noise=0.06) < good - 0.15


def test_places_of_bases_are_free_again_when_the_keys_that_had_them_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_keys, "FIRST", 20)
    store = filled(close(EXACT + 1000, seed=1))
    kept = store.begin()
    store.append(kept, [0], close(1))
    for seq in range(1, kept):
        store.remove(seq)
    store.end(kept, 1.0)
    assert len(store.arrays()["base_code"]) <= 2  # of what is gone nothing is saved
    for seed in (2, 3):
        seq = store.begin()
        store.append(seq, range(1000), close(1000, seed=seed))
        store.end(seq, 2.0)
    assert len(store.arrays()["base_code"]) > 60


def test_every_base_knows_how_many_keys_lean_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("EXACT", 60), ("FIRST", 8), ("SHARE", 10)):
        monkeypatch.setattr(hidden_keys, name, value)
    random, keys, store = np.random.default_rng(5), close(4000, seed=4), HiddenStore()
    held: dict[int, int] = {store.begin(): 0}
    for i in range(200):
        seq = int(random.choice(list(held)))
        act = random.integers(5)
        if act == 0:
            held[store.begin()] = 0
        elif act == 1 and held[seq] > 3:
            held[seq] = int(random.integers(1, held[seq]))
            store.cut(seq, held[seq])
        elif act == 2 and len(held) > 6:
            store.remove(seq)
            del held[seq]
        else:
            store.append(seq, range(20), keys[20 * i : 20 * i + 20])
            held[seq] += 20
        if store.coded:
            assert np.bincount(store._keys._base, minlength=len(store._keys._uses))[1:].tolist() == store._keys._uses[1:].tolist()
    assert store.coded
    assert (store._keys._uses > 0).sum() > 4


def test_a_large_store_that_is_not_centred_has_the_cosines_around_nothing() -> None:
    keys = alike(EXACT + 400)
    store = HiddenStore()
    store.centred = False
    seq = store.begin()
    store.append(seq, range(len(keys)), keys)
    exact = cosines(keys, keys[:20], np.zeros(keys.shape[1]))
    for i, near in enumerate(store.search(keys[:20], 8)):
        assert near.cosine == pytest.approx(exact[i, store.token(near.row)], abs=0.01)
    store.end(seq, 1.0)
    again = HiddenStore.restore(store.arrays())
    centred = cosines(keys, keys[:20], keys.mean(axis=0, dtype=np.float64))
    for i, near in enumerate(again.search(keys[:20], 8)):
        assert near.cosine == pytest.approx(centred[i, again.token(near.row)], abs=0.1)
