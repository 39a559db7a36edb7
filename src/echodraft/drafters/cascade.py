"""Cascade: the draft model is drafted for as well."""

from __future__ import annotations

from echodraft.core.backend import Need
from echodraft.core.budget import Policy
from echodraft.core.draft_model import DraftModel
from echodraft.core.drafter import Drafter
from echodraft.drafters import drafter_class
from echodraft.drafters.speculative import Speculative
from echodraft.errors import UsageError


class Cascade(Speculative):
    """Speculative decoding whose draft model speculates too: a cheap drafter guesses trees that the draft model checks.

    Source: the vertical cascade of CS-Drafting (arXiv 2312.11462), without its lenient acceptance between drafters: the draft is what the
    draft model says alone, in fewer of its forwards. Needs: a draft model.

    drafter  any drafter without a model of its own; it sees the text and the draft so far, and remembers nothing of earlier requests
    gamma, top_k, confidence, heuristic  as of speculative
    """

    name = "cascade"

    def __init__(
        self,
        drafter: str = "suffix",
        gamma: int = 0,
        top_k: int = 3,
        confidence: float = 0.0,
        heuristic: bool = False,
        draft_model: DraftModel | None = None,
    ) -> None:
        if Need.MODEL in drafter_class(drafter).needs:
            raise UsageError(f"cascade: '{drafter}' needs a draft model of its own. Choose a drafter without one, such as suffix.")
        self.drafter = drafter
        super().__init__(gamma, top_k, confidence, heuristic, width=0, draft_model=draft_model)

    def under(self, model: DraftModel) -> tuple[Drafter, Policy]:
        made = model.make_drafter(self.drafter)
        return made, model.make_policy(made)
