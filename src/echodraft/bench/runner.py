"""The run: every method on every item, interleaved item by item, so that what the machine does meanwhile hits all alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from echodraft.bench.methods import Method
from echodraft.bench.result import Measurement, Run
from echodraft.bench.suites import Item
from echodraft.decoder import Decoder

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

WARM_UP_TOKENS = 8


def run(
    items: Sequence[Item],
    methods: Mapping[str, Method],
    base: Decoder,
    most: Callable[[Item], int],
    record: Run,
    repeats: int = 1,
    told: Callable[[Measurement], None] = lambda _: None,
) -> list[str]:
    """Measure what `record` does not hold yet, `repeats` rounds over the items; `told` hears of every measurement.

    Every method is warmed up once, uncounted. The order of the methods moves on by one with every item, so that none always runs behind
    the same other. `most` says how many tokens an item may have. A later turn's prompt holds plain decoding's answers of the same round,
    whatever the method.

    Returns the ids of items that were left out since their prompts leave no room in the context of the model `base`.
    """
    names = list(methods)
    cold, context, too_long = set(names), base.engine.backend.context, []
    for repeat in range(repeats):
        for name in names:
            methods[name].begin(fresh=not any(record.has(item.id, name, repeat) for item in items))
        seen: set[tuple[int, ...]] = set()
        for number, item in enumerate(items):
            item = replace(item, ids=prompt_of(item, base, record, repeat))
            if not item.ids or (context is not None and len(item.ids) >= context):
                too_long.append(item.id)
                continue
            repeated, turn = tuple(item.ids) in seen, (number + repeat) % len(names)
            seen.add(tuple(item.ids))
            for name in names[turn:] + names[:turn]:
                if record.has(item.id, name, repeat):
                    continue
                if name in cold:
                    cold.discard(name)
                    methods[name].warm_up(item.ids[:32], WARM_UP_TOKENS)
                answer = methods[name].answer(item, most(item))
                measurement = Measurement(
                    item.id,
                    item.category,
                    name,
                    answer.ids,
                    answer.prefill_seconds,
                    answer.decode_seconds,
                    repeat=repeat,
                    prompt_tokens=len(item.ids),
                    peak_memory=peak_memory(),
                    repeated=repeated,
                    suite=item.suite,
                    **answer.details,
                )
                record.add(measurement)
                # In this order: a kill between the two may lose a memory, but no request ever meets its own answer.
                methods[name].keep()
                told(measurement)
    return list(dict.fromkeys(too_long))


def prompt_of(item: Item, base: Decoder, record: Run, repeat: int = 0) -> list[int]:
    """Ids of the item's prompt; none for a later turn without the earlier ones."""
    if not item.turns:
        return item.ids
    answers = [record.text(id_, repeat, base.text) for id_ in item.earlier]
    return [] if None in answers else item.after([answer or "" for answer in answers], base.text).ids


def peak_memory() -> int:
    """Most bytes that this process held so far: of the GPU where it used one, else resident ones (0 where nobody counts them)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and (used := int(torch.cuda.max_memory_allocated())):
        return used
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)
