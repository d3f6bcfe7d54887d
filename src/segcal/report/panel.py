"""The qualitative panel as one figure: image, truth, and per method mask, confidence, reliability."""

from typing import TYPE_CHECKING

import numpy as np

from segcal.report.figures import Drawing
from segcal.report.numbers import Numbers
from segcal.report.pictures import Bytes, CasePicture
from segcal.report.reliability import Curve
from segcal.report.style import INK, MUTED, RULE, colours, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAP = 8.0  # between tiles, in pixels
_HEAD = 22.0


def draw_panel(numbers: Numbers, picture: CasePicture, region: str) -> Drawing:
    """All tiles lie in one set of axes, in pixels: many axes would take seconds to lay out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    high, wide = picture.image.shape[:2]
    side = max(wide, 120)
    curves = any(m.curve is not None for m in picture.methods)
    columns = 1 + len(picture.methods)
    width = columns * (side + _GAP) - _GAP
    height = _HEAD + 2 * (high + _GAP) + (side if curves else -_GAP)
    figure = Figure(figsize=(width / 110, (height + 26) / 110))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + 26)))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    title = numbers.study.datasets[picture.dataset].title
    figure.text(
        0, 1, f"{title}: {picture.role} case, {shorten(picture.case, 40)} (mean DSC "
        f"{picture.dsc:.3f}; reliability in region {region})",
        va="top", fontweight="bold", fontsize=9,
    )  # fmt: skip
    tone = colours(list(numbers.study.methods))
    _tile(axes, picture.image, 0, _HEAD, "image and truth", INK)
    _tile(axes, picture.truth, 0, _HEAD + high + _GAP)
    for i, made in enumerate(picture.methods, start=1):
        x = i * (side + _GAP)
        name = shorten(numbers.study.methods[made.method].title, 22)
        _tile(axes, made.mask, x, _HEAD, f"{name}  {made.dsc:.3f}", tone[made.method])
        _tile(axes, made.confidence, x, _HEAD + high + _GAP)
        if made.curve is not None:
            _diagram(axes, made.curve, x, _HEAD + 2 * (high + _GAP), side, tone[made.method])
    alt = (
        f"{picture.role} case {picture.case} of {title}: image, truth, and of each method the "
        "mask with the outline of the truth, the confidence map and the reliability diagram"
    )
    return Drawing(f"panel_{picture.dataset}_{picture.role}", figure, alt)


def _tile(
    axes: "Axes", picture: Bytes, x: float, y: float, text: str = "", colour: str = INK
) -> None:
    high, wide = picture.shape[:2]
    # Rows of the picture run down, and so does the axis.
    axes.imshow(picture, extent=(x, x + wide, y + high, y), interpolation="nearest", aspect="auto")
    if text:
        axes.text(x, y - 5, text, fontsize=7, color=colour, fontweight="bold")


def _diagram(axes: "Axes", curve: Curve, x: float, y: float, side: float, colour: str) -> None:
    known = curve.count > 0

    def across(values: object) -> object:
        return x + side * np.asarray(values)

    def down(values: object) -> object:
        return y + side * (1 - np.asarray(values))

    share = 0.22 * np.sqrt(curve.count / max(curve.count.max(), 1.0))
    edges = np.arange(len(share)) / len(share)
    axes.bar(
        across(edges), -side * share, width=side / len(share), bottom=y + side, align="edge",
        color=RULE, lw=0,
    )  # type: ignore[arg-type]  # fmt: skip
    axes.plot(across([0, 1]), down([0, 1]), color=MUTED, lw=0.6, ls=(0, (4, 3)))  # type: ignore[arg-type]
    axes.plot(across([0, 0, 1]), down([1, 0, 0]), color=MUTED, lw=0.6)  # type: ignore[arg-type]
    axes.plot(
        across(curve.confidence[known]), down(curve.accuracy[known]),
        color=colour, marker="o", ms=2.2, lw=1.1,
    )  # type: ignore[arg-type]  # fmt: skip
    axes.text(x + 4, y + 12, f"ECE {curve.ece:.3f}", fontsize=7, color=INK)
