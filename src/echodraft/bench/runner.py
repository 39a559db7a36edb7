"""The run: every method on every item, interleaved item by item, so that what the machine does meanwhile hits all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from echodraft.bench.methods import Method
from echodraft.bench.result import Measurement, Run
from echodraft.bench.suites import Item

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

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
                item.id,
                item.category,
                name,
                answer.ids,
                answer.prefill_seconds,
                answer.decode_seconds,
                prompt_tokens=len(item.ids),
                peak_memory=peak_memory(),
                repeated=item.ids in (earlier.ids for earlier in items[:number]),
                **answer.details,
            )
            record.add(measurement)
            # In this order: a kill between the two may lose a memory, but no request ever meets its own answer.
            methods[name].keep()
            told(measurement)


def peak_memory() -> int:
    """Most bytes that this process held so far: of the GPU where it used one, else resident ones (0 where nobody counts them)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and (used := int(torch.cuda.max_memory_allocated())):
        return used
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)
