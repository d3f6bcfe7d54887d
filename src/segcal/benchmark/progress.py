"""What a study tells while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from segcal.benchmark.tasks import Result, Task
from segcal.evaluation import read_evaluation
from segcal.evaluation.evaluation_files import epochs_done


class Progress:
    """Runs done and running, on stderr. `total` may grow; calibration is that of `region`."""

    def __init__(
        self, study: Path, total: int, *, region: str = "foreground", silent: bool = False
    ) -> None:
        self.study, self.total, self.region = study, total, region
        self.done = 0
        self.running: dict[str, tuple[Task, int, float]] = {}
        self.console = Console(stderr=True, quiet=silent, soft_wrap=True)
        self._live = Live(console=self.console, transient=True, auto_refresh=False)
        self._shows = self.console.is_terminal and not silent
        self._begun, self._worked = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        if self._shows:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shows:
            self._live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def start(self, task: Task) -> None:
        before = epochs_done(self.study / task.folder)
        self.running[task.folder] = task, before, time.monotonic()
        self.tick()

    def end(self, task: Task, result: Result) -> None:
        self.running.pop(task.folder, None)
        self.done += 1
        self._worked += 1
        left = f", {duration(self._left())} left" if self.done < self.total else ""
        text = f"{self.done}/{self.total} {task.run} {result.state}"
        if result.state == "done":
            text += f": {self._scores(task)}  {result.seconds:.1f} s{left}"
        else:
            text += f": {result.error}{left}"
        self.say(text)
        self.tick()

    def tick(self) -> None:
        if self._shows:
            self._live.update(self._picture(), refresh=True)

    def _scores(self, task: Task) -> str:
        split = "test" if "test" in task.splits else task.splits[0]
        found = read_evaluation(self.study / task.folder, split)
        means = found.means(self.region) if found is not None else {}
        names = {"dsc": "DSC", "ece": f"ECE ({self.region})"}
        shown = [f"{title} {means[name]:.4f}" for name, title in names.items() if name in means]
        return f"{split} {' '.join(shown)}"

    def _share(self, task: Task, before: int) -> float:
        """How much of the task this process has done; evaluation counts as one epoch."""
        epochs = int(task.config["epochs"])
        return (epochs_done(self.study / task.folder) - before) / max(epochs + 1 - before, 1)

    def _left(self) -> float:
        worked = self._worked + sum(
            self._share(t, before) for t, before, _ in self.running.values()
        )
        rest = self.total - self.done - (worked - self._worked)
        return (time.monotonic() - self._begun) / max(worked, 1e-3) * rest

    def _picture(self) -> Group:
        head = Table.grid(padding=(0, 1))
        known = self._worked or any(self._share(t, b) > 0 for t, b, _ in self.running.values())
        left = f"{duration(self._left())} left" if known else ""
        bar = ProgressBar(total=max(self.total, 1), completed=self.done, width=30)
        head.add_row("runs", bar, f"{self.done}/{self.total}", left)
        rows = Table.grid(padding=(0, 2))
        for task, _, since in self.running.values():
            epochs = int(task.config["epochs"])
            epoch = min(epochs_done(self.study / task.folder), epochs)
            what = f"epoch {epoch}/{epochs}" if epoch < epochs else "evaluating"
            rows.add_row(Text(f"  {task.run}"), what, duration(time.monotonic() - since))
        return Group(head, rows)


def duration(seconds: float) -> str:
    """90 → "1:30", 7200 → "2:00:00"."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
