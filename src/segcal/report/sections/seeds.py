"""Comparisons over seeds and cases: would a difference hold for newly trained networks?"""

import math
from functools import partial
from typing import Any, Literal

import pandas as pd

from segcal.report.aggregates import Number
from segcal.report.blocks import Block, DataFile, Group, Section, Text
from segcal.report.context import Context
from segcal.report.findings.ranking import reference_note
from segcal.report.plots.seed_forest_plot import draw_seed_forest
from segcal.report.rankings import FEW_CASES
from segcal.report.seed_comparisons import (
    SeedComparisons,
    seed_count,
    significant,
    significant_over_cases_only,
)
from segcal.report.table_model import Cell, Column, Row, Table, metric_column
from segcal.report.text import join, signed

# With this many seeds, simulated false positives at p < 0.2 % stay below 1 %.
_ENOUGH_SEEDS = 5


def build(context: Context) -> Section | None:
    """A table per region and a forest plot for each dataset, or why there are none."""
    if context.rankings is None:
        return None
    own = context.seed_comparisons[context.region]
    blocks: list[Block] = [Text(seeds_note(context, own))]
    for dataset in own.datasets:
        forest = Group([draw_seed_forest(context, own, dataset)], region=context.region)
        tables = context.by_region(partial(_table_in_region, context, dataset))
        title = context.study.datasets[dataset].title
        blocks.append(Group([forest, *tables], heading=title, dataset=dataset))
    if own:
        rows = {region: each.rows for region, each in context.seed_comparisons.items() if each}
        every = pd.concat(rows, names=["family"]).reset_index("family")
        blocks.append(DataFile("seeds", every))
    return Section("seeds", "Differences with seed variance", blocks, menu="Seeds")


def _table_in_region(context: Context, dataset: str, region: str) -> Table | None:
    comparisons = context.seed_comparisons[region]
    known = dataset in comparisons.datasets
    return seeds_table(context, comparisons, dataset) if known else None


def seeds_note(context: Context, comparisons: SeedComparisons) -> str:
    """How methods are compared, or why they cannot be."""
    if not comparisons and (comparisons.rows["seeds"] > 1).any():
        return f"This needs at least {FEW_CASES} cases that all seeds of two methods share."
    if not comparisons:
        return (
            "This needs at least two seeds that methods have in common: one seed cannot show "
            "whether a difference between methods would persist in another training."
        )
    out = (
        "A test over cases is about the networks that were trained; a new seed gives another "
        "network. Here both seeds and cases are random effects (crossed, t interval with "
        f"Satterthwaite's degrees of freedom): {context.title(comparisons.reference)} minus each "
        "method, seed by seed and case by case. Runs of the same seed are paired: they start from "
        "the same weights and see the same order of batches."
    )
    fewest = int(comparisons.judged["seeds"].min())
    if fewest == 2:
        out += (
            " Two seeds determine their variance poorly: if most variance is between seeds, the "
            "intervals are too narrow (one false positive in 9 instead of one in 20) and small "
            "p-values far too small (6 false positives in 100 where a corrected test promises 2 "
            "in 1,000). Use three seeds or more; five are recommended."
        )
    elif fewest < _ENOUGH_SEEDS:
        out += (
            f" With {fewest} seeds the smallest p-values are too small if most variance is between "
            "seeds (up to 2 false positives in 100 where a corrected test promises 2 in 1,000): "
            "treat an isolated significant result with caution; five seeds are recommended."
        )
    return f"{out} {reference_note(context)}"


def seeds_table(context: Context, comparisons: SeedComparisons, dataset: str) -> Table:
    """Difference, interval and the share of variance due to seeds; one row per method."""
    rows = comparisons.rows[comparisons.rows["dataset"] == dataset]
    columns = []
    for metric in dict.fromkeys(map(str, rows["metric"])):
        group = metric_column(metric).heading
        shared: dict[str, Any] = {"group": group, "dataset": dataset}
        columns += [
            Column(metric, "difference", digits=_digits(metric), **shared),
            Column(f"{metric}_seed_share", "seeds", "%", digits=0, **shared),
        ]
    body = []
    for method in (m for m in context.study.methods if m in set(rows["other"])):
        mine = rows[rows["other"] == method]
        cells = [
            cell
            for at, row in mine.iterrows()
            for cell in ((Cell(), Cell()) if at in comparisons.repeated else _cells(row))
        ]
        note = "one seed: over cases alone" if (mine["seeds"] == 1).any() else ""
        body.append(Row(method, context.title(method), tuple(cells), note=note))
    subjects = f"{int(rows['cases'].max())} cases"
    if dataset in comparisons.by_patient:
        subjects = f"{int(rows['cases'].max())} patients (cases of a patient averaged)"
    caption = (
        f"{context.title(comparisons.reference)} minus the method with the 95 % interval: "
        f"{seed_count(comparisons.judged)}, {subjects}; calibration in region "
        f"“{comparisons.region}”. Bold: significant after Holm's correction over all differences "
        "of all datasets in this region. †: significant over cases, but not once seed variance is "
        "included. “Seeds”: share of the squared standard error that is due to seeds; if it is "
        "large, more cases do not help."
    )
    if comparisons.repeated:
        caption += " “–”: a calibrator left the masks unchanged."
    title = f"Differences with seed variance: {context.study.datasets[dataset].title}"
    return Table(
        f"seeds_{dataset}", title, tuple(columns), tuple(body), caption, _notes(context, rows),
        comparisons.region,
    )  # fmt: skip


def _digits(metric: str) -> int:
    """Differences are smaller than values: one digit more, except for distances."""
    digits = metric_column(metric).digits
    return digits if digits < 3 else digits + 1


def _cells(row: Any) -> tuple[Cell, Cell]:
    number = Number(float(row["mean_difference"]), seeds=int(row["seeds"]), cases=int(row["cases"]))
    digits = _digits(str(row["metric"]))
    after = ""
    if not math.isnan(row["low"]):
        low, high = (signed(row[end], digits) for end in ("low", "high"))
        after = f"[{low}, {high}]" + (" †" if significant_over_cases_only(row) else "")
    mark: Literal["", "significant"] = "significant" if significant(row) else ""
    share = Number(100 * float(row["seed_share"]))
    return Cell(number, signed=True, after=after, mark=mark), Cell(share)


def _notes(context: Context, rows: pd.DataFrame) -> tuple[str, ...]:
    """Which comparisons lack cases."""
    lost = [
        f"{metric_column(str(row['metric'])).title} against {context.title(str(row['other']))}: "
        f"{row['left_out']}"
        for _, row in rows.iterrows()
        if row["left_out"] and row["cases"]
    ]
    if not lost:
        return ()
    return (
        "Cases left out, because a method has no value in some seed (it missed a structure, or was "
        f"not evaluated on the case), which favors this method: {join(lost)}.",
    )
