"""How a run tells what it does: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Reporter:
    """Progress of a run on stderr; silent in all processes but the first."""

    def __init__(self, epochs: int, *, silent: bool = False) -> None:
        self.epochs = epochs
        self.console = Console(stderr=True, quiet=silent, soft_wrap=True)
        self._live = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            transient=True,
            disable=silent or not self.console.is_terminal,
        )
        self._task = self._live.add_task("", epoch="", text="", visible=False)
        self._started = time.monotonic()
        self._first_epoch = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def start_run(self, epoch: int) -> None:
        self._started, self._first_epoch = time.monotonic(), epoch

    def start_epoch(self, epoch: int, steps: int) -> None:
        self._live.update(
            self._task, epoch=f"{epoch + 1}/{self.epochs}", total=steps, completed=0, visible=True
        )

    def step(
        self, epoch: int, done: int, steps: int, losses: dict[str, float], rate: float
    ) -> None:
        """`rate` is items per second; time left is judged by all steps but the first epoch's."""
        share = epoch - self._first_epoch + done / steps
        left = (
            (time.monotonic() - self._started)
            / max(share, 1e-9)
            * (self.epochs - self._first_epoch - share)
        )
        text = f"{_parts(losses)} · {rate:.0f}/s · {duration(left)} left"
        self._live.update(self._task, completed=done, text=text)

    def end_epoch(self, row: dict[str, Any]) -> None:
        done = int(row["epoch"]) + 1
        left = (time.monotonic() - self._started) / max(done - self._first_epoch, 1)
        text = f"epoch {done}/{self.epochs}  lr {row['lr']:.3g}  {_parts(row['losses'])}"
        if "val" in row:
            shown = ("dsc", "ece", "cece")
            text += "  val " + " ".join(f"{k} {_number(row['val'][k])}" for k in shown)
        text += f"  {row['seconds']:.1f} s, {duration(left * (self.epochs - done))} left"
        self.say(text)
        if done - self._first_epoch == 1:  # the first epoch compiled: the others tell the time
            self.start_run(done)


def _parts(losses: dict[str, float]) -> str:
    parts = [f"{k} {_number(v)}" for k, v in losses.items() if k != "loss"]
    tail = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"loss {_number(losses['loss'])}{tail}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def duration(seconds: float) -> str:
    """90 → "1:30", 7200 → "2:00:00"."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
