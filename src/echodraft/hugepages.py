"""Weights in pages of 2 MB instead of 4 kB, so that a CPU reads them faster: Python is started anew, and its C library asks for them.

Linux gives large pages to who asks (`madvise`, its usual mode). glibc asks, from 2.35 on, if `GLIBC_TUNABLES` says so when the process
begins; the kernels' packed weights come from its `malloc`, so nothing later reaches them. What is decoded does not change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

TUNABLE = "glibc.malloc.hugetlb"
MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def state(environment: Mapping[str, str] = os.environ) -> str:
    """always: everybody gets them; set, not set: by GLIBC_TUNABLES, to 1 or 0; none: not to be had here."""
    try:
        mode = MODE.read_text(encoding="ascii")
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        new = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35)
    except (OSError, ValueError, AttributeError):
        return "none"
    if "[always]" in mode:
        return "always"
    if "[madvise]" not in mode or not new:
        return "none"
    return "set" if TUNABLE in environment.get("GLIBC_TUNABLES", "") else "not set"


def restart() -> None:
    """Begin this process anew, asking for large pages, where that is possible and was not done.

    Whoever sets the tunable, to 0 too, has decided. A process that is watched (a debugger, coverage, a profiler) is left alone.
    """
    if state() != "not set" or sys.gettrace() or sys.getprofile() or not sys.executable:
        return
    others = [part for part in os.environ.get("GLIBC_TUNABLES", "").split(":") if part]
    environment = {**os.environ, "GLIBC_TUNABLES": ":".join([*others, f"{TUNABLE}=1"])}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:
        return  # as it was, then
