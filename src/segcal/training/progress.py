"""How a run tells what it does: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any

from segcal.core.progress import Progress, format_duration


class Reporter(Progress):
    """Progress of a run: one bar for the epoch, one line for every finished epoch."""

    def __init__(self, epochs: int, *, silent: bool = False) -> None:
        super().__init__(silent=silent)
        self.epochs = epochs
        self._started = time.monotonic()
        self._first_epoch = 0

    def start_run(self, epoch: int) -> None:
        self._started, self._first_epoch = time.monotonic(), epoch

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
        text = f"{_parts(losses)} · {rate:.0f}/s · {format_duration(left)} left"
        self.update("epoch", done, steps, title=f"epoch {epoch + 1}/{self.epochs}", text=text)

    def end_epoch(self, row: dict[str, Any]) -> None:
        done = int(row["epoch"]) + 1
        left = (time.monotonic() - self._started) / max(done - self._first_epoch, 1)
        text = f"epoch {done}/{self.epochs}  lr {row['lr']:.3g}  {_parts(row['losses'])}"
        if "val" in row:
            shown = ("dsc", "ece", "cece")
            text += "  val " + " ".join(f"{k} {_number(row['val'][k])}" for k in shown)
        text += f"  {row['seconds']:.1f} s, {format_duration(left * (self.epochs - done))} left"
        self.say(text)
        if done - self._first_epoch == 1:  # the first epoch compiled: the others tell the time
            self.start_run(done)


def _parts(losses: dict[str, float]) -> str:
    parts = [f"{k} {_number(v)}" for k, v in losses.items() if k != "loss"]
    tail = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"loss {_number(losses['loss'])}{tail}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
