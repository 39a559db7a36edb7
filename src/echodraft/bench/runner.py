"""The run: every method on every item, interleaved item by item, so that what the machine does meanwhile hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from echodraft.bench.methods import Method
from echodraft.bench.result import Measurement, Run
from echodraft.bench.suites import Item

WARM_UP_TOKENS = 8


def run(
    items: Sequence[Item], methods: Mapping[str, Method], most: int, record: Run, told: Callable[[Measurement], None] = lambda _: None
) -> None:
    """Measure what `record` does not hold yet; `told` hears of every measurement. Every method is warmed up once, uncounted.

    The order of the methods moves on by one with every item, so that none always runs behind the same other.
    """
    names = list(methods)
    cold = set(names)
    for number, item in enumerate(items):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if record.has(item.id, name):
                continue
            if name in cold:
                cold.discard(name)
                methods[name].answer(Item("", "", item.ids[:32], ()), WARM_UP_TOKENS, warm_up=True)
            answer = methods[name].answer(item, most)
            measurement = Measurement(
                item.id, item.category, name, answer.ids, answer.prefill_seconds, answer.decode_seconds, **answer.counts
            )
            record.add(measurement)
            # In this order: a kill between the two may lose a memory, but no request ever meets its own answer.
            methods[name].keep()
            told(measurement)
