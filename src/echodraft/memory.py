"""The stores that outlive a request, by tenant: limits, retention, save, load, forget."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TypeVar

from echodraft.errors import UsageError
from echodraft.stores.folder import Folder, Identity, refuse_other
from echodraft.stores.store import Store

log = logging.getLogger("echodraft")
S = TypeVar("S", bound=Store)
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a memory may hold.

    tokens  of text in one store of one tenant
    bytes   of all stores together, and of all files of a folder; beyond it go the tenants that were longest unused
    days    that a finished text is kept; None = for ever
    """

    tokens: int = 1_000_000
    bytes: int = 1 << 30
    days: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "bytes", "days"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"A memory cannot hold {value} {name}. Give a number from 0 on.")

    @property
    def before(self) -> float:
        """Texts finished before this time are too old. Seconds since the epoch."""
        return 0.0 if self.days is None else time() - self.days * DAY


class Memory:
    """Stores by tenant and kind, each tenant's apart from all others'.

    A drafter asks for its session's `store` when the session opens and calls `settle` when it closes. With a folder, stores are read when
    they are first asked for, and written by `save`, by `close` and at the end of a `with` block. One process at a time writes a folder:
    a second one waits `wait` seconds, then says so and only reads. `bind` must name the model first: another model's stores are refused.
    """

    def __init__(self, folder: Path | str | None = None, limits: Limits | None = None, wait: float = 0.0) -> None:
        self.limits = limits or Limits()
        self.folder = Folder(Path(folder), wait) if folder is not None else None
        self.identity: Identity | None = None
        self._stores: dict[str, dict[str, Store]] = {}  # tenants in order of use, the latest last
        self._in_use: Counter[str] = Counter()
        self._unsaved: set[str] = set()
        if self.folder is not None and not self.folder.writable:
            log.warning(
                "Another process writes the memory in %s, or its files may not be written: read only, nothing of this run is kept.",
                self.folder.path,
            )

    def bind(self, identity: Identity) -> None:
        """From here on the memory is this model's. Raises `UsageError` where it is another's already."""
        if self.identity is not None and not self.identity.same(identity):
            raise UsageError(f"This memory is in use by another model ({self.identity.name or 'unnamed'}). Give each model its own.")
        if self.folder is not None:
            for header in self.folder.headers():
                refuse_other(header, identity)
        self.identity = identity

    def store(self, tenant: str, kind: type[S], make: Callable[[], S]) -> S:
        """The tenant's store of this kind, loaded or made if it is not there, for one session; `settle` gives it back.

        It stays the same object until the tenant is forgotten.
        """
        held = self._stores.pop(tenant, {})
        self._stores[tenant] = held
        found = held.get(kind.kind)
        if not isinstance(found, kind):
            loaded = self.folder.load(tenant, kind.kind, self._bound()) if self.folder is not None else None
            if loaded is not None:
                loaded.prune(self.limits.tokens, self.limits.before)
            found = held[kind.kind] = loaded if isinstance(loaded, kind) else make()
        self._in_use[tenant] += 1
        return found

    def settle(self, tenant: str) -> None:
        """A session of the tenant is over: hold to the limits what it left."""
        self._in_use[tenant] -= 1
        self._in_use += Counter()  # keeps those above zero
        self._unsaved.add(tenant)
        for store in self._stores.get(tenant, {}).values():
            store.prune(self.limits.tokens, self.limits.before)
        idle = (name for name in list(self._stores) if name != tenant and name not in self._in_use)
        while self.nbytes > self.limits.bytes and (name := next(idle, None)) is not None:
            self._save(name)
            self._drop(name)

    def forget(self, tenant: str) -> bool:
        """Drop all that is held for a tenant, its files too. False if there was nothing.

        Raises `EchodraftError` where the folder is read only. A session that is open keeps its store, which is saved no more.
        """
        found = self._drop(tenant)
        if self.folder is not None:
            self.folder.must_write()
            found = self.folder.forget(tenant) or found
        return found

    def save(self) -> None:
        """Write what changed to the folder, if there is one that this process may write."""
        for tenant in list(self._unsaved):
            self._save(tenant)
        if self.folder is not None and self.folder.writable:
            self.folder.shrink(self.limits.bytes)

    def close(self) -> None:
        """Save, and let other processes write."""
        try:
            self.save()
        finally:
            if self.folder is not None:
                self.folder.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[str, Store]]:
        """Every store in memory with its tenant."""
        for tenant, held in self._stores.items():
            for store in held.values():
                yield tenant, store

    @property
    def nbytes(self) -> int:
        """Bytes of all stores in memory."""
        return sum(store.nbytes for _, store in self)

    def _save(self, tenant: str) -> None:
        self._unsaved.discard(tenant)
        if self.folder is not None and self.folder.writable:
            for store in self._stores.get(tenant, {}).values():
                self.folder.save(tenant, store, self._bound())

    def _drop(self, tenant: str) -> bool:
        self._unsaved.discard(tenant)
        return self._stores.pop(tenant, None) is not None

    def _bound(self) -> Identity:
        if self.identity is None:
            raise UsageError("A memory with a folder must know its model: call bind, or pass it to echodraft.load.")
        return self.identity
