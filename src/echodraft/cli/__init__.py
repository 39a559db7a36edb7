"""The command line: one file a command, loaded when it is called, so that help is quick."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from echodraft import __version__, hugepages
from echodraft.cli import console, settings
from echodraft.cli.table import COMMANDS, command, installed
from echodraft.errors import EchodraftError, unknown_name

BROKEN_PIPE = 141
WEIGHTY = frozenset({"ablate", "bench", "cost", "record", "replay", "run", "tune", "verify"})
"""Commands that may load a model."""
PLACES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""What a file system says of a place that cannot be right; a full disk is another matter."""


class Commands(TyperGroup):
    """The commands of the table. Their modules are imported when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if installed(name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.list_commands(ctx):
            raise unknown_name("command", args[0], self.list_commands(ctx))
        name, found, rest = super().resolve_command(ctx, args)
        ctx.default_map = settings.default_map(self.list_commands(ctx))
        return name, found, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(console.INTERRUPTED) from None
        except BrokenPipeError:
            console.abandon()
            raise typer.Exit(BROKEN_PIPE) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Settings: flag > ECHODRAFT_… in the environment > echodraft.toml (or the file named by ECHODRAFT_CONFIG) > default.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"echodraft {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors (works behind a command, too).")] = False,
) -> None:
    """Example: echodraft run "Write a haiku about rain" --stats

    Any Hugging Face causal language model, several tokens a forward: the same output, no training.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    argv = list(sys.argv[1:] if args is None else args)
    if args is None and WEIGHTY.intersection(argv[:1]):
        hugepages.restart()
    debug = "--debug" in argv or os.environ.get("ECHODRAFT_DEBUG", "") not in ("", "0")
    console.prepare(debug)
    sys.exit(_run([part for part in argv if part != "--debug"], debug))


def _run(argv: list[str], debug: bool) -> int:
    try:
        code = app(argv, prog_name="echodraft", standalone_mode=False)
        return console.finish(code if isinstance(code, int) else 0)
    except SystemExit as end:
        return console.finish(end.code if isinstance(end.code, int) else int(end.code is not None))
    except (KeyboardInterrupt, typer.Abort):
        return console.INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _told(error)


def _told(error: Exception) -> int:
    """Say what went wrong in one line; the exit code."""
    if isinstance(error, EchodraftError):
        console.error(str(error))
        return error.exit_code
    if hasattr(error, "format_message"):  # the command line's own: typer has its classes from click or from a copy of it
        context = getattr(error, "ctx", None)
        if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            path = context.command_path if context is not None else "echodraft"
            console.error(f"{error.format_message().rstrip('.')}{settings.origin(error)}. See: {path} -h")
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, OSError) and error.filename is not None:
        console.error(f"'{error.filename}' cannot be used: {error.strerror}. Name another place, or see to this one.")
        return 2 if isinstance(error, PLACES) else 1
    console.error(f"{type(error).__name__}: {error} (unexpected; --debug shows where)")
    return 1
