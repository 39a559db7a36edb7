"""Whether the Hugging Face hub can be asked, found out in seconds: its client retries for most of a minute before it gives up."""

from __future__ import annotations

import os
import threading
from functools import cache

PATIENCE = 4.0
"""Seconds that the hub has to answer at all."""


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


@cache
def answers(name: str) -> bool | None:
    """Whether the hub has a model of this name for this user; None where it does not answer or must not be asked."""
    if offline():
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    found: list[bool] = []

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=PATIENCE)
            found.append(True)
        except (HfHubHTTPError, HFValidationError):
            found.append(False)
        except Exception:
            return

    # Looking up a host may hang longer than any timeout of a connection.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE + 1.0)
    return found[0] if found else None


def cached(name: str) -> bool:
    """Whether some of the model is in the Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in ("config.json", "tokenizer_config.json"))
    except HFValidationError:
        return False
