"""Progress of a study: one bar for all runs and one for each running one."""

from __future__ import annotations

import time
from pathlib import Path

from segcal.benchmark.tasks import Result, Task
from segcal.core.progress import Progress, format_duration
from segcal.evaluation import read_evaluation
from segcal.evaluation.evaluation_files import epochs_done


class StudyProgress(Progress):
    """Finished and running runs. `total` may grow; calibration is that of `region`."""

    def __init__(
        self, study: Path, total: int, *, region: str = "foreground", silent: bool = False
    ) -> None:
        super().__init__(silent=silent)
        self.study, self.total, self.region = study, total, region
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
            text += f": {self._scores(task)}  {result.seconds:.1f} s{left}"
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
            epochs = int(task.config["epochs"])
            epoch = min(epochs_done(self.study / folder), epochs)
            what = "epochs" if epoch < epochs else "evaluating"
            elapsed = format_duration(time.monotonic() - since)
            self.update(folder, epoch, epochs, title=f"  {task.run}", text=f"{what} {elapsed}")

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
