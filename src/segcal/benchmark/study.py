"""The study's folder: study.json and cases.csv, whole after every run, so that any stop is fine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal import __version__
from segcal._about import git_commit, versions
from segcal.benchmark.plan import Plan, calibrated_name
from segcal.benchmark.tasks import Result, Task
from segcal.data import PreparedDataset
from segcal.data.store import replacing, write_json
from segcal.evaluation import read_evaluation
from segcal.metrics import POOLED, collect
from segcal.metrics.ranking import mean_case_rank_of, sum_rank_of

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "segcal-study", 1


@dataclass
class Study:
    """A study and what is known of its runs; `write` brings the folder up to date."""

    folder: Path
    plan: Plan
    kind: str
    datasets: Mapping[str, PreparedDataset]
    tasks: dict[str, Task] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen_from: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def failed(self) -> dict[str, str]:
        """Run → its error, in one line."""
        return {run: r.error for run, r in self.results.items() if r.state == "failed"}

    @property
    def methods(self) -> list[str]:
        """Those of the plan, then those that calibrators make of them."""
        plan = self.plan
        after = [calibrated_name(m, name) for m in plan.methods for name in plan.posthoc]
        return [*plan.methods, *after]

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
            "metrics": [self._metric(name) for name in plan.metrics],
            "datasets": [self._dataset(name) for name in plan.datasets],
            "methods": [
                *(self._method(name) for name in plan.methods),
                *(self._calibrated(m, name) for m in plan.methods for name in plan.posthoc),
            ],
            "runs": [self._run(task) for task in self.tasks.values()],
            "tables": list(plan.tables),
            "environment": self._environment(),
        }

    def done(self) -> list[Task]:
        """The tasks that are evaluated."""
        ended = {run for run, result in self.results.items() if result.state == "done"}
        return [task for run, task in self.tasks.items() if run in ended]

    def _metric(self, name: str) -> str:
        distances = ("hd95", "hd95_max", "hd", "assd")
        return f"{name}_{self.plan.evaluation.units}" if name in distances else name

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
        }

    def _environment(self) -> dict[str, Any]:
        """Where the finished runs were trained, and with what they are put together."""
        devices = dict[str, None]()
        for task in self.done():
            try:
                about = json.loads((self.folder / task.folder / "run.json").read_text("utf-8"))
            except (OSError, ValueError):
                continue
            devices[str(about.get("device"))] = None
        return {
            "device": ", ".join(devices),
            "versions": versions(),
            "commit": git_commit(),
            "segcal": __version__,
        }

    def _write_cases(self) -> None:
        """All rows of finished runs, one after another, as they are."""
        with replacing(self.folder / "cases.csv") as draft, draft.open("wb") as out:
            for number, task in enumerate(self.done()):
                with (self.folder / task.folder / "cases.csv").open("rb") as rows:
                    header = rows.readline()
                    if number == 0:
                        out.write(header)
                    shutil.copyfileobj(rows, out)

    def table(self) -> pd.DataFrame:
        """The long table of all finished runs."""
        import pandas as pd

        names = ("run", "method", "seed", "dataset", "case", "label", "region", "metric")
        return pd.read_csv(
            self.folder / "cases.csv", dtype=dict.fromkeys(names, str), keep_default_na=False,
            na_values={"value": ["", "nan"]},
        )  # fmt: skip

    def write_ranks(self) -> pd.DataFrame:
        """ranks.csv: sum-rank and mean-case-rank of the methods that every dataset has.

        Missing values count as the worst; see `segcal.metrics.collect`. A metric without any
        value on some dataset (distances, where nothing was found) ranks nobody: its column
        `metrics` says by what was ranked.
        """
        table = self.table()
        datasets = table["dataset"].nunique()
        met = table.groupby("method", sort=False)["dataset"].nunique()
        table = table[table["method"].isin(met[met == datasets].index)]
        there = table[table["value"].notna() & (table["case"] != POOLED)]
        counted = there.groupby("metric")["dataset"].nunique()
        asked = [self._metric(name) for name in self.plan.metrics]
        metrics = [name for name in asked if counted.get(name, 0) == datasets]
        if not metrics:
            raise ValueError(
                f"{self.folder}: has no values of {', '.join(asked)} to rank its methods by"
            )
        scores = collect(table, metrics=metrics, region=self.plan.region, missing="worst")
        sums = sum_rank_of(scores)[["method", "sum_rank", "region", "missing", "undefined"]]
        cases = mean_case_rank_of(scores)[["method", "mean_case_rank"]]
        ranks = sums.merge(cases, on="method").sort_values("sum_rank", kind="stable")
        ranks = ranks.assign(metrics=" ".join(metrics))
        with replacing(self.folder / "ranks.csv") as draft:
            ranks.to_csv(draft, index=False)
        return ranks


def validation_dsc(study: Path, task: Task) -> float:
    """Mean validation DSC of a finished candidate."""
    found = read_evaluation(study / task.folder, "val")
    assert found is not None
    return found.means()["dsc"]
