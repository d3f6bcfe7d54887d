"""Figures of rankings, tests, logits and cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from segcal.report.numbers import Numbers
from segcal.report.ranks import ALPHA, Ranks, verdicts
from segcal.report.style import INK, MUTED, RULE, colours, fold, markers, shorten
from segcal.report.table import metric_column
from segcal.study import Dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# From this ratio of the largest to the smallest logit on they are shown on a logarithmic axis.
_WIDE = 30


@dataclass(frozen=True)
class Drawing:
    """A figure to be saved under a name, with what it says to whom cannot see it."""

    name: str
    figure: "Figure"
    alt: str


def new_figure(width: float, height: float) -> "Figure":
    """A figure without a window system, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def titles(numbers: Numbers, methods: Sequence[str], length: int = 26) -> list[str]:
    """Printed names of methods, cut to fit."""
    return [shorten(numbers.study.methods[m].title, length) for m in methods]


def draw_rank_maps(numbers: Numbers, ranks: Ranks) -> Drawing:
    """Sum-rank (each dataset and metric) and mean-case-rank, best method on top."""
    study = numbers.study
    columns = [
        (f"{d}/{m}", f"{study.datasets[d].title}\n{metric_column(m).title}")
        for d in ranks.datasets
        for m in ranks.scores.metrics
    ]
    rows = len(ranks.sums)
    wide = 0.62 * len(columns)
    figure = new_figure(4.2 + wide + 0.75 * len(ranks.datasets), 1.0 + 0.3 * rows)
    left, right = figure.subplots(
        1, 2, width_ratios=[len(columns) + 1, len(ranks.datasets) + 1], squeeze=True
    )
    each = ranks.sums[[key for key, _ in columns]].to_numpy(float)
    _heat(left, each, ranks.sums["sum_rank"].to_numpy(float), rows, "{:g}", "{:g}")
    left.set_xticks(range(len(columns) + 1), [*(text for _, text in columns), "sum"])
    left.set_yticks(range(rows), titles(numbers, list(ranks.sums["method"])))
    left.set_title("Sum-rank", loc="left", fontweight="bold")
    each = ranks.cases[[f"{d}/mean_case_rank" for d in ranks.datasets]].to_numpy(float)
    _heat(right, each, ranks.cases["mean_case_rank"].to_numpy(float), rows, "{:.2f}", "{:.2f}")
    names = [study.datasets[d].title for d in ranks.datasets]
    right.set_xticks(range(len(names) + 1), [*names, "all"])
    right.set_yticks(range(rows), titles(numbers, list(ranks.cases["method"])))
    right.set_title("Mean-case-rank", loc="left", fontweight="bold")
    alt = "Heat maps of ranks; the best by sum-rank is " + study.methods[ranks.best].title
    return Drawing("ranks", figure, alt)


def _heat(axes: "Axes", each: Any, total: Any, worst: int, form: str, last: str) -> None:
    """Cells coloured by rank, 1 the lightest; the total in a column of its own."""
    from matplotlib import colormaps

    colour = colormaps["Blues"]
    axes.set_xlim(-0.5, each.shape[1] + 0.5)
    axes.set_ylim(len(each) - 0.5, -0.5)
    levels = (each - 1) / max(worst - 1, 1)
    axes.pcolormesh(
        np.arange(each.shape[1] + 1) - 0.5, np.arange(len(each) + 1) - 0.5, 0.85 - 0.8 * levels,
        cmap=colour, vmin=0, vmax=1, edgecolors="face", linewidth=0.2,
    )  # fmt: skip
    for (i, j), value in np.ndenumerate(each):
        shade = _readable(colour(0.85 - 0.8 * levels[i, j]))
        axes.text(j, i, form.format(value), ha="center", va="center", color=shade)
    for i, value in enumerate(total):
        axes.text(each.shape[1], i, last.format(value), ha="center", va="center", fontweight="bold")
    axes.tick_params(length=0, labelcolor=INK)
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)


def _readable(face: Sequence[float]) -> str:
    """Black or white, whichever stands out more from a colour (WCAG's relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in face[:3]]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#10151a" if light > 0.18 else "#fefefe"


def draw_significance(numbers: Numbers, ranks: Ranks) -> Drawing:
    """Who beats whom: tests won and lost by the row against the column, after correction."""
    from matplotlib import colormaps

    methods = list(ranks.sums["method"])
    names, n = titles(numbers, methods, 26), len(methods)
    most = max(1, len(ranks.datasets) * len(ranks.scores.metrics))
    figure = new_figure(max(4.8, 2.2 + 0.62 * n), 1.3 + 0.34 * n)
    axes = figure.subplots()
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(n - 0.5, -0.5)
    colour = colormaps["PuOr"]
    for i, method in enumerate(methods):
        for j, other in enumerate(methods):
            if i == j:
                continue
            won, lost = verdicts(ranks.tests, method, other)
            balance = (won - lost) / most
            face = colour(0.5 + 0.42 * balance) if won or lost else RULE
            axes.fill_between(
                [j - 0.48, j + 0.48], i - 0.46, i + 0.46, color=face, lw=0,
                alpha=None if won or lost else 0.4,
            )  # fmt: skip
            text = f"{won}:{lost}" if won or lost else "–"
            shade = _readable(colour(0.5 + 0.42 * balance)) if won or lost else MUTED
            axes.text(j, i, text, ha="center", va="center", color=shade)
    axes.set_yticks(range(n), names)
    axes.set_xticks(range(n), names, rotation=40, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"won:lost by the row, of {most} tests each (Holm, α = {ALPHA:g})")
    alt = f"Matrix of significant differences between {n} methods, won and lost by each row"
    return Drawing("significance", figure, alt)


def draw_logits(numbers: Numbers, dataset: Dataset) -> Drawing | None:
    """Mean |logit| of the voxels of each true class: one box per method, one panel per class."""
    rows = numbers.rows
    rows = rows[(rows["metric"] == "mean_abs_logit") & (rows["dataset"] == dataset.name)]
    if rows.empty or rows["value"].notna().sum() == 0:
        return None
    labels = list(dict.fromkeys(rows["label"].astype(str)))
    methods = [m for m in numbers.study.methods if m in set(rows["method"])]
    values = rows.groupby(["label", "method", "case"], observed=True)["value"].mean()
    of, by = (values.index.get_level_values(name) for name in ("label", "method"))
    across = min(4, len(labels))
    down = -(-len(labels) // across)
    figure = new_figure(1.6 + 1.75 * across, down * (0.55 + 0.2 * len(methods)) + 0.3)
    grid = figure.subplots(down, across, sharey=True, sharex=True, squeeze=False)
    tone = colours(list(numbers.study.methods))
    for axes, label in zip(grid.flat, labels, strict=False):
        found = [values[(of == label) & (by == m)].dropna().to_numpy() for m in methods]
        boxes = axes.boxplot(
            found, orientation="horizontal", widths=0.62, patch_artist=True,
            positions=range(len(methods)),
            flierprops={"marker": ".", "markersize": 3},
        )  # fmt: skip
        _paint(boxes, [tone[m] for m in methods])
        axes.set_title(shorten(dataset.class_name(label), 20), loc="left")
        axes.grid(axis="x", lw=0.5)
        axes.set_axisbelow(True)
    for axes in grid.flat[len(labels) :]:
        axes.set_visible(False)
    grid[0, 0].set_yticks(range(len(methods)), titles(numbers, methods))
    grid[0, 0].invert_yaxis()
    figure.supxlabel(
        f"mean |logit| over the voxels of each true class, one value per case ({dataset.title})",
        fontsize=8,
    )
    if values.max() > _WIDE * values.min() > 0:
        grid[0, 0].set_xscale("log")  # the few that are large would leave no room for the others
        grid[0, 0].xaxis.set_major_formatter("{x:g}")
        grid[0, 0].xaxis.set_minor_formatter("")
    else:
        grid[0, 0].set_xlim(left=0)
    for axes in grid.flat:
        axes.tick_params(axis="y", labelcolor=INK, length=0)
    alt = f"Distribution over cases of mean |logit| per true class and method, {dataset.title}"
    return Drawing(f"logits_{dataset.name}", figure, alt)


def _paint(boxes: Any, tones: Sequence[str]) -> None:
    """Each box in its method's colour; whiskers and caps come in pairs."""
    for i, tone in enumerate(tones):
        boxes["boxes"][i].set(facecolor=f"{tone}55", edgecolor=tone, linewidth=1.1)
        boxes["medians"][i].set(color=tone, linewidth=1.6)
        boxes["fliers"][i].set(markeredgecolor=tone, markerfacecolor=tone)
        for part in (*boxes["whiskers"][2 * i : 2 * i + 2], *boxes["caps"][2 * i : 2 * i + 2]):
            part.set(color=tone, linewidth=1.0)


def draw_scatter(numbers: Numbers, dataset: Dataset, region: str) -> Drawing | None:
    """DSC against ECE: one point per case, one panel per method, all cases in grey behind."""
    dsc = numbers.cases(dataset.name, "dsc")
    ece = numbers.cases(dataset.name, "ece", region)
    methods = [m for m in dsc.columns if m in ece.columns]
    if not methods:
        return None
    ece = ece.reindex(dsc.index)
    across = min(5, len(methods))
    down = -(-len(methods) // across)
    names = [fold(numbers.study.methods[m].title) for m in methods]
    high = 1.8 if any("\n" in name for name in names) else 1.65
    figure = new_figure(0.5 + 1.75 * across, 0.35 + high * down)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    tone = colours(list(numbers.study.methods))
    shape = markers(list(numbers.study.methods))
    every = (dsc[methods].to_numpy().ravel(), ece[methods].to_numpy().ravel())
    for axes, method, name in zip(grid.flat, methods, names, strict=False):
        # As pixels, and in a grey for light and dark: thousands of points would make the page slow.
        axes.scatter(*every, s=6, color="#8a939b", alpha=0.3, lw=0, rasterized=True)
        axes.scatter(
            dsc[method], ece[method], s=13, color=tone[method], marker=shape[method],
            lw=0, alpha=0.85, rasterized=len(dsc) > 500,
        )  # fmt: skip
        axes.set_title(name, loc="left")
        axes.grid(lw=0.4)
        axes.set_axisbelow(True)
    for axes in grid.flat[len(methods) :]:
        axes.set_visible(False)
    figure.supxlabel(f"DSC of a case ({dataset.title})", fontsize=8)
    figure.supylabel(f"ECE, {region}", fontsize=8)
    alt = f"Scatter of DSC against ECE in region {region} per case and method, {dataset.title}"
    return Drawing(f"cases_{dataset.name}", figure, alt)
