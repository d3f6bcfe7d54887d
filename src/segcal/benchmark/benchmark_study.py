"""A study that is being run: its tasks, how they ended, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal.benchmark.plan import Plan, calibrated_name, row_metric
from segcal.benchmark.tasks import Result, Task
from segcal.config import merge
from segcal.core.errors import PathError
from segcal.core.provenance import git_commit, versions
from segcal.data import PreparedDataset
from segcal.posthoc import short_name
from segcal.stats import ranked_methods
from segcal.study import (
    CASES,
    FORMAT,
    STUDY,
    VERSION,
    Candidate,
    Dataset,
    Hypothesis,
    Method,
    Run,
    Study,
    StudyFile,
    StudyWriter,
    Training,
    rank_study,
    read_run_info,
    read_study,
    read_study_file,
    read_training,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class BenchmarkStudy:
    """The tasks of a study and their results; `write` updates its folder.

    `options` were chosen out of `chosen_from`, for each method with a grid. `reference_late`: the
    plan named its reference after runs had been evaluated. `hypotheses` are those of the plan, with
    metrics as the rows name them. `finished` is the study as `rank` read
    it, `ranks` the content of ranks.csv, or None and the reason in `not_ranked`.
    """

    folder: Path
    plan: Plan
    kind: str
    datasets: Mapping[str, PreparedDataset]
    external: Mapping[str, Mapping[str, PreparedDataset]] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen_from: dict[str, tuple[Candidate, ...]] = field(default_factory=dict)
    reference_late: bool = False
    hypotheses: tuple[Hypothesis, ...] = ()
    ranks: pd.DataFrame | None = None
    not_ranked: str = ""
    finished: Study | None = None

    def __post_init__(self) -> None:
        self._writer = StudyWriter(self.folder)

    @property
    def failed(self) -> dict[str, str]:
        """The failed runs and their errors, one line each."""
        return {run: r.error for run, r in self.results.items() if r.state == "failed"}

    @property
    def metrics(self) -> list[str]:
        """The metrics of the tables and ranks, as the rows name them."""
        return [row_metric(name, self.plan.evaluation) for name in self.plan.metrics]

    @property
    def ranked(self) -> list[str]:
        """The methods to rank, including those without rows."""
        return ranked_methods(self.plan.method_groups)

    def add(self, tasks: Iterable[Task]) -> list[Task]:
        """Add tasks and the runs of their calibrators; returns all of these."""
        added = [one for task in tasks for one in task.and_calibrated()]
        self.tasks.update({task.run: task for task in added})
        return added

    def done(self) -> list[Task]:
        """The tasks that are evaluated."""
        ended = {run for run, result in self.results.items() if result.state == "done"}
        return [task for run, task in self.tasks.items() if run in ended]

    def write(self, *, complete: bool = False) -> None:
        """Update study.json and cases.csv; `complete` if no runs follow."""
        self._writer.write(self.content(), complete=complete)

    def rank(self) -> None:
        """Read the study and write ranks.csv, as in the report."""
        self.finished = read_study(self.folder)
        try:
            self.ranks = rank_study(
                self.folder, self.finished.table, self.ranked, self.metrics, self.plan.region
            )
            self.not_ranked = ""
        except ValueError as error:
            self.ranks, self.not_ranked = None, str(error)

    def content(self) -> StudyFile:
        """What study.json holds."""
        plan = self.plan
        calibrated = [self._calibrated(m, name) for m in plan.methods for name in plan.posthoc]
        shared = ("title", "note", "region", "reference", "published", "groups", "tables")
        return StudyFile(
            format=FORMAT,
            version=VERSION,
            kind=self.kind,
            grid=plan.evaluation.grid,
            metrics=tuple(self.metrics),
            datasets=self._described,
            methods=(*map(self._method, plan.methods), *calibrated),
            runs=tuple(map(self._run, self.tasks.values())),
            reference_late=self.reference_late,
            hypotheses=self.hypotheses,
            environment=self._environment(),
            **{key: getattr(plan, key) for key in shared},
        )

    @cached_property
    def _described(self) -> tuple[Dataset, ...]:
        out = []
        for name, dataset in self.datasets.items():
            others = self.external.get(name, {})
            settings = merge(self.plan.train, self.plan.datasets[name].train)
            heads = settings.get("data", {}).get("heads", {})
            external = tuple(
                _describe(key, key, other, "all", heads) for key, other in others.items()
            )
            title = self.plan.datasets[name].title or name
            own = _describe(name, title, dataset, "test", heads)
            out.append(own.model_copy(update={"external": external}))
        return tuple(out)

    def _method(self, name: str) -> Method:
        method = self.plan.methods[name]
        options = {"loss": method.loss, **self.options.get(name, method.options)}
        if method.dice_weight:
            options |= {"dice_weight": method.dice_weight, "dice_form": method.dice_form}
        if method.schedule is not None:
            options["schedule"] = method.schedule.name
        return Method(
            name=name,
            title=method.title or name,
            paper=method.paper,
            group=method.group,
            options=options,
            chosen_from=self.chosen_from.get(name, ()),
        )

    def _calibrated(self, name: str, calibrator: str) -> Method:
        base = self._method(name)
        title = f"{base.title} + {short_name(calibrator)}"
        options = {**base.options, "posthoc": calibrator}
        name = calibrated_name(name, calibrator)
        return Method(name=name, title=title, group="posthoc", options=options)

    def _run(self, task: Task) -> Run:
        result = self.results.get(task.run, Result("missing"))
        return Run(
            run=task.run,
            method=task.method,
            dataset=task.dataset,
            seed=task.seed,
            folder=task.folder,
            state=result.state,
            error=result.error,
            seconds=round(result.seconds, 1),
            training=self.training(task) if result.state == "done" else None,
        )

    def training(self, task: Task) -> Training | None:
        """Summary of the validation of a task's training; None for calibrated runs."""
        return read_training(self.folder / task.folder, task.evaluation.checkpoint)

    def _environment(self) -> dict[str, Any]:
        """Device and versions of the finished trainings, and those of this process."""
        places: dict[str, dict[str, Any]] = {}
        for task in self.done():
            try:
                info = read_run_info(self.folder / task.folder)
            except PathError:  # a calibrated run
                continue
            place = {"device": info.device, "commit": info.commit, "versions": info.versions}
            places.setdefault(json.dumps(place), {"runs": 0, **place})["runs"] += 1
        here = {"commit": git_commit(), "versions": versions()}
        return {"trained": list(places.values()), "put_together": here}


def _describe(
    name: str, title: str, dataset: PreparedDataset, part: str, heads: Iterable[str]
) -> Dataset:
    """A dataset, with the patients (if one has several cases) and the groups of cases of `part`.

    `heads` are the regions of sigmoid heads, if networks are trained with them.
    """
    info = dataset.info
    labels = tuple(info.classes[k] for k in sorted(info.classes))
    if heads:
        labels = ("background", *heads)
    try:
        cases = [case.properties for case in dataset.part(part)]
    except PathError:  # Its runs fail with the reason; the study is written all the same.
        cases = []
    patients = {case.name: case.patient for case in cases}
    return Dataset(
        name=name,
        title=title,
        source=info.source,
        labels=labels,
        structures=tuple(heads or info.regions) or labels[1:],
        fingerprint=info.fingerprint,
        patients=patients if len(set(patients.values())) < len(patients) else {},
        case_groups={case.name: case.group for case in cases if case.group},
    )


def named_late(plan: Plan, study: Path) -> tuple[bool, tuple[Hypothesis, ...]]:
    """Whether the plan named its reference, and each hypothesis, after results existed.

    What was named late stays so.
    """
    try:
        before = read_study_file(study / STUDY)
    except (OSError, ValueError):  # none was written yet
        before = None
    evaluated = any(study.glob(f"runs/*/*/*/{CASES}"))
    late = plan.reference is not None and evaluated
    known: dict[Hypothesis, bool] = {}
    if before is not None:
        if before.reference == plan.reference:
            late = bool(before.reference_late)
        known = {h.model_copy(update={"late": False}): h.late for h in before.hypotheses}
    hypotheses = []
    for each in plan.hypotheses:
        named = each.model_copy(update={"metric": row_metric(each.metric, plan.evaluation)})
        hypotheses.append(named.model_copy(update={"late": known.get(named, evaluated)}))
    return late, tuple(hypotheses)
