"""Stores on disk: one safetensors file a tenant and kind, whole at every moment, written by one process at a time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echodraft.errors import EchodraftError, UsageError
from echodraft.stores import STORES
from echodraft.stores.store import Store

FORMAT = 1
HEADER = "echodraft"
SUFFIX, UNFINISHED = ".safetensors", ".unfinished"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose tokens a store holds: fingerprints of the model and of its tokenizer ("" = not known), and a name for people."""

    model: str
    tokenizer: str
    name: str = ""

    def same(self, other: Identity) -> bool:
        return self.model == other.model and (self.tokenizer == other.tokenizer or "" in (self.tokenizer, other.tokenizer))


def vocabulary(tokenizer: Any) -> str:
    """Fingerprint of a tokenizer's vocabulary; "" where it does not tell."""
    if not hasattr(tokenizer, "get_vocab"):
        return ""
    return sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. `saved` in seconds since the epoch, `bytes` of the file."""

    tenant: str
    kind: str
    identity: Identity
    tokens: int
    saved: float
    path: Path
    bytes: int


class Folder:
    """A memory folder. Reading needs no lock, since files are replaced whole; writing needs the folder's.

    path   made where it is missing, unless it is only to be read
    wait   seconds to wait for another process that writes here; then `writable` is False
    write  False = only read, and be in nobody's way
    """

    def __init__(self, path: Path, wait: float = 0.0, write: bool = True) -> None:
        self.path = path.expanduser()
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"The memory folder {path} is a file. Name a folder.")
        self._lock: FileLock | None = None
        if write:
            self._acquire(wait)

    def _acquire(self, wait: float) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=wait)
            self._lock = lock
        except Timeout:
            pass
        except OSError as error:
            if not self.path.is_dir():
                raise UsageError(f"The memory folder {self.path} cannot be made ({error.strerror or error}). Name another.") from error

    @property
    def writable(self) -> bool:
        return self._lock is not None

    def must_write(self) -> None:
        """Raises `EchodraftError` where another process writes here."""
        if not self.writable:
            raise EchodraftError(f"Another process writes the memory in {self.path}. Try again when it has ended.")

    def close(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def headers(self) -> Iterator[Header]:
        """All stores here, longest unsaved first. Raises `EchodraftError` where a file is none of ours or damaged."""
        yield from sorted((_header(path) for path in self.path.glob(f"*/*{SUFFIX}")), key=lambda header: header.saved)

    def file(self, tenant: str, kind: str) -> Path:
        """Where a tenant's store of a kind belongs. The digest keeps tenants apart whose names look alike as file names."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", tenant)[:40] or "default"
        return self.path / f"{name}-{sha256(tenant.encode()).hexdigest()[:16]}" / f"{kind}{SUFFIX}"

    def load(self, tenant: str, kind: str, identity: Identity | None = None) -> Store | None:
        """The saved store, or None. Raises `EchodraftError` where the file is damaged, `UsageError` where it is of another model."""
        path = self.file(tenant, kind)
        if not path.exists():
            return None
        header = _header(path)
        if identity is not None:
            refuse_other(header, identity)
        module, _, name = STORES[kind].partition(":")
        try:
            with safe_open(path, framework="numpy") as held:
                arrays = {key: held.get_tensor(key) for key in held.keys()}  # noqa: SIM118 - not a dict
            store: Store = getattr(import_module(module), name).restore(arrays)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise _damaged(path, error) from error
        return store

    def save(self, tenant: str, store: Store, identity: Identity, saved: float | None = None) -> None:
        """Write a store: beside its place first, then in one move, so that a crash leaves what was there. `saved`: the time it claims."""
        path = self.file(tenant, store.kind)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {
            "format": FORMAT,
            "tenant": tenant,
            "kind": store.kind,
            "tokens": store.tokens,
            "saved": saved or time(),
            **asdict(identity),
        }
        unfinished = path.with_suffix(UNFINISHED)
        save_file(store.arrays(), unfinished, metadata={HEADER: json.dumps(about)})
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)

    def forget(self, tenant: str) -> bool:
        """Delete all files of a tenant, damaged ones too. False if there were none."""
        folder = self.file(tenant, "").parent
        found = list(folder.glob("*")) if folder.is_dir() else []
        for path in found:
            path.unlink()
        if folder.is_dir():
            folder.rmdir()
        return bool(found)

    def clear(self) -> int:
        """Delete all stores, damaged ones too; returns how many files."""
        found = [path for path in self.path.glob("*/*") if path.suffix in (SUFFIX, UNFINISHED)]
        for path in found:
            path.unlink()
        for path in self.path.glob("*/"):
            if not any(path.iterdir()):
                path.rmdir()
        return len(found)

    def shrink(self, most: int) -> list[str]:
        """Forget the tenants that were saved longest ago until the files hold at most `most` bytes; returns their names."""
        headers = list(self.headers())
        total, latest = sum(header.bytes for header in headers), {header.tenant: header.saved for header in headers}
        gone = []
        for tenant in sorted(latest, key=latest.__getitem__):
            if total <= most:
                break
            total -= sum(header.bytes for header in headers if header.tenant == tenant)
            self.forget(tenant)
            gone.append(tenant)
        return gone


def refuse_other(header: Header, identity: Identity) -> None:
    """Raises `UsageError` where the file belongs to another model or tokenizer."""
    if not header.identity.same(identity):
        what = "model" if header.identity.model != identity.model else "tokenizer"
        raise UsageError(
            f"The memory in {header.path.parents[1]} belongs to another {what} ({header.identity.name or 'unnamed'}). "
            "Name another folder with --memory, or empty it with: echodraft store forget --all."
        )


def _header(path: Path) -> Header:
    try:
        with safe_open(path, framework="numpy") as held:
            about = json.loads((held.metadata() or {})[HEADER])
        if about["format"] != FORMAT or about["kind"] not in STORES:
            raise ValueError(f"format {about['format']}, kind {about['kind']}; this version reads format {FORMAT}")
        identity = Identity(str(about["model"]), str(about["tokenizer"]), str(about["name"]))
        return Header(str(about["tenant"]), about["kind"], identity, int(about["tokens"]), float(about["saved"]), path, path.stat().st_size)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> EchodraftError:
    why = " ".join(str(error).split()) or type(error).__name__
    return EchodraftError(f"The saved store {path} cannot be read ({why}). Delete that file, or name another folder.")
