"""A study from its plan: search grids, train and evaluate every run, keep the folder current."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from segcal.benchmark.local_launcher import Ended, Event, Retried, Started, run_local
from segcal.benchmark.plan import Plan, at_home, load_plan, slug, to_yaml
from segcal.benchmark.progress import StudyProgress
from segcal.benchmark.run_status import check_before, is_done, is_trained, prune
from segcal.benchmark.task_matrix import (
    check_parts,
    make_task,
    open_datasets,
    plan_tasks,
    possible_tasks,
)
from segcal.benchmark.tasks import Result, Task, log_of
from segcal.core.checks import check_choice, check_int, require
from segcal.core.files import write_text
from segcal.core.locks import LOCK, folder_lock
from segcal.core.signals import sigterm_as_interrupt
from segcal.study.writer import Study, named_late, validation_means

LAUNCHERS = ("local", "ray")
Launch = Callable[[Iterable[Task], Path], Iterator[Event]]


def run_benchmark(
    plan: Plan | Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    launcher: str = "local",
    address: str | None = None,
    retries: int = 1,
    resume: bool = False,
    kind: str = "benchmark",
    silent: bool = False,
) -> Study:
    """Do what a plan says, into the folder `out`.

    Finished runs are never repeated, and a plan that they contradict (other settings, data or
    splits) is refused before anything is written. A run that fails is written down as failed and
    the rest goes on. study.json and cases.csv are brought up to date after every run.

    Args:
        plan: a plan, or its YAML file.
        out: the study's folder.
        jobs: how many runs at once; by default one for each GPU, or one.
        launcher: "local" (processes of this machine) or "ray".
        address: of the Ray cluster.
        retries: how often a run is tried again whose process has died.
        resume: whether the folder may hold a study already, which is then continued.
        kind: what study.json calls it.
        silent: say nothing.
    """
    check_choice("launcher", launcher, LAUNCHERS)
    check_int("retries", retries, low=0)
    if jobs is not None:
        check_int("jobs", jobs, low=1)
    plan = at_home(plan if isinstance(plan, Plan) else load_plan(plan))
    datasets = open_datasets(plan)
    first = plan_tasks(plan)
    check_parts(first, datasets)
    folder = Path(out)
    launch: Launch = partial(run_local, jobs=jobs, retries=retries)
    if launcher == "ray":
        require("ray")
        from segcal.benchmark.ray_launcher import run_ray

        launch = partial(run_ray, jobs=jobs, retries=retries, address=address)
    with _held(folder, resume), sigterm_as_interrupt():
        check_before(possible_tasks(plan), folder)
        write_text(folder / "plan.yaml", to_yaml(plan))
        study = Study(folder.resolve(), plan, kind, datasets)
        study.reference_late = named_late(plan, folder)
        with StudyProgress(study.folder, len(first), region=plan.region, silent=silent) as progress:
            _Benchmark(study, launch, progress).run(first)
        if study.done():
            study.rank()
        return study


class _Benchmark:
    def __init__(self, study: Study, launch: Launch, progress: StudyProgress) -> None:
        self.study, self.launch, self.progress = study, launch, progress
        self.searched: dict[str, Result] = {}
        self.trained_before = set[str]()

    def run(self, tasks: list[Task]) -> None:
        plan = self.study.plan
        search = [task for task in tasks if plan.methods[task.method.split("@")[0]].grid]
        plain = [task for task in tasks if task not in search]
        later = sum(
            len(plan.datasets) * len(plan.seeds) for method in plan.methods.values() if method.grid
        )
        self.progress.total = len(tasks) + later
        self.study.add(plain)
        self._do([*search, *plain])
        chosen = [task for name in plan.methods for task in self._choose(name)]
        self.study.add(chosen)
        self._do(chosen)
        self._prune(search, chosen)
        self.study.tasks = {task.run: task for task in self._in_order()}
        self.study.write()

    def _prune(self, search: list[Task], chosen: list[Task]) -> None:
        """Candidates had to be kept until one was chosen for good and evaluated."""
        for method in self.study.options:
            tried = [task for task in search if task.method.split("@")[0] == method]
            results = [self.searched[task.run] for task in tried]
            final = [one for t in chosen if t.method == method for one in t.and_calibrated()]
            results += [self.study.results[task.run] for task in final]
            if all(result.state == "done" for result in results):
                for task in tried:
                    prune(task, self.study.folder, self.study.plan.keep)

    def _in_order(self) -> list[Task]:
        methods = self.study.methods
        return sorted(
            self.study.tasks.values(),
            key=lambda t: (list(self.study.plan.datasets).index(t.dataset), methods.index(t.method),
                           self.study.plan.seeds.index(t.seed)),
        )  # fmt: skip

    def _do(self, tasks: list[Task]) -> None:
        """Skip what is done, launch the rest, and keep the folder current."""
        left = []
        for task in tasks:
            if is_done(task, self.study.folder):
                prune(task, self.study.folder)
                self._ended(task, Result("done", "", self._seconds(task)), quiet=True)
            else:
                left.append(task)
                if is_trained(task, self.study.folder):
                    self.trained_before.add(task.run)
        if len(left) < len(tasks):
            self.progress.say(f"{len(tasks) - len(left)} runs were done before; kept")
        self.study.write()
        with closing(self.launch(left, self.study.folder)) as events:  # type: ignore[type-var]
            for event in events:
                self._hear(event)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Started):
            self.progress.start(event.task)
        elif isinstance(event, Retried):
            self.progress.say(f"{event.task.run}: {event.reason}; trying again")
        elif isinstance(event, Ended):
            self._ended(event.task, event.result)
            self.study.write()
            if event.result.state == "failed":
                self.progress.say(f"  see {log_of(self.study.folder, event.task)}")
        else:
            self.progress.tick()

    def _ended(self, task: Task, result: Result, quiet: bool = False) -> None:
        if result.state == "done" and task.run in self.trained_before:
            result = replace(result, seconds=self._seconds(task))
        if quiet:
            self.progress.done += 1
        else:
            self.progress.end(task, result)
        if task.run not in self.study.tasks:
            self.searched[task.run] = result
            return
        self.study.results[task.run] = result
        for name in task.posthoc:
            after, found = task.calibrated(name), result.of(name)
            if found.state == "done":
                found = replace(found, seconds=self._seconds(after))
            elif result.state == "done":
                self.progress.say(f"  {after.run} failed: {found.error}")
            self.study.results[after.run] = found

    def _seconds(self, task: Task) -> float:
        """Of a run that was done before: training, by its log, and evaluation."""
        from segcal.evaluation import read_evaluation

        found = read_evaluation(self.study.folder / task.folder, task.splits[0])
        spent = float(found.about.get("seconds", 0)) if found is not None else 0.0
        return spent + _logged_seconds(self.study.folder / task.folder / "log.jsonl")

    def _choose(self, method: str) -> list[Task]:
        """The runs of a searched method, with the options of best mean validation DSC."""
        plan, study = self.study.plan, self.study
        if not plan.methods[method].grid:
            return []
        judged: list[dict[str, Any]] = []
        for options in plan.methods[method].candidates():
            tasks = [
                make_task(plan, dataset, method, options, plan.seeds[0], searched=True)
                for dataset in plan.datasets
            ]
            errors = [self.searched[task.run].error for task in tasks]
            means = [
                validation_means(study.folder, task, plan.region)
                for task in tasks
                if not any(errors)
            ]
            courses = [study.course(task) for task in tasks if not any(errors)]
            judged.append({
                "options": options,
                "val_dsc": _mean(each["dsc"] for each in means),
                "val_ece": _mean(each.get("ece", math.nan) for each in means),
                "trainings": [course for course in courses if course is not None],
                **({"error": next(filter(None, errors))} if any(errors) else {}),
            })  # fmt: skip
        study.chosen_from[method] = judged
        finished = [one for one in judged if one["val_dsc"] is not None]
        # To twelve digits: sums of equal values may differ by rounding. The first of equals wins.
        best = max(finished, key=lambda one: round(one["val_dsc"], 12)) if finished else None
        tasks = [
            make_task(plan, dataset, method, (best or judged[0])["options"], seed)
            for seed in plan.seeds
            for dataset in plan.datasets
        ]
        if best is None:
            reason = "no candidate of its grid finished on every dataset"
            study.results.update({task.run: Result("failed", reason) for task in study.add(tasks)})
            return []
        study.options[method] = best["options"]
        self.progress.say(f"{method}: {_choice(best, finished)}")
        return tasks


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found and not any(map(math.isnan, found)) else None


def _choice(best: dict[str, Any], judged: list[dict[str, Any]]) -> str:
    """What was chosen, and whether others looked the same."""
    score = f"{best['val_dsc']:.4f}"
    same = [slug(o["options"]) for o in judged if o is not best and f"{o['val_dsc']:.4f}" == score]
    tie = f"; {' and '.join(same)} scored the same to four digits" if same else ""
    return f"chose {slug(best['options'])} by validation DSC {score}{tie}"


def _logged_seconds(log: Path) -> float:
    import json

    try:
        lines = log.read_text(encoding="utf-8").splitlines()
        return math.fsum(float(json.loads(line).get("seconds", 0)) for line in lines)
    except (OSError, ValueError):
        return 0.0


@contextmanager
def _held(folder: Path, resume: bool) -> Iterator[None]:
    """Make the folder and hold it: one study at a time, and none by accident."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file, not a folder")
    strangers = [p for p in folder.iterdir() if p.name != LOCK] if folder.is_dir() else []
    if strangers and not (folder / "plan.yaml").is_file():
        raise ValueError(f"{folder}: holds files but no study; choose another --out")
    if strangers and not resume:
        raise ValueError(
            f"{folder}: is not empty; continue it with --resume, or choose another --out"
        )
    with folder_lock(folder):
        yield
