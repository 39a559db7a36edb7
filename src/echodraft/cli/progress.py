"""How far a long command is."""

from __future__ import annotations


class Bar:
    """A bar on stderr with the time left; nothing where nobody watches."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        screen = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=screen, disable=not screen.is_terminal)
        self._task = self._bar.add_task("", total=total)
        self._done = 0

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, count: int, said: str = "") -> None:
        """`count` more are done; `said` is shown beside the bar."""
        self._bar.update(self._task, advance=count, description=said)
