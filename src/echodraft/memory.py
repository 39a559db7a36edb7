"""The stores that outlive a request, by tenant: limits, retention, save, load, forget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time
from typing import TypeVar

from echodraft.stores.store import Store

S = TypeVar("S", bound=Store)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a memory may hold.

    tokens  of text in one store of one tenant
    bytes   of all stores together; beyond it the tenants that were longest unused are forgotten, the least recent first
    days    that a finished text is kept; None = for ever
    """

    tokens: int = 1_000_000
    bytes: int = 1 << 30
    days: float | None = None


class Memory:
    """Stores by tenant and kind. A drafter asks for its session's store when the session opens, and calls `settle` when one closes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._stores: dict[str, dict[str, Store]] = {}  # tenants in order of use, the latest last

    def store(self, tenant: str, kind: type[S], make: Callable[[], S]) -> S:
        """The tenant's store of this kind, made if it is not there. It stays the same object until the tenant is forgotten."""
        held = self._stores.pop(tenant, {})
        self._stores[tenant] = held
        found = held.get(kind.kind)
        if not isinstance(found, kind):
            found = held[kind.kind] = make()
        return found

    def settle(self, tenant: str) -> None:
        """A session of the tenant is over: hold what it left to the limits."""
        before = 0.0 if self.limits.days is None else time() - self.limits.days * 86_400
        for store in self._stores.get(tenant, {}).values():
            store.prune(self.limits.tokens, before)
        while len(self._stores) > 1 and self.nbytes > self.limits.bytes:
            self.forget(next(iter(self._stores)))

    def forget(self, tenant: str) -> bool:
        """Drop all that is held for a tenant. False if there was nothing."""
        return self._stores.pop(tenant, None) is not None

    def __iter__(self) -> Iterator[tuple[str, Store]]:
        """Every store with its tenant."""
        for tenant, held in self._stores.items():
            for store in held.values():
                yield tenant, store

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for _, store in self)
