"""Studies of a few rows whose numbers are chosen: what findings say of them is known beforehand."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.studies import write_rows
from segcal.metrics import Row

# (method, seed, case) -> metric or (metric, region) -> value
Values = Mapping[tuple[str, int, str], Mapping[str | tuple[str, str], float]]


def write_plain(folder: Path, values: Values, **extra: Any) -> Path:
    """One dataset "d" ("Set D"); a metric without a region is of "all"."""
    rows = [
        Row(f"d/{m}/seed{s}", m, s, "d", case, "all", *_where(key), value)
        for (m, s, case), each in values.items()
        for key, value in each.items()
    ]
    write_rows(folder / "cases.csv", rows)
    runs: Iterable[tuple[str, int]] = dict.fromkeys((m, s) for m, s, _ in values)
    study = {
        "format": "segcal-study", "version": 1, "region": "all", "metrics": ["dsc", "ece"],
        "datasets": [{"name": "d", "title": "Set D"}],
        "methods": [{"name": m} for m in dict.fromkeys(m for m, _, _ in values)],
        "runs": [
            {"run": f"d/{m}/seed{s}", "method": m, "dataset": "d", "seed": s} for m, s in runs
        ],
    } | extra  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
    return folder


def _where(key: str | tuple[str, str]) -> tuple[str, str]:
    metric, region = (key, "all") if isinstance(key, str) else key
    return region, metric
