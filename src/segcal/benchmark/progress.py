"""Progress of a study: one bar for all runs and one for each run in progress."""

from __future__ import annotations

import time
from pathlib import Path

from segcal.benchmark.tasks import Result, Task
from segcal.core.progress import Progress, format_duration
from segcal.study import epochs_done


class StudyProgress(Progress):
    """Shows finished runs and runs in progress."""

    def __init__(self, study: Path, total: int, *, silent: bool = False) -> None:
        super().__init__(silent=silent)
        self.study, self.total = study, total
        self.done = 0
        self.running: dict[str, tuple[Task, int, float]] = {}
        self._begun, self._worked = time.monotonic(), 0.0

    def start(self, task: Task) -> None:
        before = epochs_done(self.study / task.folder)
        self.running[task.folder] = task, before, time.monotonic()
        self.tick()

    def end(self, task: Task, result: Result) -> None:
        self.running.pop(task.folder, None)
        self.remove(task.folder)
        self.done += 1
        self._worked += 1
        left = f", {format_duration(self._left())} left" if self.done < self.total else ""
        text = f"{self.done}/{self.total} {task.run} {result.state}"
        if result.state == "done":
            text += f": {_scores(task, result)}  {result.seconds:.1f} s{left}"
        else:
            text += f": {result.error}{left}"
        self.say(text)
        self.tick()

    def tick(self) -> None:
        if not self.live:
            return
        known = self._worked or any(self._share(t, b) > 0 for t, b, _ in self.running.values())
        left = f"{format_duration(self._left())} left" if known else ""
        self.update("runs", self.done, self.total, text=left)
        for folder, (task, _, since) in self.running.items():
            epochs = task.config.epochs
            epoch = min(epochs_done(self.study / folder), epochs)
            what = "epochs" if epoch < epochs else "evaluating"
            elapsed = format_duration(time.monotonic() - since)
            self.update(folder, epoch, epochs, title=f"  {task.run}", text=f"{what} {elapsed}")

    def _share(self, task: Task, before: int) -> float:
        """The fraction of the task done since its start; evaluation counts as one epoch."""
        epochs = task.config.epochs
        return (epochs_done(self.study / task.folder) - before) / max(epochs + 1 - before, 1)

    def _left(self) -> float:
        worked = self._worked + sum(
            self._share(t, before) for t, before, _ in self.running.values()
        )
        rest = self.total - self.done - (worked - self._worked)
        return (time.monotonic() - self._begun) / max(worked, 1e-3) * rest


def _scores(task: Task, result: Result) -> str:
    titles = {"dsc": "DSC", "ece": f"ECE ({task.region})"}
    shown = [f"{titles[name]} {value:.4f}" for name, value in result.scores.items()]
    return " ".join([task.split, *shown])
