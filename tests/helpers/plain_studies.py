"""Studies of a few rows with chosen numbers, so that the expected findings are known."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.studies import write_study
from segcal.metrics import Row
from segcal.study import Dataset, Method, Run, StudyFile, write_cases_table

# (method, seed, case) -> metric or (metric, region) or (metric, region, label) -> value
Values = Mapping[tuple[str, int, str], Mapping[str | tuple[str, ...], float]]


def write_plain(folder: Path, values: Values, **extra: Any) -> Path:
    """One dataset "d" ("Set D"); a metric without a region or a label is of "all"."""
    runs = []
    for method, seed in dict.fromkeys((m, s) for m, s, _ in values):
        name = f"d/{method}/seed{seed}"
        rows = [
            Row(name, method, seed, "d", case, *_where(key), value)
            for (m, s, case), each in values.items()
            if (m, s) == (method, seed)
            for key, value in each.items()
        ]
        (folder / "runs" / name).mkdir(parents=True)
        write_cases_table(folder / "runs" / name / "cases.csv", rows)
        runs.append(Run(run=name, method=method, dataset="d", seed=seed, folder=f"runs/{name}"))
    content = StudyFile(
        format="segcal-study",
        version=1,
        metrics=("dsc", "ece"),
        datasets=(Dataset(name="d", title="Set D"),),
        methods=tuple(Method(name=name) for name in dict.fromkeys(m for m, _, _ in values)),
        runs=tuple(runs),
    )
    write_study(folder, content, extra)
    return folder


def _where(key: str | tuple[str, ...]) -> tuple[str, str, str]:
    given = (key,) if isinstance(key, str) else key
    metric, region, label = (*given, "all", "all")[:3]
    return label, region, metric
