"""The draft model of a replay: the real one, asked where its memo does not know the answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from echodraft.backends.memo import MemoBackend, Sayings
from echodraft.bench.recording import Recording
from echodraft.bench.rounding import dtype_of
from echodraft.build import curve_for, draft_model, identity_of, plain
from echodraft.core.budget import CPU_CURVE, CostCurve
from echodraft.core.draft_model import DraftModel
from echodraft.curves import find_curve
from echodraft.decoder import Decoder
from echodraft.errors import UsageError
from echodraft.text.tokenizer import Text

log = logging.getLogger("echodraft")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Drafting:
    """A draft model for `replay`, and where what it said is kept: a file beside the recording, for this model, dtype and quantisation.

    model  as drafters get it; its backend is `memo`
    """

    model: DraftModel
    memo: MemoBackend
    path: Path
    about: Mapping[str, Any]

    def save(self) -> None:
        """Keep what was said; a folder that cannot be written is told, not raised."""
        self.memo.sayings.save(self.path, self.about)

    def keeping(self, rows: Iterable[T]) -> Iterator[T]:
        """Rows that are made with it, one by one: what was said is kept after each, so that a kill or an error loses one row's at most."""
        try:
            for row in rows:
                yield row
                self.save()
        except BaseException:
            self.save()
            raise


def load_draft(
    recording: Recording, text: Text | None, name: str, quantize: str | None, price: str | None, target: CostCurve | None
) -> Drafting:
    """The draft model `name` beside the recorded model.

    text    of the recorded model; without it the draft model is taken to have the same ids
    price   what its forward costs: a number of plain steps of the target, or a measured curve (file or name); None = as measured here
    target  the recorded model's curve

    Raises `UsageError` where nobody knows what its forwards cost.
    """
    if text is None:
        log.warning("The recorded model's tokenizer is not here, so the draft model is taken to have its ids.")
    draft = plain(name, quantize=quantize)
    return remembering(recording, text, draft, quantize, *priced(price, curve_for(draft.name, draft.engine.backend), target))


def remembering(recording: Recording, text: Text | None, draft: Decoder, quantize: str | None, cost: float, curve: CostCurve) -> Drafting:
    """A draft model that is loaded, and what its forwards cost (see `priced`), beside the recorded model."""
    backend = draft.engine.backend
    about = {**asdict(identity_of(draft)), "dtype": dtype_of(backend), "quantize": quantize}
    del about["name"]  # the same model may lie elsewhere
    digest = sha256(repr(sorted(about.items())).encode()).hexdigest()[:12]
    path = recording.folder / f"memo-{re.sub(r'[^A-Za-z0-9.]+', '-', Path(draft.name).name)}-{digest}.safetensors"
    sayings = Sayings()
    sayings.load(path, about)
    memo = MemoBackend(backend, sayings)
    text = text or Text(None, recording.manifest.get("eos", ()))
    return Drafting(draft_model(text, draft, memo, curve, cost), memo, path, about)


def priced(price: str | None, own: CostCurve, target: CostCurve | None) -> tuple[float, CostCurve]:
    """What a forward of one row costs, in those of the target, and the curve of more rows. Raises `UsageError`."""
    try:
        cost = float(price or "")
    except ValueError:
        curve = own if price is None else find_curve(price)
        if curve.seconds and target is not None and target.seconds:
            return curve.seconds[0] / target.seconds[0], curve
        raise UsageError(
            "What a forward of the draft model costs is not known. Name it in forwards of the model, such as --draft-cost 0.3, or measure "
            "both with echodraft cost and name the model's file with --cost."
        ) from None
    if not 0.0 < cost < float("inf"):
        raise UsageError(f"A forward of the draft model costs more than 0, not {price}.")
    return cost, CPU_CURVE if target is None else target
