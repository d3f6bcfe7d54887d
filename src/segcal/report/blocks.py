"""Blocks of a section, from which the page, the table files and the figure files are written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from segcal.report.table_model import Table


@dataclass(frozen=True)
class Text:
    """A paragraph, a heading, a verdict in large print, a note in small print, or commands."""

    text: str
    style: Literal["paragraph", "heading", "verdict", "note", "command"] = "paragraph"


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A matplotlib figure, saved as figures/NAME.svg and .png; `alt` describes what it shows.

    The page has it as SVG, or as pixels, which is smaller for pictures.
    """

    name: str
    figure: MatplotlibFigure
    alt: str
    pixels: bool = False


@dataclass(frozen=True)
class DataFile:
    """A data frame that is saved as tables/NAME.csv and not shown."""

    name: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class BrowserData:
    """Cases that the page's script draws in its case browser, as JSON."""

    cases: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Group:
    """Blocks that the page shows or hides together.

    Attributes:
        heading: shown above the blocks.
        dataset, region: the page hides the group when another dataset or region is selected.
        summary: the group is collapsed below this line until it is clicked.
        live: id of an element in which the page's script draws instead of these blocks.
    """

    blocks: Sequence["Block"]
    heading: str = ""
    dataset: str = ""
    region: str = ""
    summary: str = ""
    live: str = ""


Block = Text | Bullets | Table | Figure | DataFile | BrowserData | Group


@dataclass(frozen=True)
class Section:
    """A section of the report; `name` is unique, `menu` its short title in the contents."""

    name: str
    title: str
    blocks: Sequence[Block]
    menu: str = ""

    def walk(self) -> Iterator[Block]:
        """All blocks, those inside groups instead of the groups."""
        left = list(self.blocks)
        while left:
            block = left.pop(0)
            if isinstance(block, Group):
                left = [*block.blocks, *left]
            else:
                yield block


def optional_section(
    name: str, title: str, blocks: Sequence[Block], *, text: str = "", menu: str = ""
) -> Section | None:
    """A section that begins with a paragraph; None without blocks."""
    if not blocks:
        return None
    start = [Text(text)] if text else []
    return Section(name, title, [*start, *blocks], menu)
