"""The reliability diagram: accuracy against confidence, with interval, counts and single cases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from segcal.metrics import LEVELS
from segcal.report.blocks import Figure
from segcal.report.context import Context
from segcal.report.curves import FEW_VOXELS, TRUTH, Curve, Floats
from segcal.report.plots.style import INK, MUTED, RULE, method_panels, panel_grid
from segcal.report.text import shorten, signed
from segcal.study import Dataset

# How many single cases are drawn behind a pooled curve.
MOST_CASES = 40


def draw_diagram(
    axes: Axes,
    curve: Curve,
    color: str,
    label: str,
    *,
    cases: Floats | None = None,
    edges: Sequence[float] | None = None,
    place: Any = None,
    scale: float = 1.0,
) -> None:
    """Draw the reliability diagram of a curve into the unit square.

    Args:
        label: text in the upper left corner.
        cases: sums (3, cases, bins) of single cases, drawn as thin lines behind the curve.
        edges: of the bins; equal ones by default.
        place: transform of the unit square; by default the data coordinates of `axes`.
        scale: of lines, markers and text.
    """
    at: dict[str, Any] = {} if place is None else {"transform": place}
    known = curve.count >= FEW_VOXELS
    few = (curve.count > 0) & ~known
    if edges is None:
        edges = np.linspace(0, 1, len(curve.count) + 1).tolist()
    share = np.sqrt(curve.count / max(curve.count.max(), 1.0))
    axes.stairs(0.22 * share, edges, fill=True, color=RULE, lw=0, **at)
    axes.plot([0, 1], [0, 1], color=MUTED, lw=0.7 * scale, ls=(0, (4, 3)), **at)
    if cases is not None:
        _draw_cases(axes, cases)
    x, y = curve.confidence, curve.accuracy
    if not np.isnan(curve.low).all():
        axes.fill_between(
            x[known], curve.low[known], curve.high[known], color=color, alpha=0.22, lw=0, **at
        )
    point: dict[str, Any] = {"color": color, "marker": "o", "ms": 2.6 * scale, **at}
    axes.plot(x[known], y[known], lw=1.3 * scale, **point)
    if few.any():
        axes.plot(x[few], y[few], lw=0, fillstyle="none", mew=0.7 * scale, **point)
    axes.text(
        0.03, 0.97, label, va="top", color=INK, fontsize=8 * scale,
        transform=axes.transAxes if place is None else place,
    )  # fmt: skip


def _square(axes: Axes) -> None:
    """Both axes from 0 to 1, with short labels."""
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.5, 1], ["0", "0.5", "1"])


def _draw_cases(axes: Axes, sums: Floats) -> None:
    """Thin lines of single cases, evenly selected if there are many."""
    count, confidence, accuracy = sums
    lines = []
    for i in np.unique(np.linspace(0, len(count) - 1, MOST_CASES).astype(int)):
        kept = count[i] >= FEW_VOXELS
        if kept.sum() > 1:
            n = count[i, kept]
            lines.append(np.column_stack([confidence[i, kept] / n, accuracy[i, kept] / n]))
    axes.add_collection(LineCollection(lines, colors=MUTED, linewidths=0.35, alpha=0.35))


def draw_reliability(context: Context, dataset: Dataset, *, truth: bool = False) -> Figure | None:
    """One diagram per method of a dataset; None without bins.

    With `truth` the diagrams are against the known true probabilities of all voxels.
    """
    name = dataset.name
    of = TRUTH if truth else context.region
    methods = [m for m in context.study.methods if (name, m, of) in context.curves]
    if not methods:
        return None
    figure, panels = method_panels(map(context.title, methods), 1.95)
    for axes, method in zip(panels, methods, strict=True):
        curve, cases = context.curves[name, method, of], context.bins[name, method].regions[of]
        label = _ece_label(curve)
        draw_diagram(axes, curve, context.colors[method], label, cases=cases)
        _square(axes)
    region, outcome = ("all", "true probability") if truth else (of, "accuracy")
    figure.supxlabel(f"confidence ({dataset.title}, region {region})")
    figure.supylabel(outcome)
    alt = (
        f"Reliability diagrams of {len(methods)} methods on {dataset.title}, region {region}: "
        f"{outcome} against confidence, pooled over cases, with 95 % intervals and voxel counts"
    )
    return Figure(f"{'truth' if truth else 'reliability'}_{name}", figure, alt)


def _ece_label(curve: Curve) -> str:
    if np.isnan(curve.ece):
        return "no voxels"
    return f"pooled ECE {curve.ece:.3f}\ngap {signed(curve.gap)}"


def draw_organs(context: Context, dataset: Dataset, method: str) -> Figure | None:
    """Accuracy against confidence of the voxels that a network calls each organ.

    Of many organs, those with the largest pooled ECE.
    """
    found = context.worst_levels(dataset, method)
    if not found:
        return None
    title = context.title(method)
    size = (2.75, 2.85) if len(found) > 3 else (3.6, 3.7)
    figure, panels = panel_grid(len(found), 4, size, (0.4, 0.4))
    # Inches beside each panel, so that "1" and the "0" of the next panel are not read as one.
    figure.set_layout_engine("constrained", w_pad=0.12)
    for axes, (label, curve) in zip(panels, found.items(), strict=True):
        draw_diagram(axes, curve, context.colors[method], _ece_label(curve), edges=LEVELS)
        axes.set_title(shorten(dataset.class_name(label), 26), loc="left")
        _square(axes)
    of = ""
    if context.has_many_organs(dataset):
        of = (
            f"; {len(found)} of {len(dataset.structures)} organs, those with the largest pooled ECE"
        )
    figure.supxlabel(f"confidence ({title}{of})")
    figure.supylabel("accuracy")
    alt = f"Reliability of {title} on {dataset.title} in the voxels that it calls each organ{of}"
    return Figure(f"organs_{dataset.name}_{method}", figure, alt)
