"""The qualitative panel as one figure: image, truth, and what each method made of it."""

from typing import TYPE_CHECKING

import numpy as np

from segcal.report.figures import Drawing
from segcal.report.numbers import Numbers
from segcal.report.pictures import Bytes, CasePicture
from segcal.report.reliability import FEW_VOXELS, Curve
from segcal.report.style import INK, MUTED, RULE, colours, fold, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pixels: between tiles, above them for names of two lines, and above all for the title.
_GAP, _HEAD, _TITLE = 8, 31, 26
# Methods side by side; more would be too small on a page.
_ACROSS = 9


def draw_panel(numbers: Numbers, picture: CasePicture, region: str) -> Drawing:
    """One set of axes in pixels and one image hold all tiles: many axes would take seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    high, wide = picture.image.shape[:2]
    side = max(wide, 120)
    across = min(_ACROSS, len(picture.methods))
    blocks = -(-len(picture.methods) // across)
    lefts = [i * (side + _GAP) for i in range(1 + across)]
    tiles = [_HEAD + i * (high + _GAP) for i in range(3)]
    block = tiles[2] + (side + _GAP if any(m.curve for m in picture.methods) else 0)
    width, height = lefts[-1] + side, blocks * block - _GAP
    figure = Figure(figsize=(width / 110, (height + _TITLE) / 110))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + _TITLE)))
    canvas = np.full((height, width, 3), 255, np.uint8)
    if picture.has_image:
        _paste(canvas, picture.image, lefts[0], tiles[0])
    _paste(canvas, picture.truth, lefts[0], tiles[1 if picture.has_image else 0])
    _name(axes, lefts[0], 0, "image, truth" if picture.has_image else "truth", INK)
    tone = colours(list(numbers.study.methods))
    for index, made in enumerate(picture.methods):
        x, top = lefts[1 + index % across], index // across * block
        _paste(canvas, made.mask, x, top + tiles[0])
        _paste(canvas, made.confidence, x, top + tiles[1])
        _name(axes, x, top, fold(numbers.study.methods[made.method].title), tone[made.method])
        axes.text(x + 4, top + tiles[1] - _GAP - 5, f"DSC {made.dsc:.3f}", fontsize=7, color="w")
        if made.curve is not None:
            _diagram(axes, made.curve, x, top + tiles[2], side, tone[made.method])
    axes.imshow(canvas, extent=(0, width, height, 0), interpolation="nearest", aspect="auto")
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    title = numbers.study.datasets[picture.dataset].title
    words = f"{title}: {picture.role} case, {shorten(picture.case, 40)} (mean DSC {picture.dsc:.3f}"
    figure.text(
        0, 0.99, f"{words}; reliability in region {region})",
        va="top", fontweight="bold", fontsize=9,
    )  # fmt: skip
    alt = (
        f"{picture.role} case {picture.case} of {title}: image, truth, and of each method the "
        "mask with the outline of the truth, the confidence map and the reliability diagram"
    )
    return Drawing(f"panel_{picture.dataset}_{picture.role}", figure, alt)


def _paste(canvas: Bytes, picture: Bytes, x: int, y: int) -> None:
    high, wide = picture.shape[:2]
    canvas[y : y + high, x : x + wide] = picture


def _name(axes: "Axes", x: int, top: int, text: str, colour: str) -> None:
    axes.text(x, top + _HEAD - 5, text, fontsize=7.5, color=colour, fontweight="bold")


def _diagram(axes: "Axes", curve: Curve, x: int, y: int, side: int, colour: str) -> None:
    """A reliability diagram of `side` pixels whose upper left corner is (x, y)."""
    known = curve.count >= FEW_VOXELS
    share = 0.22 * np.sqrt(curve.count / max(curve.count.max(), 1.0))
    edges = x + side * np.linspace(0, 1, len(share) + 1)
    axes.stairs(y + side * (1 - share), edges, baseline=y + side, fill=True, color=RULE, lw=0)
    axes.plot([x, x + side], [y + side, y], color=MUTED, lw=0.6, ls=(0, (4, 3)))
    axes.plot([x, x, x + side], [y, y + side, y + side], color=MUTED, lw=0.6)
    axes.plot(
        x + side * curve.confidence[known], y + side * (1 - curve.accuracy[known]),
        color=colour, marker="o", ms=2.2, lw=1.1,
    )  # fmt: skip
    axes.text(x + 4, y + 12, f"ECE {curve.ece:.3f}", fontsize=7, color=INK)
