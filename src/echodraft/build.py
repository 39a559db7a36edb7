"""Names and options in, a decoder out: the only place that wires the parts together."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from echodraft.backends import BACKENDS
from echodraft.core.backend import Backend, Need, Shape
from echodraft.core.budget import CPU_CURVE, GPU_CURVE, Adaptive, Calibration, CostCurve, Fixed, Policy
from echodraft.core.draft_model import DraftModel
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine
from echodraft.core.retokenize import OtherIds
from echodraft.curves import cost_file, load_curve
from echodraft.decoder import Decoder
from echodraft.drafters import chosen, drafter_class, taken
from echodraft.drafters.none import NoDrafter
from echodraft.errors import Unsupported, UsageError, unknown_name
from echodraft.memory import Limits, Memory
from echodraft.stores.folder import Identity
from echodraft.text.tokenizer import Text

log = logging.getLogger("echodraft")

QUANTIZED = {"int8": 1.0, "int4": 0.625}
"""What a draft model may be quantised to, and bytes a weight."""


def load(
    model: Any = None,
    *,
    drafter: str | type[Drafter] | Drafter | None = None,
    drafter_options: Mapping[str, Any] | None = None,
    backend: str = "transformers",
    tokenizer: Any = None,
    dtype: str = "auto",
    device: str = "auto",
    attn: str = "sdpa",
    budget: str | int = "auto",
    pack: bool = True,
    trust_remote_code: bool = False,
    memory: Memory | str | Path | None = None,
    draft_model: Any = None,
    draft_dtype: str = "auto",
    draft_quantize: str | None = None,
) -> Decoder:
    """A decoder for a model.

    model              a folder, a local .gguf file, a name on the Hugging Face hub or a loaded `PreTrainedModel`; None = the embedded model
    drafter            a name (`echodraft ls drafters`), a path "package.module:Class", a class or an object; by default "oilbird", with a
                       draft model "ouroboros"
    drafter_options    its knobs
    backend            "transformers", or "toy" for a language model without weights
    tokenizer          a tokenizer or where to load it from; by default the model's. A loaded model without one takes ids only
    dtype              "auto" (the model's own), "float32", "bfloat16", "float16"
    device             "auto" (CUDA where there is one), "cpu", "cuda", …
    attn               "sdpa" or "eager"
    budget             "auto" drafts where it pays; a number is the size of every draft, 0 no drafting
    pack               prepack the weights of CPU models: faster drafts for more memory
    trust_remote_code  run Python code that comes with the model
    memory             what drafters remember from one request to the next, by tenant: a `Memory`, or the folder of one, which
                       `decoder.memory.save()` writes; by default it lives as long as the decoder
    draft_model        a second, smaller model for drafters that need one: given as `model` is, or a `Decoder`
    draft_dtype        its dtype
    draft_quantize     "int8" or "int4" rounds its weights on a CPU: quicker drafts that are right less often; the output stays as it is

    Raises `UsageError`, `Unsupported` or `EchodraftError`, each with what to do.
    """
    if backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    drafter = chosen(drafter, draft_model)
    check_budget(budget)
    check_quantize(draft_quantize)
    if draft_quantize and draft_model is None:
        raise UsageError("There is no draft model to quantise. Name one with --draft-model (draft_model= in Python).")
    if isinstance(memory, str | Path):
        memory = Memory(memory)
    make_drafter(drafter, drafter_options or {})  # a wrong name or knob is told before anything is loaded
    if backend == "toy":
        from echodraft.backends.toy import ToyBackend, ToyTokenizer

        if model is not None:
            log.warning("The toy backend brings its own model; '%s' is not loaded.", model)
        toy: Any = ToyBackend()
        bare = Decoder(Engine(toy, NoDrafter(), Fixed(0)), Text(tokenizer or ToyTokenizer()), "toy")
    else:
        bare = _load_transformers(model, tokenizer, dtype, device, attn, pack, trust_remote_code)
    if draft_model is not None:
        bare.draft = _load_draft(bare, draft_model, draft_dtype, device, attn, pack, trust_remote_code, draft_quantize)
    return redraft(bare, drafter, drafter_options, budget, memory)


def _load_draft(
    target: Decoder, model: Any, dtype: str, device: str, attn: str, pack: bool, trust_remote_code: bool, quantize: str | None
) -> Decoder:
    """A plain decoder of the draft model, where the target is."""
    toy = getattr(target.engine.backend, "model", None) is None
    if (quantize or dtype != "auto") and (isinstance(model, Decoder) or toy):
        raise UsageError("This draft model is taken as it is. Leave out --draft-quantize (draft_quantize=) and draft_dtype.")
    if isinstance(model, Decoder):
        return model
    if toy:
        return load(None if model == "toy" else model, backend="toy", drafter="none", budget=0)
    if not isinstance(model, str | Path):
        device = "auto"
    found = _load_transformers(model, None, dtype, device, attn, pack, trust_remote_code, quantize)
    if found.engine.backend.shape == Shape.NONE:
        raise Unsupported("The draft model keeps a recurrent state, which no rejected draft can be taken out of. Choose another.")
    return found


def check_quantize(quantize: str | None) -> None:
    """Raises `UsageError` for what a draft model cannot be quantised to."""
    if quantize not in (None, *QUANTIZED):
        raise UsageError(f"A draft model is quantised to {' or '.join(QUANTIZED)} or not at all, not to '{quantize}'.")


def plain(model: str | None, dtype: str = "auto", device: str = "auto", quantize: str | None = None) -> Decoder:
    """A model without a drafter, to be measured; quantised as a draft model may be. Raises `UsageError`."""
    check_quantize(quantize)
    return _load_transformers(model, None, dtype, device, "sdpa", True, False, quantize)


def _load_transformers(
    model: Any,
    tokenizer: Any,
    dtype: str,
    device: str,
    attn: str,
    pack: bool,
    trust_remote_code: bool,
    quantize: str | None = None,
) -> Decoder:
    """A plain decoder of a Hugging Face model."""
    from echodraft.backends.transformers_load import eos_ids, load_model, load_tokenizer
    from echodraft.backends.transformers_support import make_backend

    source: str | Path | None = None
    if model is None:
        from echodraft.models import embedded

        source = embedded()
    elif isinstance(model, str | Path):
        source = model
    elif dtype != "auto" or device != "auto":
        raise UsageError("A loaded model is taken as it is. Leave out dtype and device, or load it so.")
    if source is not None:
        model = load_model(source, dtype, device, attn, trust_remote_code)
    if isinstance(tokenizer, str | Path) or (tokenizer is None and source is not None):
        tokenizer = load_tokenizer(tokenizer or source or "", trust_remote_code)
    made, told = make_backend(model, pack, quantize=quantize)
    if told:
        log.warning("%s", told)
    gguf = str(source).lower().endswith(".gguf")
    text = Text(tokenizer, eos_ids(model, tokenizer, gguf))
    name = str(source or getattr(model, "name_or_path", "") or type(model).__name__)
    return Decoder(Engine(made, NoDrafter(), Fixed(0)), text, name)


def redraft(
    decoder: Decoder,
    drafter: str | type[Drafter] | Drafter = "none",
    options: Mapping[str, Any] | None = None,
    budget: str | int = "auto",
    memory: Memory | None = None,
) -> Decoder:
    """A decoder with the same model and text but another drafter, as comparisons need it. Nothing is loaded again."""
    check_budget(budget)
    backend, text, name, draft = decoder.engine.backend, decoder.text, decoder.name, decoder.draft
    parts = {"memory": memory, "text": _words(text), "draft_model": None if draft is None else draft_part(decoder, draft)}
    made = make_drafter(drafter, options or {}, parts)
    if Need.MODEL in made.needs and draft is None and not isinstance(drafter, Drafter):
        raise Unsupported(f"Drafter '{made.name}' needs a draft model. Name one with --draft-model (draft_model= in Python).")
    engine = make_engine(backend, made, budget, curve_for(name, backend))
    redrafted = Decoder(engine, text, name, _bound(memory, decoder), draft)
    redrafted.identity = decoder.identity
    return redrafted


def _words(text: Text) -> Text | None:
    return text if text.tokenizer is not None else None


def draft_part(target: Decoder, draft: Decoder) -> DraftModel:
    """The draft model as drafters get it."""
    backend, curve = draft.engine.backend, curve_for(draft.name, draft.engine.backend)
    cost = relative_cost(curve, backend, curve_for(target.name, target.engine.backend), target.engine.backend)
    return draft_model(target.text, draft, backend, curve, cost)


def draft_model(text: Text, draft: Decoder, backend: Backend, curve: CostCurve, cost: float) -> DraftModel:
    """A draft model beside a target with this `text`: `backend` is the draft's own or one that stands for it."""
    return DraftModel(
        backend,
        # What it makes up is not for other requests to see.
        lambda name: make_drafter(name, {}, {"text": _words(draft.text), "memory": Memory(limits=Limits(tokens=0, days=0.0))}),
        lambda drafter: make_policy("auto", curve, drafter),
        draft.text.eos,
        cost=cost,
        curve=curve,
        reading=None if text.same_ids(draft.text) else lambda: OtherIds(text, draft.text),
        name=draft.name,
    )


def _bound(memory: Memory | None, decoder: Decoder) -> Memory | None:
    """The memory, told whose it is."""
    if memory is not None:
        memory.bind(identity_of(decoder))
    return memory


def identity_of(decoder: Decoder) -> Identity:
    """Whose tokens the decoder makes. Worked out once: it takes a look at every weight."""
    if decoder.identity is None:
        backend = decoder.engine.backend
        model = getattr(backend, "model", None)
        if model is None:
            decoder.identity = Identity(f"{type(backend).__name__} of {backend.vocab_size}", "", decoder.name)
        else:
            from echodraft.backends.transformers_identity import identify

            decoder.identity = identify(model, decoder.text.tokenizer, decoder.name)
    return decoder.identity


PARTS = ("memory", "text", "draft_model")
"""What a drafter's class gets from here if its constructor has a parameter of this name: parts, not knobs.

memory       the `Memory` that outlives a request
text         `core.drafter.Words` of the target
draft_model  the second model: a `core.draft_model.DraftModel`, which `core.draft_model.DraftEngine` drives
"""


def make_drafter(drafter: str | type[Drafter] | Drafter, options: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> Drafter:
    """A drafter by name, path, class or as it is. Raises `UsageError` for a wrong name or knob.

    A class gets those of the `parts` that it takes; what is missing or None it does without: a memory of its own life, no text, no model.
    """
    if isinstance(drafter, Drafter):
        if options:
            raise UsageError("A drafter that is made already takes no options. Pass its class or its name.")
        return drafter
    kind = drafter_class(drafter) if isinstance(drafter, str) else drafter
    knobs = knobs_of(kind)
    given = {name.replace("-", "_"): value for name, value in options.items()}
    for name, value in given.items():
        if name not in knobs:
            if not knobs:
                raise UsageError(f"Drafter '{kind.name}' has no options, so it takes no '{name}'.")
            raise unknown_name(f"option of {kind.name}", name, knobs)
        if not _suits(value, knobs[name].default):
            usual = type(knobs[name].default).__name__
            raise UsageError(f"Option {name} of {kind.name} is of type {usual} (default {knobs[name].default}), not '{value}'.")
    return kind(**given, **taken(kind, parts or {}))


def knobs_of(kind: type[Drafter]) -> dict[str, inspect.Parameter]:
    """The options of a drafter's class by name."""
    parameters = inspect.signature(kind).parameters
    return {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD and name not in PARTS}


def takes(drafter: str | type[Drafter], part: str) -> bool:
    """Whether a drafter of this class, name or path takes a part of `PARTS`. Raises `UsageError`."""
    return part in inspect.signature(drafter_class(drafter) if isinstance(drafter, str) else drafter).parameters


def _suits(value: Any, default: Any) -> bool:
    """Whether a knob with this default may have this value; knobs with defaults of other kinds check themselves."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) == isinstance(value, bool) or not isinstance(default, bool | int | float | str)
    if isinstance(default, float):
        return isinstance(value, int | float)
    return isinstance(value, type(default)) if isinstance(default, int | str) else True


def relative_cost(curve: CostCurve, backend: Backend, own: CostCurve, target: Backend) -> float:
    """A one-row forward of a draft model, in those of the target: as `echodraft cost` measured both, else by the bytes that each reads."""
    if curve.seconds and own.seconds:
        return curve.seconds[0] / own.seconds[0]
    return _bytes(backend) / _bytes(target)


def _bytes(backend: Any) -> int:
    if not hasattr(backend, "model"):
        return 1
    size = QUANTIZED.get(getattr(getattr(backend, "packed", None), "kind", ""))
    return sum(p.numel() * (size or p.element_size()) for p in backend.model.parameters())


def check_budget(budget: str | int) -> None:
    """Raises `UsageError` unless `budget` is "auto" or a number of nodes."""
    if budget != "auto" and (isinstance(budget, str | bool) or budget < 0):
        raise UsageError(f"budget must be 'auto' or a number of nodes from 0 on, not '{budget}'.")


def make_engine(backend: Backend, drafter: Drafter, budget: str | int, curve: CostCurve) -> Engine:
    """An engine whose budget suits the drafter as it is over this backend: it may have learned what it goes without (`Drafter.spare`)."""
    engine = Engine(backend, drafter, Fixed(0))
    engine.policy = make_policy(budget, curve, drafter)
    return engine


def make_policy(budget: str | int, curve: CostCurve, drafter: Drafter) -> Policy:
    """Drafts where it pays on `curve`, or a fixed number of nodes."""
    if not isinstance(budget, str):
        return Fixed(budget)
    calibration = Calibration(inf) if drafter.calibrated else Calibration(trusted=drafter.trusted)
    return Adaptive(curve, draft=drafter.cost, calibration=calibration)


def curve_file(name: str, backend: Backend) -> Path:
    """Where the measured curve of a loaded model belongs."""
    dtype = getattr(getattr(backend, "packed", None), "kind", "") or getattr(getattr(backend, "model", None), "dtype", "float32")
    return cost_file(name, str(dtype), str(getattr(getattr(backend, "device", None), "type", "cpu")))


def curve_for(name: str, backend: Backend) -> CostCurve:
    """What forwards cost here: measured by `echodraft cost` if it ever ran for this model, dtype and device, else the built-in curve."""
    device = getattr(backend, "device", None)
    kind = str(getattr(device, "type", "cpu"))
    built_in = GPU_CURVE if kind == "cuda" else CPU_CURVE
    path = curve_file(name, backend)
    if not path.is_file():
        return built_in
    try:
        return load_curve(path)
    except UsageError as error:
        log.warning("%s", error)
        return built_in
