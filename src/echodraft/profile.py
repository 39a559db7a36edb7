"""A profile: the drafter, knobs and budget that `echodraft tune` found for a pair of models. JSON, checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from echodraft.errors import UsageError


class Profile(BaseModel):
    """What `--profile FILE` stands for; a flag beside it wins.

    options         knobs of the drafter
    budget          "auto" or a number of nodes
    model           that it was found for, for people; not loaded from here
    draft_model     of a drafter that needs one, and
    draft_quantize  "int8", "int4" or None
    found           how, and what it brought
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    drafter: str = Field(min_length=1)
    options: dict[str, bool | int | float | str] = {}
    budget: int | Literal["auto"] = "auto"
    model: str = ""
    draft_model: str | None = None
    draft_quantize: Literal["int8", "int4"] | None = None
    found: dict[str, Any] = {}

    @property
    def method(self) -> str:
        """The drafter with its knobs, as benchmarks name methods."""
        return ":".join([self.drafter, *(f"{name}={_spelled(value)}" for name, value in self.options.items())])

    def flags(self) -> dict[str, Any]:
        """What it says, by the names of the command line's parameters."""
        models = {"draft_model": self.draft_model, "draft_quantize": self.draft_quantize}
        return {
            "drafter": self.drafter,
            "option": [f"{name}={_spelled(value)}" for name, value in self.options.items()],
            "drafters": self.method,
            "budget": str(self.budget),
            **{name: value for name, value in models.items() if value is not None},
        }

    def save(self, path: Path) -> None:
        """Write it whole or not at all. Raises `UsageError`."""
        unfinished = path.with_name(f"{path.name}.unfinished")
        try:
            unfinished.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            raise UsageError(f"The profile {path} cannot be written ({error.strerror or error}). Name another file with --save.") from error


def load_profile(path: Path) -> Profile:
    """Read a profile. Raises `UsageError` where the file holds none."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"There is no profile {path} ({error.strerror or error}). Make one with: echodraft tune --save.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{path} is no profile ({where}: {first['msg']}). Make one with: echodraft tune --save.") from error


def _spelled(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
