"""Comparisons over seeds and cases: would a difference hold for newly trained networks?"""

from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes

from segcal.metrics import find_metric
from segcal.report.aggregates import Number
from segcal.report.blocks import Block, DataFile, Figure, Group, Section, Text
from segcal.report.context import Context
from segcal.report.findings.ranking import reference_note
from segcal.report.plots.style import INK, MUTED, WHITE, panel_grid, short_titles
from segcal.report.rankings import (
    FEW_CASES,
    SeedComparisons,
    seed_count,
    significant,
    significant_over_cases_only,
)
from segcal.report.table_model import Cell, Column, Row, Table, interval_text, metric_column
from segcal.report.text import count, join, shorten
from segcal.stats import Estimate

# With this many seeds, simulated false positives at p < 0.2 % stay below 1 %.
_ENOUGH_SEEDS = 5
# The note below a table lists up to this many comparisons that lack cases.
_LISTED = 8


def build(context: Context) -> Section | None:
    """A table per region and a forest plot for each dataset, or why there are none."""
    audit = context.study.info.kind == "audit"
    if context.rankings is None or (audit and context.aggregates.seeds < 2):
        return None  # an audited network has one seed, unless it was given several
    own = context.seed_comparisons[context.region]
    blocks: list[Block] = [Text(seeds_note(context, own))]
    for dataset in own.datasets:
        shown = [Group([draw_seed_forest(context, own, dataset)], region=context.region)]
        for region, each in context.seed_comparisons.items():
            if dataset in each.datasets:
                shown.append(Group([seeds_table(context, each, dataset)], region=region))
        title = context.study.datasets[dataset].title
        blocks.append(Group(shown, heading=title, dataset=dataset))
    if own:
        rows = {region: each.rows for region, each in context.seed_comparisons.items() if each}
        every = pd.concat(rows, names=["family"]).reset_index("family")
        blocks.append(DataFile("seeds", every))
    return Section("seeds", "Differences with seed variance", blocks, menu="Seeds")


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
        "Satterthwaite's degrees of freedom). Runs of the same seed are paired: they start from "
        "the same weights and see the same order of batches."
    )
    fewest = int(comparisons.judged["seeds"].min())
    if fewest == 2:
        out += (
            " Two seeds determine their variance poorly: if most variance is between seeds, small "
            "p-values are far too small (6 false positives in 100 where a corrected test promises "
            "2 in 1,000). Use three seeds or more; five are recommended."
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
    found = Estimate(*(float(row[key]) for key in ("mean_difference", "low", "high")))
    after = interval_text(found, digits, signed=True)
    if after and significant_over_cases_only(row):
        after += " †"
    mark: Literal["", "significant"] = "significant" if significant(row) else ""
    share = Number(100 * float(row["seed_share"]))
    return Cell(number, signed=True, after=after, mark=mark), Cell(share)


def _notes(context: Context, rows: pd.DataFrame) -> tuple[str, ...]:
    """Which comparisons lack cases; of many, the range for each metric."""
    short = rows[(rows["left_out"] > 0) & (rows["cases"] > 0)]
    if len(short) <= _LISTED:
        lost = [
            f"{metric_column(str(row['metric'])).title} against "
            f"{context.title(str(row['other']))}: {row['left_out']}"
            for _, row in short.iterrows()
        ]
    else:
        lost = [
            f"{metric_column(metric).title}: {_range(short[short['metric'] == metric])}"
            for metric in dict.fromkeys(map(str, short["metric"]))
        ]
    text = (
        "Cases left out, because a method has no value in some seed (it missed a structure, or was "
        "not evaluated on the case), which favors this method: "
    )
    end = "." if len(short) <= _LISTED else " (each comparison: tables/seeds.csv)."
    return (f"{text}{join(lost)}{end}",) if lost else ()


def _range(rows: pd.DataFrame) -> str:
    fewest, most = int(rows["left_out"].min()), int(rows["left_out"].max())
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{number} against {count(len(rows), 'method')}"


def draw_seed_forest(context: Context, comparisons: SeedComparisons, dataset: str) -> Figure:
    """One panel per metric, one row per method; significant differences have a filled marker."""
    rows = comparisons.rows[comparisons.rows["dataset"] == dataset]
    metrics = [str(name) for name in dict.fromkeys(rows["metric"])]
    shown = rows[[at not in comparisons.repeated for at in rows.index]]
    methods = [m for m in context.listed if m in set(rows["other"])]
    shown = shown[shown["other"].isin(methods)]
    size, margins = (2.3, 0.95 + 0.26 * len(methods)), (1.9, 0.25)
    figure, panels = panel_grid(len(metrics), 4, size, margins, sharex=False)
    reference = context.title(comparisons.reference)
    for axes, metric in zip(panels, metrics, strict=True):
        _panel(axes, context, shown[shown["metric"] == metric], methods)
        axes.set_title(metric_column(metric).heading, loc="left")
        sides = ["others", shorten(reference, 12)]
        left, right = sides if find_metric(metric).better == "higher" else sides[::-1]
        axes.set_xlabel(f"← {left} better · {right} better →", fontsize=7, color=MUTED)
    panels[0].set_yticks(range(len(methods)), short_titles(map(context.title, methods)))
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    title = context.study.datasets[dataset].title
    figure.supxlabel(
        f"{shorten(reference, 30)} minus the method, {title}. 95 % intervals: thin over seeds and "
        "cases, thick over cases alone. Filled: significant after correction"
    )
    alt = (
        f"Differences between {reference} and each method with intervals over seeds and cases, and "
        f"over cases alone, {title}"
    )
    return Figure(f"seeds_{dataset}", figure, alt)


def _panel(axes: Axes, context: Context, rows: pd.DataFrame, methods: list[str]) -> None:
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    if rows["mean_difference"].isna().all():
        axes.text(0.5, 0.5, "no complete case", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_xticks([])
        return
    axes.axvline(0, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for _, row in rows.iterrows():
        method = str(row["other"])
        y, color = methods.index(method), context.colors[method]
        axes.plot(
            [row["low_cases"], row["high_cases"]], [y, y], color=color, lw=5, alpha=0.3,
            solid_capstyle="butt", zorder=2,
        )  # fmt: skip
        if row["seeds"] > 1:
            axes.plot([row["low"], row["high"]], [y, y], color=color, lw=1.1, zorder=3)
        axes.plot(
            row["mean_difference"], y, context.markers[method], color=color, ms=5, mew=1.1,
            zorder=4, markerfacecolor=color if significant(row) else WHITE,
        )  # fmt: skip
    axes.grid(axis="x", lw=0.5)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)
