"""From the rows of one dataset to one value per case, metric and method: what is missing, settled.

A row is one value of one run. A cell is a case, metric and label of a method, over its runs. A row
may be undefined (NaN); a cell may be absent (no run of the method has the row).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segcal.metrics.table import SURFACE, base_metric, direction

if TYPE_CHECKING:
    import pandas as pd

_CELL = ["metric", "case", "label"]


@dataclass(frozen=True)
class Cells:
    """`values` and `costs`: (metric, case) × method, without NaN. `undefined`: metric × method."""

    values: "pd.DataFrame"
    costs: "pd.DataFrame"
    undefined: "pd.DataFrame"


def settle(
    part: "pd.DataFrame",
    overlap: "pd.DataFrame",
    dataset: str,
    methods: list[str],
    missing: str,
) -> Cells:
    """One dataset of the long table by a policy of `collect`; `overlap` holds its DSC rows."""
    rows = _with_costs(part.assign(label=part.get("label", "all")))
    runs = [name for name in ("run", "seed") if name in rows.columns]
    refuse_duplicates(rows, runs, dataset)
    absent = _absent_cells(rows, methods)
    undefined = _count(rows, absent, methods)
    if missing == "raise" and undefined.to_numpy().any():
        _raise_missing(rows, absent, dataset)
    if missing == "drop_case":
        gone = set(rows.loc[rows["value"].isna(), "case"]) | set(absent.get_level_values("case"))
        rows = rows[~rows["case"].isin(gone)]
        if rows.empty:
            raise ValueError(f"Expected some complete case, but got none in dataset {dataset!r}.")
        absent = absent[:0]
    if missing == "worst":
        rows = _fill_rows(rows, overlap.assign(label=overlap.get("label", "all")), runs)
    by_method = rows.groupby([*_CELL, "method"], sort=False)[["cost", "value"]].mean()
    scale = rows.groupby(["metric", "label"])["cost"].max()
    costs = _to_cases(by_method["cost"], methods, scale)
    turn = [-1.0 if direction(m) == "higher" else 1.0 for m in scale.index.get_level_values(0)]
    return Cells(_to_cases(by_method["value"], methods, scale * turn), costs, undefined)


def _with_costs(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Each value turned so that less is better, before anything is averaged."""
    better = rows["metric"].map({m: direction(m) for m in rows["metric"].unique()})
    turned = rows["value"].where(better != "higher", -rows["value"])
    return rows.assign(cost=turned.where(better != "zero", turned.abs()))


def refuse_duplicates(rows: "pd.DataFrame", runs: list[str], dataset: str) -> None:
    twice = rows.duplicated([*_CELL, "method", *runs])
    if twice.any():
        row = rows[twice].iloc[0]
        raise ValueError(
            f"Expected one row per method, run, seed, case, label and metric, but got several for "
            f"method {row['method']!r}, dataset {dataset!r}, case {row['case']!r}, label "
            f"{row['label']!r}, metric {row['metric']!r}."
        )


def _absent_cells(rows: "pd.DataFrame", methods: list[str]) -> "pd.MultiIndex":
    """Cells that some method has and another has not, and metrics that a case lacks altogether."""
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
    expected = [(*cell, method) for cell in [*cells, *lacking] for method in methods]
    names = [*_CELL, "method"]
    found = pd.MultiIndex.from_frame(rows[names].drop_duplicates())
    wanted = pd.MultiIndex.from_tuples(expected, names=names)
    return wanted[~wanted.isin(found)]


def _count(rows: "pd.DataFrame", absent: "pd.MultiIndex", methods: list[str]) -> "pd.DataFrame":
    """metric × method: undefined rows and absent cells."""
    nan = rows[rows["value"].isna()].groupby(["metric", "method"]).size()
    gone = absent.to_frame(index=False).groupby(["metric", "method"]).size()
    counts = nan.add(gone, fill_value=0).unstack("method", fill_value=0)
    return counts.reindex(columns=methods, fill_value=0).fillna(0).astype(np.int64)


def _raise_missing(rows: "pd.DataFrame", absent: "pd.MultiIndex", dataset: str) -> None:
    nan = rows.loc[rows["value"].isna(), [*_CELL, "method"]]
    first = tuple(nan.iloc[0]) if len(nan) else absent[0]
    metric, case, label, method = first
    raise ValueError(
        f"Expected no missing or undefined values, but got {len(nan) + len(absent)} in dataset "
        f"{dataset!r}: the first is {metric!r} of label {label!r}, case {case!r}, method "
        f"{method!r}. Say what becomes of them: `missing` (--missing) worst or drop_case."
    )


def _fill_rows(rows: "pd.DataFrame", overlap: "pd.DataFrame", runs: list[str]) -> "pd.DataFrame":
    """NaN rows become the worst value, or the best, or leave: see `collect`."""
    nan = rows["cost"].isna()
    if not nan.any():
        return rows
    keys = ["method", *runs, "case", "label"]
    dsc = rows[keys].merge(overlap[[*keys, "value"]], "left", on=keys)["value"]
    rightly_empty = nan.to_numpy() & (dsc == 1).to_numpy()
    surface = rows["metric"].map(base_metric).isin(SURFACE)
    defined = rows.groupby(_CELL)["cost"].transform("count") > 0
    mistakes = (~nan | ~rightly_empty).groupby([rows[k] for k in _CELL]).transform("any")
    span = rows.groupby(["metric", "label"])["cost"]
    filled = span.transform("max").where(~rightly_empty, span.transform("min"))
    costs = rows["cost"].where(~nan, filled)
    higher = rows["metric"].map(direction) == "higher"
    values = rows["value"].where(~nan, costs.where(~higher, -costs))
    # Without any value of the label in the dataset there is no worst one: it leaves, too.
    kept = (defined | (surface & mistakes)) & costs.notna()
    return rows.assign(cost=costs, value=values)[kept]


def _to_cases(
    cells: "pd.Series[float]", methods: list[str], worst: "pd.Series[float]"
) -> "pd.DataFrame":
    """Absent cells filled with the worst of their metric and label, then the mean over labels."""
    import pandas as pd

    # Not unstack(sort=False): pandas 2 then puts values into other rows.
    assert isinstance(cells.index, pd.MultiIndex)
    there = cells.index.droplevel("method").unique()
    wide = cells.unstack("method").reindex(index=there, columns=methods)
    if wide.isna().to_numpy().any():
        fill = pd.Series([worst[metric, label] for metric, _, label in wide.index], wide.index)
        wide = wide.apply(lambda column: column.fillna(fill))
    return wide.groupby(level=["case", "metric"], sort=False).mean()
