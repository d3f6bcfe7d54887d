"""Progress of a run: a bar for the epoch in a terminal, a line per epoch, and TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from segcal.core.progress import Progress, format_duration


class Reporter(Progress):
    """Shows the steps of the current epoch and the results of finished epochs."""

    def __init__(self, epochs: int, *, silent: bool = False) -> None:
        super().__init__(silent=silent)
        self.epochs = epochs
        self.start_timing(0)

    def start_timing(self, epoch: int) -> None:
        """Estimate the remaining time from `epoch` on."""
        self._started, self._first_epoch = time.monotonic(), epoch

    def step(
        self, epoch: int, done: int, steps: int, losses: dict[str, float], rate: float
    ) -> None:
        """Show `done` of `steps`; `rate` is items per second."""
        text = f"{_losses(losses)} · {rate:.0f}/s · {self._left(epoch + done / steps)} left"
        self.update("epoch", done, steps, title=f"epoch {epoch + 1}/{self.epochs}", text=text)

    def end_epoch(self, row: dict[str, Any]) -> None:
        """Print a row of the log."""
        done = int(row["epoch"]) + 1
        text = f"epoch {done}/{self.epochs}  lr {row['lr']:.3g}  {_losses(row['losses'])}"
        if "val" in row:
            val = row["val"]
            text += f"  val dsc {_number(val['dsc'])}"
            for name in ("ece", "cece"):
                text += f" {name} ({val['region']}) {_number(val[name])}"
        self.say(f"{text}  {row['seconds']:.1f} s, {self._left(done)} left")
        if done - self._first_epoch == 1:  # compiling made the first epoch slower than the others
            self.start_timing(done)

    def _left(self, done: float) -> str:
        """Time left after `done` epochs, at the mean speed so far."""
        passed = max(done - self._first_epoch, 1e-9)
        per_epoch = (time.monotonic() - self._started) / passed
        return format_duration(per_epoch * (self.epochs - done))


def _losses(losses: dict[str, float]) -> str:
    parts = [f"{k} {_number(v)}" for k, v in losses.items() if k != "loss"]
    tail = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"loss {_number(losses['loss'])}{tail}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def open_tensorboard(folder: Path, epoch: int) -> Any:
    """A `SummaryWriter`; curves from `epoch` on, which are trained again, are dropped."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=epoch)


def add_row(writer: Any, row: dict[str, Any]) -> None:
    """Add a row of the log to the curves."""
    curves = {"lr": row["lr"], "seconds": row["seconds"]}
    curves |= {f"train/{name}": value for name, value in row["losses"].items()}
    validation = row.get("val", {})
    curves |= {f"val/{k}": value for k, value in validation.items() if isinstance(value, float)}
    for name, value in validation.get("dsc_by_label", {}).items():
        if value is not None:
            curves[f"val_dsc/{name}"] = value
    for name, value in curves.items():
        writer.add_scalar(name, value, row["epoch"])
    writer.flush()
