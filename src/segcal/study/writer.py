"""The study's folder: study.json and cases.csv, whole after every run, so that any stop is fine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal.benchmark.plan import Plan, calibrated_name, row_metric
from segcal.benchmark.tasks import Result, Task
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, write_json
from segcal.core.provenance import git_commit, versions
from segcal.data import PreparedDataset
from segcal.evaluation import read_evaluation
from segcal.stats import bootstrap_ranks, collect, find_eligible, ranked_methods
from segcal.study.cases_table import read_cases_table
from segcal.study.ranks import write_ranks

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "segcal-study", 1


def validation_course(log: Path, checkpoint: str = "best") -> dict[str, Any] | None:
    """How the validation of a training went, its best and its last; None without a log.

    `checkpoint` is the one that was evaluated, "best" or "last".
    """
    try:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        found = [(n, line["val"]) for n, line in enumerate(lines, 1) if "val" in line]
        dsc = [float(val["dsc"]) for _, val in found]
        # Without any foreground among the cases there is none.
        ece = [None if val.get("ece") is None else round(val["ece"], 4) for _, val in found]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not found:
        return None
    epochs = [n for n, _ in found]
    best = dsc.index(max(dsc))
    return {
        "epochs": len(lines),
        "best_epoch": epochs[best],
        "best_dsc": dsc[best],
        "last_dsc": dsc[-1],
        "tested_epoch": epochs[best] if checkpoint == "best" else len(lines),
        "course": {"epochs": epochs, "dsc": [round(value, 4) for value in dsc], "ece": ece},
    }


@dataclass
class Study:
    """A study and what is known of its runs; `write` brings the folder up to date.

    At the end `ranks` holds what ranks.csv does, or `not_ranked` says why there is none.
    `reference_late`: the plan named its reference when runs had been evaluated already.
    """

    folder: Path
    plan: Plan
    kind: str
    datasets: Mapping[str, PreparedDataset]
    tasks: dict[str, Task] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen_from: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ranks: pd.DataFrame | None = None
    not_ranked: str = ""
    reference_late: bool = False

    @property
    def failed(self) -> dict[str, str]:
        """Run → its error, in one line."""
        return {run: r.error for run, r in self.results.items() if r.state == "failed"}

    @property
    def methods(self) -> list[str]:
        """Those of the plan, then those that calibrators make of them."""
        return list(self.plan.groups)

    def add(self, tasks: Iterable[Task]) -> list[Task]:
        """Take in tasks, and the runs that calibrators make of them; all of these."""
        added = [one for task in tasks for one in task.and_calibrated()]
        self.tasks.update({task.run: task for task in added})
        return added

    def write(self) -> None:
        """study.json and cases.csv, each whole or not at all."""
        self._write_cases()
        write_json(self.folder / "study.json", self.content())

    def content(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "title": plan.title,
            "note": plan.note,
            "split": "test",
            "region": plan.region,
            "metrics": self.metrics,
            "datasets": [self._dataset(name) for name in plan.datasets],
            "methods": [
                *(self._method(name) for name in plan.methods),
                *(self._calibrated(m, name) for m in plan.methods for name in plan.posthoc),
            ],
            "runs": [self._run(task) for task in self.tasks.values()],
            "ranked": self.ranked,
            "reference": plan.reference,
            "reference_late": self.reference_late,
            "tables": list(plan.tables),
            "environment": self._environment(),
        }

    def done(self) -> list[Task]:
        """The tasks that are evaluated."""
        ended = {run for run, result in self.results.items() if result.state == "done"}
        return [task for run, task in self.tasks.items() if run in ended]

    @cached_property
    def patients(self) -> dict[str, dict[str, str]]:
        """Dataset → test case → patient, of the sets in which some patient has several cases."""
        out = {}
        for name, dataset in self.datasets.items():
            try:
                of = {case.name: case.patient for case in dataset.part("test")}
            except PathError:  # its runs fail and say why: the study is written all the same
                continue
            if len(set(of.values())) < len(of):
                out[name] = of
        return out

    @property
    def metrics(self) -> list[str]:
        """Of the tables and ranks, as the rows name them."""
        return [row_metric(name, self.plan.evaluation) for name in self.plan.metrics]

    @property
    def ranked(self) -> list[str]:
        """The methods that are to be ranked, those without rows among them."""
        return ranked_methods(self.plan.groups)

    def _dataset(self, name: str) -> dict[str, Any]:
        info = self.datasets[name].info
        labels = [info.classes[k] for k in sorted(info.classes)]
        return {
            "name": name,
            "title": self.plan.datasets[name].title or name,
            "source": info.source,
            "labels": labels,
            "structures": list(info.regions) or labels[1:],
            "fingerprint": info.fingerprint,
            "patients": self.patients.get(name, {}),
        }

    def _method(self, name: str) -> dict[str, Any]:
        method = self.plan.methods[name]
        options = {"loss": method.loss, **self.options.get(name, method.options)}
        if method.dice_weight:
            options["dice_weight"] = method.dice_weight
        out: dict[str, Any] = {
            "name": name,
            "title": method.title or name,
            "paper": method.paper,
            "group": method.group,
            "options": options,
        }
        if method.grid:
            out["chosen_from"] = self.chosen_from.get(name, [])
        return out

    def _calibrated(self, name: str, calibrator: str) -> dict[str, Any]:
        base = self._method(name)
        return {
            "name": calibrated_name(name, calibrator),
            "title": f"{base['title']} + {calibrator}",
            "paper": None,
            "group": "posthoc",
            "options": {**base["options"], "posthoc": calibrator},
        }

    def _run(self, task: Task) -> dict[str, Any]:
        result = self.results.get(task.run, Result("missing"))
        return {
            "run": task.run,
            "method": task.method,
            "dataset": task.dataset,
            "seed": task.seed,
            "folder": task.folder,
            "state": result.state,
            "error": result.error,
            "seconds": round(result.seconds, 1),
            "training": self.course(task) if result.state == "done" else None,
        }

    def course(self, task: Task) -> dict[str, Any] | None:
        """How the validation of its training went; None without a log."""
        log = self.folder / task.folder / "log.jsonl"
        return validation_course(log, task.evaluation_settings.checkpoint)

    def _environment(self) -> dict[str, Any]:
        """Where and with what the finished runs were trained, and put together."""
        places: dict[str, dict[str, Any]] = {}
        for task in self.done():
            try:
                about = json.loads((self.folder / task.folder / "run.json").read_text("utf-8"))
            except (OSError, ValueError):
                continue
            place = {key: about.get(key) for key in ("device", "commit", "versions")}
            same = places.setdefault(json.dumps(place), {"runs": 0, **place})
            same["runs"] += 1
        return {
            "trained": list(places.values()),
            "put_together": {"commit": git_commit(), "versions": versions()},
        }

    def _write_cases(self) -> None:
        """All rows of finished runs, one after another, as they are."""
        with atomic_path(self.folder / "cases.csv") as draft, draft.open("wb") as out:
            for number, task in enumerate(self.done()):
                with (self.folder / task.folder / "cases.csv").open("rb") as rows:
                    header = rows.readline()
                    if number == 0:
                        out.write(header)
                    shutil.copyfileobj(rows, out)

    def table(self) -> pd.DataFrame:
        """The long table of all finished runs."""
        return read_cases_table(self.folder / "cases.csv")

    def rank(self) -> None:
        """ranks.csv: sum-rank and mean-case-rank, as the report has them.

        `segcal.stats.find_eligible` decides what is ranked. Missing
        values count as the worst; see `segcal.stats.collect`. Whatever is wrong costs the ranking
        and nothing else: `not_ranked` says it then.
        """
        try:
            self.ranks, self.not_ranked = self._rank(), ""
        except ValueError as error:
            self.ranks, self.not_ranked = None, str(error)
            (self.folder / "ranks.csv").unlink(missing_ok=True)  # It would be of other rows.
            return
        write_ranks(self.folder / "ranks.csv", self.ranks)

    def _rank(self) -> pd.DataFrame:
        table = self.table()
        chosen = find_eligible(table, self.ranked, self.metrics, self.plan.region)
        if len(chosen.methods) < 2:
            raise ValueError("fewer than two methods have rows of every dataset")
        if not chosen.metrics:
            raise ValueError("no metric has values on every dataset")
        scores = collect(
            table[table["method"].isin(chosen.methods) & table["dataset"].isin(chosen.datasets)],
            metrics=chosen.metrics, region=self.plan.region, missing="worst",
        )  # fmt: skip
        return bootstrap_ranks(scores)


def named_late(plan: Plan, study: Path) -> bool:
    """Whether the plan names another reference than before, and there are results by now.

    What was late once stays so, until another reference is named before there are results.
    """
    if plan.reference is None:
        return False
    try:
        before = json.loads((study / "study.json").read_text("utf-8"))
        if before["reference"] == plan.reference:
            return bool(before["reference_late"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # None was written yet, or by a segcal that knew of no reference.
    return any(study.glob("runs/*/*/*/cases.csv"))


def validation_means(study: Path, task: Task, region: str) -> dict[str, float]:
    """What a finished candidate reached on the validation cases; calibration is in `region`."""
    found = read_evaluation(study / task.folder, "val")
    assert found is not None
    return found.means(region)
