"""One backend a model, for as long as the model lives: packing its weights takes seconds and memory, so no call does it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from echodraft.backends.transformers_support import make_backend

log = logging.getLogger("echodraft")


@dataclass(slots=True)
class Held:
    """A model's backend, what of the model it depends on, and the lock of whoever uses both."""

    backend: Any = None
    made_for: tuple[Any, ...] = ()
    lock: RLock = field(default_factory=RLock)


_HELD: WeakKeyDictionary[Any, dict[bool, Held]] = WeakKeyDictionary()
_LOCK = RLock()


@contextmanager
def backend_of(model: Any, pack: bool) -> Iterator[Any]:
    """The model's backend, made on first use and again when the model has changed; one thread at a time has it.

    Between calls it does not hold the model, so that a model that is dropped is freed, packed weights included.
    Raises `Unsupported` as `make_backend` does.
    """
    with _LOCK:
        held = _HELD.setdefault(model, {}).setdefault(pack, Held())
    with held.lock:
        traits = (model.training, model.dtype, model.device, model.config.get_text_config(decoder=True)._attn_implementation)
        packed = getattr(held.backend, "packed", None)
        if held.made_for != traits or (packed is not None and not packed.current()):
            held.backend, told = make_backend(model, pack)
            held.backend.model = None
            held.backend.context = None  # as `generate` does, let a model run past its context if it can
            held.made_for = traits
            if told:
                log.warning("%s", told)
        before, held.backend.model = held.backend.model, model
        try:
            yield held.backend
        finally:
            held.backend.model = before
