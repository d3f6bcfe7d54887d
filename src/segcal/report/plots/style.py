"""The look of all figures, and how they are saved and put into the page."""

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from segcal.report.text import fold, shorten

# Okabe and Ito's colors, then more that color-blind readers can tell apart; markers differ too.
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b4ea3", "#8c6d31",
    "#5f6b7a", "#b2182b", "#1b7837", "#c2a5cf", "#4d4d9f", "#a6611a",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
# Bright colors for classes on gray images; none is the color of a method, or white, the outline.
CLASS_COLORS = (
    "#ffe14d", "#4dd8ff", "#ff66c4", "#7dff6b", "#ff7a4d", "#b388ff", "#2affd5", "#ffb3a7",
    "#c6d94a", "#7aa2ff", "#ff4d6a", "#d9a36a", "#a7ffcf", "#e0b3ff",
)  # fmt: skip
# Over the image: where the confidence is low; and errors: missed, extra, another class.
DOUBT_COLOR = "#ff9500"
ERROR_COLORS = {"missed": "#ff2d2d", "extra": "#2f7bff", "other class": "#d14dff"}

INK, MUTED, RULE, WHITE = "#1b1f24", "#667078", "#d5d9de", "#ffffff"
# In the page these become variables, which differ between the light and the dark theme.
_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", WHITE: "var(--paper)"}

_LEAST_WIDTH = 600  # pixels of a figure on a narrow screen
_RC: dict[Any, Any] = {
    "figure.facecolor": WHITE, "axes.facecolor": WHITE, "savefig.facecolor": WHITE,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": MUTED, "ytick.color": MUTED, "grid.color": RULE, "axes.linewidth": 0.6,
    "font.size": 8.5, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "legend.fontsize": 8, "figure.labelsize": 8, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "segcal", "text.parse_math": False,
    "lines.linewidth": 1.2, "font.family": "DejaVu Sans", "axes.unicode_minus": True,
}  # fmt: skip


def method_colors(methods: Sequence[str]) -> dict[str, str]:
    """A color per method; a calibrated method has the color of its network.

    Example:
        >>> method_colors(["ce", "nacl", "ce+temperature"])
        {'ce': '#0072b2', 'nacl': '#d55e00', 'ce+temperature': '#0072b2'}
    """
    base = {m: m.rsplit("+", 1)[0] for m in methods}
    own = [m for m in methods if base[m] == m or base[m] not in base]
    colors = {m: COLORS[i % len(COLORS)] for i, m in enumerate(own)}
    return {m: colors[m] if m in colors else colors.get(base[m], COLORS[-1]) for m in methods}


def short_titles(titles: Iterable[str]) -> list[str]:
    """Names of methods, shortened to fit beside an axis."""
    return [shorten(title, 26) for title in titles]


def method_panels(titles: Iterable[str], height: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per method; a title of two lines makes the panels higher."""
    folded = [fold(title) for title in titles]
    height += 0.15 * any("\n" in title for title in folded)
    figure, panels = panel_grid(len(folded), 5, (1.75, height), (0.5, 0.35))
    for axes, title in zip(panels, folded, strict=True):
        axes.set_title(title, loc="left")
    return figure, panels


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in this style; dollar signs and rare letters in names are plain text."""
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    """A figure of this size in inches, which needs no window system."""
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def panel_grid(
    count: int,
    most_across: int,
    size: tuple[float, float],
    margins: tuple[float, float],
    sharex: bool = True,
    sharey: bool = True,
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of this size in inches, which may share their axes."""
    across = min(most_across, count)
    down = -(-count // across)
    figure = new_figure(margins[0] + size[0] * across, margins[1] + size[1] * down)
    grid = figure.subplots(down, across, sharex=sharex, sharey=sharey, squeeze=False)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:count])


def save_figure(figure: Figure, path: Path) -> str:
    """Write `path`.png and `path`.svg; returns the text of the latter.

    The figure is laid out once and drawn twice; `savefig` would lay it out for each file.
    """
    figure.set_dpi(150)
    canvas: Any = FigureCanvasAgg(figure)  # its buffer has no type
    canvas.draw()
    # The name of a dataset may contain a dot: Path.with_suffix would cut it.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(f"{path}.png")
    figure.set_layout_engine("none")
    text, canvas = io.StringIO(), FigureCanvasSVG(figure)
    canvas.print_svg(text, metadata={"Date": None})
    Path(f"{path}.svg").write_text(text.getvalue(), encoding="utf-8")
    return text.getvalue()


def inline_svg(svg: str, name: str, alt: str) -> Markup:
    """An SVG file's text as an element of the page.

    Identifiers get the figure's name, because a page has many figures, and neutral colors become
    the page's, so that one drawing serves light and dark. matplotlib has escaped the text itself.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", body)  # equal images have equal ids
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    for color, variable in _THEMED.items():
        body = body.replace(color, variable)
    body = re.sub(r' (?:d|x|y|transform|points)="[^"]*"', _two_decimals, body)
    body = re.sub(r"\n\s*", "\n", body)
    width = re.search(r'width="([\d.]+)pt"', body)
    wide = round(float(width[1]) * 4 / 3) if width else 600
    # Never larger than drawn; a narrow screen scrolls instead of making it too small to read.
    style = f"max-width:{wide}px;min-width:{min(wide, _LEAST_WIDTH)}px"
    for name in ("width", "height"):
        body = re.sub(rf'(<svg[^>]*?) {name}="[^"]*"', r"\1", body, count=1)
    opening = Markup('<svg class="drawn" role="img" aria-label="{}" style="{}"').format(alt, style)
    return Markup(body.replace("<svg", opening, 1))


def _two_decimals(found: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point, which is less than a pixel."""
    return re.sub(r"(\.\d\d)\d+", r"\1", found[0])
