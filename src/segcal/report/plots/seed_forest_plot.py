"""Forest plot: the reference minus each method, over seeds and cases and over cases alone."""

import pandas as pd
from matplotlib.axes import Axes

from segcal.metrics import better_direction
from segcal.report.blocks import Figure
from segcal.report.context import Context
from segcal.report.plots.ranks import short_titles
from segcal.report.plots.style import INK, MUTED, WHITE, panel_grid
from segcal.report.seed_comparisons import SeedComparisons, significant
from segcal.report.table_model import metric_column
from segcal.report.text import shorten


def draw_seed_forest(context: Context, comparisons: SeedComparisons, dataset: str) -> Figure:
    """One panel per metric, one row per method; significant differences have a filled marker."""
    rows = comparisons.rows[comparisons.rows["dataset"] == dataset]
    metrics = [str(name) for name in dict.fromkeys(rows["metric"])]
    shown = rows[[at not in comparisons.repeated for at in rows.index]]
    methods = [m for m in context.study.methods if m in set(rows["other"])]
    size, margins = (2.3, 0.95 + 0.26 * len(methods)), (1.9, 0.25)
    figure, panels = panel_grid(len(metrics), 4, size, margins, sharex=False)
    reference = context.title(comparisons.reference)
    for axes, metric in zip(panels, metrics, strict=True):
        _panel(axes, context, shown[shown["metric"] == metric], methods)
        axes.set_title(metric_column(metric).heading, loc="left")
        sides = ["others", shorten(reference, 12)]
        left, right = sides if better_direction(metric) == "higher" else sides[::-1]
        axes.set_xlabel(f"← {left} better · {right} better →", fontsize=7, color=MUTED)
    panels[0].set_yticks(range(len(methods)), short_titles(context, methods))
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    title = context.study.datasets[dataset].title
    figure.supxlabel(
        f"{shorten(reference, 30)} minus the method, {title}. 95 % intervals: thin over seeds and "
        "cases, thick over cases alone. Filled: significant after correction",
        fontsize=8,
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
