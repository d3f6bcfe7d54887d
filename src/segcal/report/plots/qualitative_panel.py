"""One case as one figure: image, truth, and the result of each method."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Affine2D

from segcal.report.blocks import Figure
from segcal.report.context import Context
from segcal.report.curves import Curve
from segcal.report.pictures import Bytes, CaseSlices
from segcal.report.plots.reliability import draw_diagram
from segcal.report.plots.style import INK, MUTED, new_figure
from segcal.report.text import fold, shorten

# Pixels: between tiles, above them for names of two lines, and above all for the title.
_GAP, _HEAD, _TITLE = 8, 31, 40
# Methods side by side; more would be too small on a page.
_ACROSS = 9


def draw_panel(context: Context, picture: CaseSlices) -> Figure:
    """All tiles are in one set of axes, in pixels, and one image: many axes would take seconds."""
    wide, high = picture.size
    side = max(wide, 120)
    across = min(_ACROSS, len(picture.methods))
    blocks = -(-len(picture.methods) // across)
    lefts = [i * (side + _GAP) for i in range(1 + across)]
    tiles = [_HEAD + i * (high + _GAP) for i in range(3)]
    block = tiles[2] + (side + _GAP if any(m.curve for m in picture.methods) else 0)
    width, height = lefts[-1] + side, blocks * block - _GAP
    figure = new_figure(width / 110, (height + _TITLE) / 110, layout=None)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + _TITLE)))
    canvas = np.full((height, width, 3), 255, np.uint8)
    if picture.has_image:
        _paste(canvas, np.repeat(picture.gray()[..., None], 3, 2), lefts[0], tiles[0])
    _paste(canvas, picture.mask(picture.truth), lefts[0], tiles[1 if picture.has_image else 0])
    _name(axes, lefts[0], 0, "image, truth" if picture.has_image else "truth", INK)
    for index, shown in enumerate(picture.methods):
        x, top = lefts[1 + index % across], index // across * block
        _paste(canvas, picture.mask(shown.labels), x, top + tiles[0])
        _paste(canvas, picture.doubt(shown.confidence), x, top + tiles[1])
        color = context.colors[shown.method]
        _name(axes, x, top, fold(context.title(shown.method)), color)
        axes.text(x + 4, top + tiles[1] - _GAP - 5, f"DSC {shown.dsc:.3f}", fontsize=7, color="w")
        if shown.curve is not None:
            _diagram(axes, shown.curve, x, top + tiles[2], side, color)
    axes.imshow(canvas, extent=(0, width, height, 0), interpolation="nearest", aspect="auto")
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    title = context.study.datasets[picture.dataset].title
    figure.text(
        0, 0.995, f"{shorten(title, 16)}: {picture.role} case, {shorten(picture.case, 20)}",
        va="top", fontweight="bold", fontsize=9,
    )  # fmt: skip
    about = f"mean DSC {picture.dsc:.3f}; reliability in region {context.region}"
    figure.text(0, 0.995 - 19 / (height + _TITLE), about, va="top", fontsize=7, color=MUTED)
    alt = (
        f"{picture.role} case {picture.case} of {title}: image, truth, and for each method the "
        "mask with the outline of the truth, the confidence map and the reliability diagram"
    )
    return Figure(f"panel_{picture.dataset}_{picture.role}", figure, alt, pixels=True)


def _paste(canvas: Bytes, picture: Bytes, x: int, y: int) -> None:
    high, wide = picture.shape[:2]
    canvas[y : y + high, x : x + wide] = picture


def _name(axes: Axes, x: int, top: int, text: str, color: str) -> None:
    axes.text(x, top + _HEAD - 5, text, fontsize=7.5, color=color, fontweight="bold")


def _diagram(axes: Axes, curve: Curve, x: int, y: int, side: int, color: str) -> None:
    """A reliability diagram of `side` pixels whose upper left corner is (x, y)."""
    place = Affine2D().scale(side, -side).translate(x, y + side) + axes.transData
    axes.plot([0, 0, 1], [1, 0, 0], color=MUTED, lw=0.6, transform=place)
    draw_diagram(axes, curve, color, f"ECE {curve.ece:.3f}", place=place, scale=0.85)
