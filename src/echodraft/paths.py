"""Where echodraft keeps files of its own."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The user's cache folder: $ECHODRAFT_CACHE, else $XDG_CACHE_HOME/echodraft, else ~/.cache/echodraft. It may not exist yet."""
    own = os.environ.get("ECHODRAFT_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "echodraft"
