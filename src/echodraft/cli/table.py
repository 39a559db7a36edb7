"""Which commands there are and where they live. A module holds `app` (a `typer.Typer`) or `command` (a function)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import typer
from typer.main import get_command

ENVIRONMENT = "ECHODRAFT"


class Entry(NamedTuple):
    module: str
    help: str


COMMANDS = {
    "run": Entry("echodraft.cli.run", "Answer a prompt, streamed."),
    "bench": Entry("echodraft.cli.bench", "Measure drafters against plain decoding."),
    "compare": Entry("echodraft.cli.compare", "What changed between two runs of bench; fails where it got worse."),
    "verify": Entry("echodraft.cli.verify", "Check every drafter against plain decoding, token for token."),
    "inspect": Entry("echodraft.cli.inspect", "A trace of --trace: every step's tree, what was refused, why it ended."),
    "report": Entry("echodraft.cli.report", "One page from the folder of a bench."),
    "record": Entry("echodraft.cli.record", "Write down what a model says to a suite, for replay."),
    "replay": Entry("echodraft.cli.replay", "Try drafters on a recording, without the model."),
    "ablate": Entry("echodraft.cli.ablate", "What each part of a method brings, by replay: the papers' tables."),
    "tune": Entry("echodraft.cli.tune", "Find the fastest settings of a drafter, by replay and a short live check."),
    "diagnose": Entry("echodraft.cli.diagnose", "What lexical drafts miss of what was said before, and what hidden states find."),
    "cost": Entry("echodraft.cli.cost", "Measure what a forward of n tokens costs here, and keep it."),
    "store": Entry("echodraft.cli.store", "What drafters remember between runs, and corpora: info, prune, forget, export, build."),
    "bench-store": Entry("echodraft.cli.bench_store", "Measure what drafters remember in: time and bytes a token, time a draft."),
    "ls": Entry("echodraft.cli.ls", "List drafters and backends."),
    "models": Entry("echodraft.cli.models", "The embedded model: list, pull, path."),
    "doctor": Entry("echodraft.cli.doctor", "What is installed here and what works."),
}


@cache
def installed(name: str) -> bool:
    """Whether the command's module is part of this installation."""
    return find_spec(COMMANDS[name].module) is not None


@cache
def command(name: str) -> Any:
    """The command `name`, its module imported. Its options read ECHODRAFT_<OPTION>."""
    module = import_module(COMMANDS[name].module)
    inner = getattr(module, "app", None)
    if inner is None:
        inner = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        inner.command(name)(module.command)
    found = get_command(inner)
    _environment(found)
    return found


def _environment(found: Any) -> None:
    """Every option reads its variable; help says so once, not at every option."""
    found.context_settings = {**found.context_settings, "auto_envvar_prefix": ENVIRONMENT}
    for parameter in found.params:
        parameter.show_envvar = False
    for child in getattr(found, "commands", {}).values():
        _environment(child)
