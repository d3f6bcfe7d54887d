"""Missing values: from the rows of one dataset to one value per case, metric and method.

A row is one value of one run. A cell is a case, metric and label of a method, over its runs. A row
may be undefined (NaN); a cell may be absent (no run of the method has the row).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segcal.metrics import find_metric, ranking_direction
from segcal.stats.long_table import map_names

if TYPE_CHECKING:
    import pandas as pd

_CELL = ["metric", "case", "label"]


@dataclass(frozen=True)
class Cells:
    """`values` and `costs`: (metric, case) × method, without NaN. `undefined`: metric × method."""

    values: "pd.DataFrame"
    costs: "pd.DataFrame"
    undefined: "pd.DataFrame"


def resolve_missing(
    part: "pd.DataFrame", overlap: "pd.DataFrame", dataset: str, methods: list[str], missing: str
) -> Cells:
    """Apply the policy `missing` of `collect` to `part`, the rows of one dataset to rank.

    `overlap` are the DSC rows of the dataset, which show whether an empty mask is correct.
    """
    rows = _with_costs(part.assign(label=part.get("label", "all")))
    runs = [name for name in ("run", "seed") if name in rows.columns]
    check_duplicates(rows, runs, dataset)
    absent = _absent_cells(rows, methods)
    undefined = _count(rows, absent, methods)
    if missing == "raise" and undefined.to_numpy().any():
        _raise_missing(rows, absent, dataset)
    if missing == "drop_case":
        dropped = set(rows.loc[rows["value"].isna(), "case"]) | set(absent.get_level_values("case"))
        rows = rows[~rows["case"].isin(dropped)]
        if rows.empty:
            raise ValueError(f"dataset {dataset!r} has no case without missing values")
        absent = absent[:0]
    if missing == "worst":
        rows = _fill_rows(rows, overlap.assign(label=overlap.get("label", "all")), runs)
    by_method = rows.groupby([*_CELL, "method"], sort=False)[["cost", "value"]].mean()
    scale = rows.groupby(["metric", "label"])["cost"].max()
    costs = _to_cases(by_method["cost"], methods, scale)
    metrics = scale.index.get_level_values(0)
    sign = [-1.0 if ranking_direction(metric) == "higher" else 1.0 for metric in metrics]
    return Cells(_to_cases(by_method["value"], methods, scale * sign), costs, undefined)


def _with_costs(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Add the column `cost`, in which lower is better, before any mean."""
    better = map_names(rows["metric"], ranking_direction)
    cost = rows["value"].where(better != "higher", -rows["value"])
    return rows.assign(cost=cost.where(better != "zero", cost.abs()))


def check_duplicates(rows: "pd.DataFrame", runs: list[str], dataset: str) -> None:
    """Raise if two rows are of the same method, run, seed, case, label and metric."""
    twice = rows.duplicated([*_CELL, "method", *runs])
    if twice.any():
        row = rows[twice].iloc[0]
        raise ValueError(
            f"several rows have method {row['method']!r}, dataset {dataset!r}, case "
            f"{row['case']!r}, label {row['label']!r} and metric {row['metric']!r} of the same "
            "run and seed; there must be one"
        )


def _absent_cells(rows: "pd.DataFrame", methods: list[str]) -> "pd.MultiIndex":
    """Cells that only some methods have, and metrics that no method has in a case."""
    import pandas as pd

    cells = pd.MultiIndex.from_frame(rows[_CELL].drop_duplicates())
    pairs = set(cells.droplevel("label"))
    labels = rows.groupby("metric", sort=False)["label"].unique()
    lacking = [
        (metric, case, label)
        for case in rows["case"].unique()
        for metric in labels.index
        if (metric, case) not in pairs
        for label in labels[metric]
    ]
    names = [*_CELL, "method"]
    expected = pd.MultiIndex.from_tuples(
        [(*cell, method) for cell in [*cells, *lacking] for method in methods], names=names
    )
    found = pd.MultiIndex.from_frame(rows[names].drop_duplicates())
    return expected[~expected.isin(found)]


def _count(rows: "pd.DataFrame", absent: "pd.MultiIndex", methods: list[str]) -> "pd.DataFrame":
    """metric × method: undefined rows and absent cells."""
    nan = rows[rows["value"].isna()].groupby(["metric", "method"]).size()
    missing = absent.to_frame(index=False).groupby(["metric", "method"]).size()
    counts = nan.add(missing, fill_value=0).unstack("method", fill_value=0)
    return counts.reindex(columns=methods, fill_value=0).fillna(0).astype(np.int64)


def _raise_missing(rows: "pd.DataFrame", absent: "pd.MultiIndex", dataset: str) -> None:
    nan = rows.loc[rows["value"].isna(), [*_CELL, "method"]]
    metric, case, label, method = tuple(nan.iloc[0]) if len(nan) else absent[0]
    raise ValueError(
        f"{len(nan) + len(absent)} values are missing or undefined in dataset {dataset!r}, the "
        f"first is {metric!r} of label {label!r}, case {case!r}, method {method!r}; choose a "
        "policy: --missing worst or --missing drop_case"
    )


def _fill_rows(rows: "pd.DataFrame", overlap: "pd.DataFrame", runs: list[str]) -> "pd.DataFrame":
    """Replace NaN by the worst or the best value, or skip the row; see `collect`."""
    nan = rows["cost"].isna()
    if not nan.any():
        return rows
    correctly_empty = nan & _all_correct(rows, overlap, ["method", *runs, "case"])
    # Metrics of surfaces are undefined for an empty mask; their names have a unit or a tolerance.
    surface = map_names(rows["metric"], lambda name: find_metric(name).suffix != "none")
    defined = rows.groupby(_CELL)["cost"].transform("count") > 0
    mistakes = (~nan | ~correctly_empty).groupby([rows[k] for k in _CELL]).transform("any")
    span = rows.groupby(["metric", "label"])["cost"]
    filled = span.transform("max").where(~correctly_empty, span.transform("min"))
    costs = rows["cost"].where(~nan, filled)
    higher = map_names(rows["metric"], ranking_direction) == "higher"
    values = rows["value"].where(~nan, costs.where(~higher, -costs))
    # Rows of a label that has no value in the dataset are skipped: there is no worst value.
    kept = (defined | (surface & mistakes)) & costs.notna()
    return rows.assign(cost=costs, value=values)[kept]


def _all_correct(
    rows: "pd.DataFrame", overlap: "pd.DataFrame", keys: list[str]
) -> "pd.Series[bool]":
    """Whether the DSC of the row's structure is 1; of every structure for a row of all voxels."""
    import pandas as pd

    mine = rows[[*keys, "label"]].merge(overlap[[*keys, "label", "value"]], "left")["value"] == 1
    every = (overlap["value"] == 1).groupby([overlap[key] for key in keys]).all()
    whole = pd.MultiIndex.from_frame(rows[keys]).isin(every[every].index)
    structure = rows["label"].isin(set(overlap["label"])).to_numpy()
    return pd.Series(np.where(structure, mine, whole), rows.index, dtype=bool)


def _to_cases(
    cells: "pd.Series[float]", methods: list[str], worst: "pd.Series[float]"
) -> "pd.DataFrame":
    """Absent cells filled with the worst of their metric and label, then the mean over labels."""
    import pandas as pd

    # Not unstack(sort=False), with which pandas 2 moves values to other rows.
    assert isinstance(cells.index, pd.MultiIndex)
    existing = cells.index.droplevel("method").unique()
    wide = cells.unstack("method").reindex(index=existing, columns=methods)
    if wide.isna().to_numpy().any():
        fill = pd.Series([worst[metric, label] for metric, _, label in wide.index], wide.index)
        wide = wide.apply(lambda column: column.fillna(fill))
    return wide.groupby(level=["case", "metric"], sort=False).mean()
