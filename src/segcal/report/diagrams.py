"""Reliability diagrams as small multiples: curve, interval, counts, and single cases behind."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from segcal.report.figures import Drawing, new_figure
from segcal.report.numbers import Numbers
from segcal.report.reliability import FEW_VOXELS, CaseBins, Curve, Floats
from segcal.report.style import INK, MUTED, RULE, colours, fold
from segcal.study import Dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Single cases that are drawn behind a curve.
MOST_CASES = 40


def draw_reliability(
    numbers: Numbers,
    dataset: Dataset,
    bins: Mapping[tuple[str, str], CaseBins],
    region: str,
    *,
    name: str,
    outcome: str = "accuracy",
) -> Drawing | None:
    """One panel per method of a dataset; None where no run has bins of the region."""
    methods = [
        m
        for m in numbers.study.methods
        if (dataset.name, m) in bins and region in bins[dataset.name, m].regions
    ]
    if not methods:
        return None
    across = min(5, len(methods))
    down = -(-len(methods) // across)
    folded = any("\n" in fold(numbers.study.methods[m].title) for m in methods)
    figure = new_figure(0.5 + 1.75 * across, 0.35 + (2.1 if folded else 1.95) * down)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    tone = colours(list(numbers.study.methods))
    for axes, method in zip(grid.flat, methods, strict=False):
        found = bins[dataset.name, method]
        curve = found.pooled(region)
        assert curve is not None
        _cases(axes, found.regions[region])
        _diagram(axes, curve, tone[method])
        axes.set_title(fold(numbers.study.methods[method].title), loc="left")
    for axes in grid.flat[len(methods) :]:
        axes.set_visible(False)
    figure.supxlabel(f"confidence ({dataset.title}, region {region})", fontsize=8)
    figure.supylabel(outcome, fontsize=8)
    alt = (
        f"Reliability diagrams of {len(methods)} methods on {dataset.title}, region {region}: "
        f"{outcome} against confidence, pooled over cases, with 95 % intervals and voxel counts"
    )
    return Drawing(name, figure, alt)


def _cases(axes: "Axes", sums: Floats) -> None:
    """Thin lines of single cases, evenly chosen if there are many."""
    from matplotlib.collections import LineCollection

    count, confidence, accuracy = sums
    chosen = np.unique(np.linspace(0, len(count) - 1, MOST_CASES).astype(int))
    lines = []
    for i in chosen:
        kept = count[i] >= FEW_VOXELS
        if kept.sum() > 1:
            n = count[i, kept]
            lines.append(np.column_stack([confidence[i, kept] / n, accuracy[i, kept] / n]))
    axes.add_collection(LineCollection(lines, colors=MUTED, linewidths=0.35, alpha=0.35))


def _diagram(axes: "Axes", curve: Curve, colour: str) -> None:
    known = curve.count >= FEW_VOXELS
    few = (curve.count > 0) & ~known
    edges = np.linspace(0, 1, len(curve.count) + 1)
    share = np.sqrt(curve.count / max(curve.count.max(), 1.0))
    axes.stairs(0.22 * share, edges, fill=True, color=RULE, lw=0)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.7, ls=(0, (4, 3)))
    x = curve.confidence[known]
    axes.fill_between(x, curve.low[known], curve.high[known], color=colour, alpha=0.22, lw=0)
    axes.plot(x, curve.accuracy[known], color=colour, marker="o", ms=2.6, lw=1.3)
    axes.plot(
        curve.confidence[few], curve.accuracy[few], color=colour, marker="o", ms=2.6, lw=0,
        fillstyle="none", mew=0.7,
    )  # fmt: skip
    axes.text(
        0.03, 0.97, f"ECE {curve.ece:.3f}\ngap {curve.gap:+.3f}".replace("-", "−"), va="top",
        color=INK, fontsize=8, transform=axes.transAxes,
    )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
