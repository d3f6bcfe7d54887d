"""Forest plot: the difference of a method to each other one, with and without counting seeds."""

from typing import TYPE_CHECKING

from segcal.metrics import better_direction
from segcal.report.figures import Drawing, new_figure, titles
from segcal.report.numbers import Numbers
from segcal.report.seeds import Counted, remains
from segcal.report.style import INK, MUTED, WHITE, colours, markers, shorten
from segcal.report.table import metric_column

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def draw_forest(numbers: Numbers, counted: Counted, dataset: str) -> Drawing:
    """One panel per metric, one row per method; filled points remain after correction."""
    rows = counted.rows[counted.rows["dataset"] == dataset]
    metrics = [str(name) for name in dict.fromkeys(rows["metric"])]
    shown = rows[[at not in counted.twins for at in rows.index]]
    methods = [m for m in numbers.study.methods if m in set(rows["other"])]
    across = min(4, len(metrics))
    down = -(-len(metrics) // across)
    figure = new_figure(1.9 + 2.3 * across, down * (0.95 + 0.26 * len(methods)) + 0.25)
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    mine = numbers.study.methods[counted.reference].title
    for axes, metric in zip(grid.flat, metrics, strict=False):
        _panel(axes, numbers, shown[shown["metric"] == metric], methods)
        axes.set_title(metric_column(metric).heading, loc="left")
        sides = ["others", shorten(mine, 12)]
        left, right = sides if better_direction(metric) == "higher" else sides[::-1]
        axes.set_xlabel(f"← {left} better · {right} better →", fontsize=7, color=MUTED)
    for axes in grid.flat[len(metrics) :]:
        axes.set_visible(False)
    grid[0, 0].set_yticks(range(len(methods)), titles(numbers, methods))
    grid[0, 0].set_ylim(len(methods) - 0.5, -0.5)
    title = numbers.study.datasets[dataset].title
    figure.supxlabel(
        f"{shorten(mine, 30)} minus the method, {title}. Thin: 95 % over seeds and cases; thick: "
        "over cases alone; filled: remains after correction",
        fontsize=8,
    )
    alt = (
        f"Differences of {mine} to each method with intervals over seeds and cases, and over cases "
        f"alone, {title}"
    )
    return Drawing(f"seeds_{dataset}", figure, alt)


def _panel(axes: "Axes", numbers: Numbers, rows: "pd.DataFrame", methods: list[str]) -> None:
    names = list(numbers.study.methods)
    tone, shape = colours(names), markers(names)
    if rows["mean_difference"].isna().all():
        axes.text(0.5, 0.5, "no complete case", transform=axes.transAxes, ha="center", color=MUTED)
        axes.set_xticks([])
        axes.tick_params(axis="y", labelcolor=INK, length=0)
        return
    axes.axvline(0, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for _, row in rows.iterrows():
        method = str(row["other"])
        y, colour = methods.index(method), tone[method]
        axes.plot(
            [row["low_cases"], row["high_cases"]], [y, y], color=colour, lw=5, alpha=0.3,
            solid_capstyle="butt", zorder=2,
        )  # fmt: skip
        if row["seeds"] > 1:
            axes.plot([row["low"], row["high"]], [y, y], color=colour, lw=1.1, zorder=3)
        axes.plot(
            row["mean_difference"], y, shape[method], color=colour, ms=5, mew=1.1, zorder=4,
            markerfacecolor=colour if remains(row) else WHITE,
        )  # fmt: skip
    axes.grid(axis="x", lw=0.5)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", labelcolor=INK, length=0)
