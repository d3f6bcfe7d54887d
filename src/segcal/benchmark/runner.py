"""Run a study from its plan: search grids, train and evaluate every run, update the folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from segcal.benchmark.benchmark_study import BenchmarkStudy, named_late
from segcal.benchmark.local_launcher import Observer, run_local
from segcal.benchmark.plan import Plan, load_plan, slug, to_yaml, with_absolute_paths
from segcal.benchmark.progress import StudyProgress
from segcal.benchmark.run_status import check_existing_runs, delete_weights, is_done, is_trained
from segcal.benchmark.task_matrix import (
    check_parts,
    counts,
    make_task,
    open_datasets,
    open_external,
    plan_tasks,
    possible_tasks,
)
from segcal.benchmark.tasks import Result, Task, log_of
from segcal.core.checks import check_choice, check_int, require
from segcal.core.files import write_text
from segcal.core.locks import folder_lock, holds_work
from segcal.core.signals import sigterm_as_interrupt
from segcal.study import Candidate, read_evaluation, training_seconds

Launch = Callable[[Iterable[Task], Path, Observer], None]


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
) -> BenchmarkStudy:
    """Run the study of a plan in the folder `out`.

    Finished runs are never repeated. A plan that contradicts them (other settings, data or splits)
    is refused before anything is written. A run that fails is recorded and the others continue.
    study.json and cases.csv are updated after every run.

    Args:
        plan: a plan, or its YAML file.
        out: the folder of the study.
        jobs: runs at a time; by default one per GPU, or one.
        launcher: "local" (processes of this machine) or "ray".
        address: of the Ray cluster.
        retries: how often a run is retried after its process has died.
        resume: whether the folder may hold a study already, which is then continued.
        kind: the kind in study.json.
        silent: print nothing.
    """
    check_choice("--launcher", launcher, ("local", "ray"))
    check_int("--retries", retries, low=0)
    if jobs is not None:
        check_int("--jobs", jobs, low=1)
    plan = with_absolute_paths(plan if isinstance(plan, Plan) else load_plan(plan))
    datasets = open_datasets(plan)
    first = plan_tasks(plan)
    check_parts(first, datasets)
    external = open_external(plan, datasets)
    folder = Path(out)
    launch: Launch = partial(run_local, jobs=jobs, retries=retries)
    if launcher == "ray":
        require("ray")
        from segcal.benchmark.ray_launcher import run_ray

        launch = partial(run_ray, jobs=jobs, retries=retries, address=address)
    holds_work(folder, ("plan.yaml",), "study", resume=resume)
    with folder_lock(folder), sigterm_as_interrupt():
        check_existing_runs(possible_tasks(plan), folder)
        write_text(folder / "plan.yaml", to_yaml(plan))
        study = BenchmarkStudy(folder.resolve(), plan, kind, datasets, external)
        study.reference_late, study.hypotheses = named_late(plan, folder)
        with StudyProgress(study.folder, sum(counts(plan).values()), silent=silent) as progress:
            _Benchmark(study, launch, progress).run(first)
        if study.done():
            study.rank()
        return study


class _Benchmark:
    def __init__(self, study: BenchmarkStudy, launch: Launch, progress: StudyProgress) -> None:
        self.study, self.launch, self.progress = study, launch, progress
        self.started, self.tick = progress.start, progress.tick
        self.searched: dict[str, Result] = {}
        self.trained_before = set[str]()

    def run(self, tasks: list[Task]) -> None:
        plan = self.study.plan
        search = [task for task in tasks if plan.methods[_method_of(task)].grid]
        plain = [task for task in tasks if task not in search]
        grids = [name for name, method in plan.methods.items() if method.grid]
        self.study.add(plain)
        self._do([*search, *plain])
        chosen = [task for name in grids for task in self._choose(name)]
        self.study.add(chosen)
        self._do(chosen)
        self._delete_candidates(search, chosen)
        known = {(task.dataset, task.method, task.seed): task for task in self.study.tasks.values()}
        order = product(plan.datasets, plan.method_groups, plan.seeds)
        self.study.tasks = {known[key].run: known[key] for key in order if key in known}
        self.study.write(complete=True)

    def _delete_candidates(self, search: list[Task], chosen: list[Task]) -> None:
        """Delete the weights of candidates once the chosen one is evaluated."""
        for method in self.study.options:
            candidates = [task for task in search if _method_of(task) == method]
            results = [self.searched[task.run] for task in candidates]
            final = [one for t in chosen if t.method == method for one in t.and_calibrated()]
            results += [self.study.results[task.run] for task in final]
            if all(result.state == "done" for result in results):
                for task in candidates:
                    delete_weights(task, self.study.folder, self.study.plan.keep)

    def _do(self, tasks: list[Task]) -> None:
        """Skip finished tasks, launch the others, and keep the folder up to date."""
        left = []
        for task in tasks:
            if is_done(task, self.study.folder):
                delete_weights(task, self.study.folder)
                self.progress.done += 1
                self._record(task, Result("done", "", self._seconds(task)))
            else:
                left.append(task)
                if is_trained(task, self.study.folder):
                    self.trained_before.add(task.run)
        if len(left) < len(tasks):
            self.progress.say(f"{len(tasks) - len(left)} finished runs are kept")
        self.study.write()
        self.launch(left, self.study.folder, self)

    def retried(self, task: Task, reason: str) -> None:
        self.progress.say(f"{task.run}: {reason}; retrying")

    def ended(self, task: Task, result: Result) -> None:
        if result.state == "done" and task.run in self.trained_before:
            result = replace(result, seconds=self._seconds(task))
        self.progress.end(task, result)
        self._record(task, result)
        self.study.write()
        if result.state == "failed":
            self.progress.say(f"  see {log_of(self.study.folder, task)}")

    def _record(self, task: Task, result: Result) -> None:
        if task.run not in self.study.tasks:
            self.searched[task.run] = result
            return
        self.study.results[task.run] = result
        for name in task.posthoc:
            calibrated, error = task.calibrated(name), result.posthoc.get(name, "")
            found = Result("failed", error)
            if result.state != "done":
                found = Result("failed", f"the run to be calibrated failed: {task.run}")
            elif error:
                self.progress.say(f"  {calibrated.run} failed: {error}")
            else:
                found = Result("done", seconds=self._seconds(calibrated))
            self.study.results[calibrated.run] = found

    def _seconds(self, task: Task) -> float:
        """The time of training (by the log) and evaluation of a finished run."""
        folder = self.study.folder / task.folder
        found = read_evaluation(folder, task.split)
        return training_seconds(folder) + (found.info.seconds if found is not None else 0.0)

    def _choose(self, method: str) -> list[Task]:
        """The runs of a searched method, with the options of best mean validation DSC."""
        plan, study = self.study.plan, self.study
        judged = [self._judge(method, options) for options in plan.methods[method].candidates()]
        study.chosen_from[method] = tuple(judged)
        # Sums of equal values may differ by rounding. The first of equals is chosen.
        finished = [(round(c.val_dsc, 12), c) for c in judged if c.val_dsc is not None]
        best = max(finished, key=lambda pair: pair[0])[1] if finished else None
        tasks = [
            make_task(plan, dataset, method, (best or judged[0]).options, seed)
            for seed in plan.seeds
            for dataset in plan.datasets
        ]
        if best is None:
            reason = "no candidate of its grid finished on every dataset"
            study.results.update({task.run: Result("failed", reason) for task in study.add(tasks)})
            return []
        study.options[method] = best.options
        self.progress.say(f"{method}: {describe_choice(best, judged)}")
        return tasks

    def _judge(self, method: str, options: dict[str, object]) -> Candidate:
        plan, study = self.study.plan, self.study
        tasks = [
            make_task(plan, dataset, method, options, plan.seeds[0], searched=True)
            for dataset in plan.datasets
        ]
        errors = [self.searched[task.run].error for task in tasks]
        if any(errors):
            return Candidate(options=options, error=next(filter(None, errors)))
        evaluations = [read_evaluation(study.folder / task.folder, "val") for task in tasks]
        means = [found.means(plan.region) for found in evaluations if found is not None]
        trainings = [study.training(task) for task in tasks]
        return Candidate(
            options=options,
            val_dsc=_mean(each["dsc"] for each in means),
            val_ece=_mean(each.get("ece", math.nan) for each in means),
            trainings=tuple(training for training in trainings if training is not None),
        )


def _method_of(task: Task) -> str:
    """The method of a task; candidates add their options to it."""
    return task.method.split("@")[0]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found and not any(map(math.isnan, found)) else None


def describe_choice(best: Candidate, judged: Iterable[Candidate]) -> str:
    """The chosen options and their score, and candidates with the same score to four digits."""
    score = f"{best.val_dsc:.4f}"
    others = [one for one in judged if one is not best and one.val_dsc is not None]
    same = [slug(one.options) for one in others if f"{one.val_dsc:.4f}" == score]
    tie = f"; {' and '.join(same)} scored the same to four digits" if same else ""
    return f"chose {slug(best.options)} by validation DSC {score}{tie}"
