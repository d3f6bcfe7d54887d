"""Heat maps of ranks, and the matrix of significant differences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from segcal.report.blocks import Figure
from segcal.report.context import Context
from segcal.report.plots.style import INK, MUTED, RULE, new_figure
from segcal.report.rankings import ALPHA, Rankings
from segcal.report.table_model import metric_column
from segcal.report.text import shorten


def short_titles(context: Context, methods: Sequence[str], length: int = 26) -> list[str]:
    """Printed names of methods, shortened to fit beside an axis."""
    return [shorten(context.title(m), length) for m in methods]


def draw_rank_maps(context: Context, ranks: Rankings) -> Figure:
    """Sum-rank on each dataset and metric, and mean-case-rank; best method on top."""
    titles = {name: context.study.datasets[name].title for name in ranks.datasets}
    names = {metric: metric_column(metric).title for metric in ranks.scores.metrics}
    columns = {f"{d}/{m}": f"{titles[d]}\n{names[m]}" for d in titles for m in names}
    rows = len(ranks.sums)
    width = 4.2 + 0.62 * len(columns) + 0.75 * len(titles)
    figure = new_figure(width, 1.0 + 0.3 * rows)
    left, right = figure.subplots(1, 2, width_ratios=[len(columns) + 1, len(titles) + 1])
    sums, cases = ranks.sums, ranks.cases
    _heat_map(left, sums[list(columns)].to_numpy(float), sums["sum_rank"], "{:g}")
    left.set_xticks(range(len(columns) + 1), [*columns.values(), "sum"])
    each = cases[[f"{d}/mean_case_rank" for d in ranks.datasets]].to_numpy(float)
    _heat_map(right, each, cases["mean_case_rank"], "{:.2f}")
    right.set_xticks(range(len(titles) + 1), [*titles.values(), "all"])
    for axes, table, title in ((left, sums, "Sum-rank"), (right, cases, "Mean-case-rank")):
        axes.set_yticks(range(rows), short_titles(context, list(table["method"])))
        axes.set_title(title, loc="left", fontweight="bold")
    alt = f"Heat maps of ranks; the best method by sum-rank is {context.title(ranks.best)}"
    return Figure("ranks", figure, alt)


def _heat_map(axes: Axes, each: Any, total: Any, form: str) -> None:
    """Cells colored by rank, rank 1 darkest; the total in its own column."""
    color = colormaps["Blues"]
    methods, columns = each.shape
    axes.set_xlim(-0.5, columns + 0.5)
    axes.set_ylim(methods - 0.5, -0.5)
    levels = 0.85 - 0.8 * (each - 1) / max(methods - 1, 1)
    axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(methods + 1) - 0.5, levels,
        cmap=color, vmin=0, vmax=1, edgecolors="face", linewidth=0.2,
    )  # fmt: skip
    for (i, j), value in np.ndenumerate(each):
        shade = _readable(color(levels[i, j]))
        axes.text(j, i, form.format(value), ha="center", va="center", color=shade)
    for i, value in enumerate(total):
        axes.text(columns, i, form.format(value), ha="center", va="center", fontweight="bold")
    axes.tick_params(length=0, labelcolor=INK)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)


def _readable(face: Sequence[float]) -> str:
    """Black or white, whichever has more contrast with a color (WCAG's relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in face[:3]]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#10151a" if light > 0.18 else "#fefefe"


def draw_significance(context: Context, ranks: Rankings) -> Figure:
    """Tests won and lost by the method in the row against that in the column, after correction."""
    methods = list(ranks.sums["method"])
    names, n = short_titles(context, methods), len(methods)
    most = max(1, len(ranks.datasets) * len(ranks.scores.metrics))
    figure = new_figure(max(4.8, 2.2 + 0.62 * n), 1.3 + 0.34 * n)
    axes = figure.subplots()
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(n - 0.5, -0.5)
    for i, method in enumerate(methods):
        for j, other in enumerate(methods):
            if i == j:
                continue
            won, lost = ranks.wins_and_losses(method, other)
            face: Any = colormaps["PuOr"](0.5 + 0.42 * (won - lost) / most)
            text, shade, alpha = f"{won}:{lost}", _readable(face), 1.0
            if not won and not lost:
                text, face, shade, alpha = "–", RULE, MUTED, 0.4
            axes.fill_between(
                [j - 0.48, j + 0.48], i - 0.46, i + 0.46, color=face, lw=0, alpha=alpha
            )
            axes.text(j, i, text, ha="center", va="center", color=shade)
    axes.set_yticks(range(n), names)
    axes.set_xticks(range(n), names, rotation=40, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"won:lost by the row, of {most} tests each (Holm, α = {ALPHA:g})")
    alt = f"Matrix of significant differences between {n} methods, won and lost by each row"
    return Figure("significance", figure, alt)
