"""Inside Hugging Face code: `model.generate(..., custom_generate=echodraft.custom_generate(...))` and `echodraft.generate(model, ...)`.

`generate` prepares the inputs, processors and criteria as always and leaves the loop to us; the output is the one that it would have given.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from transformers import StoppingCriteriaList, StopStringCriteria

from echodraft.backends.transformers_identity import identify
from echodraft.build import check_budget, curve_for, make_drafter, make_engine
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine
from echodraft.decoder import Result
from echodraft.drafters import DEFAULT
from echodraft.errors import UsageError
from echodraft.integrations.hf_generate_cache import load
from echodraft.integrations.hf_generate_call import Call, unseen
from echodraft.integrations.hf_generate_limits import refuse, why_plain
from echodraft.integrations.hf_generate_models import backend_of
from echodraft.integrations.hf_generate_result import result
from echodraft.integrations.hf_generate_rows import Row, rows_of
from echodraft.integrations.hf_generate_stream import Feed
from echodraft.memory import Memory
from echodraft.metrics.stats import Stats

log = logging.getLogger("echodraft")


class Loop:
    """A decoding loop for `model.generate(..., custom_generate=loop)`, for as many calls and models as you like.

    drafter, drafter_options, budget, memory, pack
               as for `echodraft.load`
    tenant     whose memory a drafter may use
    streamer   gets the tokens of every call: the prompt, then one token a `put`; ended in every case once the loop has begun
    tokenizer  for `stop_strings`
    stats      counts to add to

    `stats`    counts of all calls together
    `results`  of the latest call, one for each row: output ids, why it ended, its counts
    `memory`   the memory, if one was given: `loop.memory.save()` writes it to its folder
    `plain`    why the latest call was left to Hugging Face's own loop, or None

    A drafter, its memory and the counts that budgets learn from live as long as the loop, one set a model; a model's packed weights
    as long as the model. Calls on one model wait for each other; calls of one loop on several models at a time mix up `results`.
    """

    def __init__(
        self,
        drafter: str | type[Drafter] | Drafter = DEFAULT,
        drafter_options: Mapping[str, Any] | None = None,
        *,
        budget: str | int = "auto",
        memory: Memory | str | Path | None = None,
        tenant: str = "",
        streamer: Any = None,
        tokenizer: Any = None,
        pack: bool = True,
        stats: Stats | None = None,
    ) -> None:
        check_budget(budget)
        self.memory = Memory(memory) if isinstance(memory, str | Path) else memory
        self._drafter = partial(make_drafter, drafter, drafter_options or {}, {"memory": self.memory})
        self._first: Drafter | None = self._drafter()  # at once: a wrong name is said here, not in the middle of a call
        self._budget, self._tenant, self._pack = budget, tenant, pack
        self.streamer, self.tokenizer = streamer, tokenizer
        self._engines: WeakKeyDictionary[Any, Engine] = WeakKeyDictionary()
        self._said: set[str] = set()
        self._lock = RLock()
        self.stats = Stats() if stats is None else stats
        self.results: list[Result] = []
        self.plain: str | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        stop_strings: str | list[str] | None = None,
        streamer: Feed | None = None,
        tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """What `generate` calls instead of `_sample`; returns what that returns.

        `stop_strings` stands here by name because `generate` then hands it over instead of asking for a tokenizer that it cannot keep.
        """
        hidden = unseen()
        feed = streamer or self._feed(hidden.get("streamer"))
        with feed.ending(), self._lock:
            refuse(generation_config, hidden)
            criteria = StoppingCriteriaList(stopping_criteria)
            if stop_strings:
                criteria.append(_stop_strings(stop_strings, self.tokenizer if tokenizer is None else tokenizer))
            feed.prompt(input_ids)
            self.results = []
            call = Call(input_ids, logits_processor, criteria, generation_config, model_kwargs)
            self.plain = why_plain(model, call)
            if self.plain is None:
                with backend_of(model, self._pack) as backend:
                    return self._run(self._engine(model, backend), call, feed)
            self._say(self.plain)
            return model._sample(
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=criteria,
                generation_config=generation_config,
                streamer=None if feed.streamer is None else feed,
                **model_kwargs,
            )

    def _feed(self, told: Any) -> Feed:
        """To the streamer that `generate` has told the prompt already, or else to our own."""
        return Feed(self.streamer) if told is None else Feed(told, prompt_told=True)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning("Decoding is plain, without drafts: %s.", reason)

    def _engine(self, model: Any, backend: Any) -> Engine:
        engine = self._engines.get(model)
        if engine is None:
            drafter, self._first = self._drafter() if self._first is None else self._first, None
            name = str(getattr(model, "name_or_path", ""))
            if self.memory is not None:
                self.memory.bind(identify(model, self.tokenizer, name))
            engine = self._engines[model] = make_engine(backend, drafter, self._budget, curve_for(name, backend))
        engine.backend = backend
        return engine

    def _run(self, engine: Engine, call: Call, feed: Feed) -> Any:
        rows: list[Row] = []
        try:
            for row in rows_of(call):
                row.session = engine.open(row.tokens, row.sampler, row.stops(call.criteria), self._tenant)
                rows.append(row)
                if call.past:
                    load(engine.backend, row, call.cache)
            while any(row.session.finish is None for row in rows):
                self._step(engine, rows, call)
                feed.follow([row.session for row in rows], call.pad)
            out = result(engine.backend, rows, call)
        finally:
            for row in reversed(rows):  # from the last one on, so that none has to move
                engine.close(row.session)
        self.results = [Result("", row.session.output, row.session.finish, row.stats, None, row.session.prompt_length) for row in rows]
        feed.end()
        return out

    def _step(self, engine: Engine, rows: list[Row], call: Call) -> None:
        going = {row.session.id: row for row in rows if row.session.finish is None}
        for step in engine.step([row.session for row in going.values()]):
            going[step.session.id].stats.add(step)
            self.stats.add(step)
            if step.session.finish is not None and not call.wants_cache:
                engine.close(step.session)  # at once, so that the rows of those that go on stay together


def _stop_strings(stop_strings: str | list[str], tokenizer: Any) -> StopStringCriteria:
    if tokenizer is None:
        raise UsageError("Stop strings need a tokenizer: give it to echodraft.generate or custom_generate; generate does not hand it on.")
    return StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)


def generate(
    model: Any, *args: Any, streamer: Any = None, tokenizer: Any = None, custom_generate: Loop | None = None, **kwargs: Any
) -> Any:
    """`model.generate` with drafts: the same arguments, the same result.

    streamer         gets the prompt, then one token a `put`, and is ended in every case
    tokenizer        for `stop_strings`
    custom_generate  a loop that `custom_generate(...)` made, to keep its memory and read its counts; or else give here
    kwargs           what `custom_generate` takes (`drafter`, `drafter_options`, `budget`, `memory`, `tenant`, `pack`, `stats`); all else
                     is for `model.generate`

    Raises what `model.generate` raises, `Unsupported` for what cannot be drafted for (beams, assisted generation, models that are not
    decoders), and `UsageError` for a wrong option.
    """
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    if custom_generate is not None and options:
        raise UsageError(f"The loop has its {next(iter(options))} already. Give it to custom_generate.")
    feed = Feed(getattr(custom_generate, "streamer", None) if streamer is None else streamer)
    with feed.ending():
        loop = Loop(**options) if custom_generate is None else custom_generate
        config = kwargs.get("generation_config")
        if getattr(config, "stop_strings", None) and kwargs.get("stop_strings") is None:
            kwargs["stop_strings"] = config.stop_strings
            kwargs["generation_config"] = copy.copy(config)
            kwargs["generation_config"].stop_strings = None
        return model.generate(*args, custom_generate=partial(loop, streamer=feed, tokenizer=tokenizer), **kwargs)


custom_generate = Loop  # the argument of `generate` that it is made for
OPTIONS = [name for name in inspect.signature(Loop).parameters if name not in ("streamer", "tokenizer")]
