"""Progress on stderr: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    from rich.progress import TaskID

# What long-running functions call: what is being done, how many are done, how many there are.
ProgressCallback: TypeAlias = Callable[[str, int, int | None], None]


def no_progress(what: str, done: int, total: int | None) -> None:
    """A ProgressCallback that shows nothing."""


class Progress:
    """Any number of bars, each with a title, a count and a free text; and lines above them.

    Args:
        silent: print nothing (in all processes but the first, for example).
    """

    def __init__(self, *, silent: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True, quiet=silent, soft_wrap=True)
        self.live = self.console.is_terminal and not silent
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            transient=True,
            disable=not self.live,
        )
        self._ids: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False)

    def update(
        self, key: str, done: int, total: int | None, *, title: str | None = None, text: str = ""
    ) -> None:
        """Show or move the bar `key`; its title is `key` unless another is given."""
        title = (title if title is not None else key).replace("[", r"\[")
        if key not in self._ids:
            self._ids[key] = self._bars.add_task(title, total=total, text="")
        self._bars.update(
            self._ids[key],
            completed=done, total=total, description=title, text=text.replace("[", r"\["),
        )  # fmt: skip

    def remove(self, key: str) -> None:
        if key in self._ids:
            self._bars.remove_task(self._ids.pop(key))


@contextmanager
def show_progress() -> Iterator[ProgressCallback]:
    """A bar for whatever the yielded function is called with; it is removed at the end."""
    with Progress() as progress:
        current, started = "", time.monotonic()

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal current, started
            if what != current:
                progress.remove(current)
                current, started = what, time.monotonic()
            left = ""
            if done and total:
                seconds = (time.monotonic() - started) / done * (total - done)
                left = f"{format_duration(seconds)} left"
            progress.update(what, done, total, text=left)

        yield show


def format_duration(seconds: float) -> str:
    """90 → "1:30", 7200 → "2:00:00"."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
