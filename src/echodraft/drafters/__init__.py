"""One file a method. The table below is all that the command line knows of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from echodraft.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from echodraft.core.drafter import Drafter

T = TypeVar("T")
DRAFTERS: dict[str, str] = {
    "cascade": "echodraft.drafters.cascade:Cascade",
    "goose": "echodraft.drafters.goose:Goose",
    "logitspec": "echodraft.drafters.logitspec:LogitSpec",
    "lookahead": "echodraft.drafters.lookahead:Lookahead",
    "none": "echodraft.drafters.none:NoDrafter",
    "oilbird": "echodraft.drafters.oilbird:Oilbird",
    "ouroboros": "echodraft.drafters.ouroboros:Ouroboros",
    "pld+": "echodraft.drafters.pld_plus:PldPlus",
    "prompt-lookup": "echodraft.drafters.prompt_lookup:PromptLookup",
    "recycling": "echodraft.drafters.recycling:Recycling",
    "rest": "echodraft.drafters.rest:Rest",
    "sam": "echodraft.drafters.sam:Sam",
    "speculative": "echodraft.drafters.speculative:Speculative",
    "suffix": "echodraft.drafters.suffix:Suffix",
    "toolspec": "echodraft.drafters.toolspec:ToolSpec",
}
DEFAULT, WITH_DRAFT_MODEL = "oilbird", "ouroboros"
"""What drafts where nobody says what should, without a draft model and with one."""
DEFAULTS = f"{DEFAULT}, or {WITH_DRAFT_MODEL} where there is a draft model"


def chosen(given: T | None, draft_model: object) -> T | str:
    """What drafts: what is `given`, or where nobody says what should, what suits a draft model or None."""
    return given if given is not None else DEFAULT if draft_model is None else WITH_DRAFT_MODEL


def drafter_class(name: str) -> type[Drafter]:
    """The class of a drafter by its name or by a dotted path `package.module:Class`. Raises `UsageError`."""
    from echodraft.core.drafter import Drafter  # here, so that the table is read in no time: the command line's help names the default

    path = DRAFTERS.get(name, name)
    if ":" not in path:
        raise unknown_name("drafter", name, DRAFTERS)
    module, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"Drafter '{name}' cannot be loaded: {error}. A path of your own reads package.module:Class.") from error
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise UsageError(f"'{name}' is not a drafter. It must be a class derived from echodraft.Drafter.")
    return found


def taken(kind: type[Drafter], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the `parts`, such as a memory, that the constructor of a drafter's class takes; it does without what is None."""
    parameters = inspect.signature(kind).parameters
    return {name: part for name, part in parts.items() if part is not None and name in parameters}
