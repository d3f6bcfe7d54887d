"""One look for all figures: colours of methods, neutral tones, and SVG that follows the page."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, then more that stay apart for colour-blind eyes; the shape says it again.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b4ea3", "#8c6d31",
    "#5f6b7a", "#b2182b", "#1b7837", "#c2a5cf", "#4d4d9f", "#a6611a",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
# Classes on grey images: bright.
CLASSES = ("#e69f00", "#56b4e9", "#33cc66", "#f0e442", "#d55e00", "#cc79a7", "#4477ff", "#ffffff")

INK, MUTED, RULE, WHITE = "#1b1f24", "#667078", "#d5d9de", "#ffffff"
# In the page these follow light and dark.
_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", WHITE: "var(--paper)"}

_RC: dict[Any, Any] = {
    "figure.facecolor": WHITE, "axes.facecolor": WHITE, "savefig.facecolor": WHITE,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED,
    "xtick.color": MUTED, "ytick.color": MUTED, "grid.color": RULE, "axes.linewidth": 0.6,
    "font.size": 8.5, "axes.titlesize": 9, "axes.labelsize": 9, "xtick.labelsize": 8,
    "ytick.labelsize": 8, "legend.fontsize": 8, "axes.spines.top": False,
    "axes.spines.right": False, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "segcal", "text.parse_math": False,
    "lines.linewidth": 1.2, "font.family": "DejaVu Sans", "axes.unicode_minus": True,
}  # fmt: skip


def colours(methods: Sequence[str]) -> dict[str, str]:
    """A colour per method, the same in every figure; a calibrated one has that of its network.

    Example:
        >>> colours(["ce", "nacl", "ce+temperature"])
        {'ce': '#0072b2', 'nacl': '#d55e00', 'ce+temperature': '#0072b2'}
    """
    known = set(methods)
    base = {m: m.rsplit("+", 1)[0] for m in methods}
    own = [m for m in methods if base[m] == m or base[m] not in known]
    tones = {m: COLOURS[i % len(COLOURS)] for i, m in enumerate(own)}
    return {m: tones[m] if m in tones else tones.get(base[m], COLOURS[-1]) for m in methods}


def markers(methods: Sequence[str]) -> dict[str, str]:
    """A shape per method."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(methods)}


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw in this look; names with a dollar sign or a rare letter are text like any other."""
    import warnings

    import matplotlib

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def shorten(text: str, length: int = 24) -> str:
    """The text, cut in the middle if it is longer.

    Example:
        >>> shorten("a very long name of a case", 11)
        'a ver… case'
    """
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[len(text) - half :]}"


def fold(text: str, length: int = 20) -> str:
    """The text in two lines if it is longer and has a plus to break at, each cut if need be.

    Example:
        >>> fold("MbLS (m=5) + temperature")
        'MbLS (m=5)\\n+ temperature'
    """
    first, plus, second = text.partition(" + ")
    if len(text) <= length or not plus:
        return shorten(text, length)
    return f"{shorten(first, length)}\n+ {shorten(second, length - 2)}"


def save_figure(figure: "Figure", path: Path) -> str:
    """Write `path`.png and `path`.svg; returns the text of the latter.

    The figure is laid out once and drawn twice: `savefig` would do both again for each file.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from PIL import Image

    figure.set_dpi(150)
    canvas: Any = FigureCanvasAgg(figure)  # its buffer has no types
    canvas.draw()
    # Next to the name: a dataset's own name may hold a dot.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").save(f"{path}.png")
    figure.set_layout_engine("none")
    text = io.StringIO()
    vector: Any = FigureCanvasSVG(figure)
    vector.print_svg(text, metadata={"Date": None})
    Path(f"{path}.svg").write_text(text.getvalue(), encoding="utf-8")
    return text.getvalue()


def inline(svg: str, name: str, alt: str) -> Markup:
    """An SVG file's text as an element of the page.

    Identifiers get the figure's name (a page has many figures), neutral colours become the
    page's, so that one drawing serves light and dark. The text itself was escaped by matplotlib.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", body)  # equal pictures have equal names
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    for colour, variable in _THEMED.items():
        body = body.replace(colour, variable)
    body = re.sub(r' (?:d|x|y|transform|points)="[^"]*"', _shorter, body)
    body = re.sub(r"\n\s*", "\n", body)
    width = re.search(r'width="([\d.]+)pt"', body)
    wide = round(float(width[1]) * 4 / 3) if width else 600
    # Never larger than drawn, and on a narrow screen scrolled rather than too small to read.
    style = f"max-width:{wide}px;min-width:{min(wide, 600)}px"
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    opening = Markup('<svg class="drawn" role="img" aria-label="{}" style="{}"').format(alt, style)
    return Markup(body.replace("<svg", opening, 1))


def _shorter(found: re.Match[str]) -> str:
    """Coordinates with two decimals: a hundredth of a point cannot be seen."""
    return re.sub(r"(\.\d\d)\d+", r"\1", found[0])
