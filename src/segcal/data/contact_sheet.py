"""The contact sheet: one slice of every case, with its label contours."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_number
from segcal.core.files import atomic_path
from segcal.data.dataset import PreparedCase, PreparedDataset
from segcal.data.resample import resize_labels, resize_linear

# Bright, distinct on grey, and apart for colour-blind eyes.
COLOURS = ("#e69f00", "#56b4e9", "#33cc66", "#f0e442", "#d55e00", "#cc79a7", "#4477ff", "#ffffff")


def contact_sheet(
    dataset: PreparedDataset,
    path: Path | str,
    *,
    cases: Sequence[str] | None = None,
    tile: int = 128,
    limit: int = 400,
) -> int:
    """Write the sheet as PNG; returns how many cases it shows (evenly chosen above `limit`).

    `cases` names those to show; by default all.
    """
    check_number("tile", tile, low=16)
    check_number("limit", limit, low=1)
    path = Path(path)
    names = dataset.info.cases if cases is None else tuple(cases)
    if not names:
        raise ValueError("Expected argument `cases` to name a case, but got none.")
    if len(names) > limit:
        names = tuple(names[i] for i in np.linspace(0, len(names) - 1, limit).astype(int))
    columns = math.ceil(math.sqrt(len(names) * 1.4))
    rows = math.ceil(len(names) / columns)
    sheet = np.zeros((rows * tile, columns * tile, 3), dtype=np.float32)
    for index, name in enumerate(names):
        y, x = (index // columns) * tile, (index % columns) * tile
        sheet[y : y + tile, x : x + tile] = _tile(dataset[name], tile)
    with atomic_path(path) as partial:
        _draw(sheet, names, columns, tile, dataset, partial)
    return len(names)


def _draw(
    sheet: NDArray[np.float32],
    names: tuple[str, ...],
    columns: int,
    tile: int,
    dataset: PreparedDataset,
    path: Path,
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.patheffects import withStroke

    height, width = sheet.shape[:2]
    dpi, header = 100, 34
    figure = Figure(figsize=(max(width, 480) / dpi, (height + header) / dpi), dpi=dpi)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + header)))
    axes.imshow(sheet, interpolation="none")
    axes.set_axis_off()
    for index, name in enumerate(names):
        at = ((index % columns) * tile + 3, (index // columns) * tile + 3)
        shown = name if len(name) <= tile // 5 else "…" + name[-(tile // 5) :]
        text = axes.text(*at, shown, color="white", fontsize=5.5, va="top")
        # Outlined: readable on bright tissue too.
        text.set_path_effects([withStroke(linewidth=1.2, foreground="black")])
    handles = [
        Patch(color=COLOURS[(label - 1) % len(COLOURS)], label=name)
        for label, name in sorted(dataset.classes.items())
        if label > 0
    ]
    figure.legend(
        handles=handles[:12],
        loc="upper left",
        ncols=min(len(handles), 6),
        fontsize=7,
        frameon=False,
    )
    figure.savefig(path, format="png", dpi=dpi)


def _tile(case: PreparedCase, tile: int) -> NDArray[np.float32]:
    """The middle labelled slice in true proportions, first channel, contours on top."""
    label = case.label()
    labelled = np.flatnonzero(label.any(axis=(1, 2)))
    index = int(labelled[len(labelled) // 2]) if labelled.size else len(label) // 2
    image = case.image_slice(index)[0]
    size_mm = np.array(image.shape) * np.array(case.spacing_mm[1:])
    height, width = np.maximum(1, np.round(size_mm * (tile - 2) / size_mm.max())).astype(int)
    grey = resize_linear(image, (height, width))
    low, high = np.percentile(grey, (1, 99))
    grey = np.clip((grey - low) / max(float(high - low), 1e-6), 0, 1)
    picture = np.repeat(grey[..., None], 3, axis=2)
    labels = resize_labels(label[index], (height, width))
    for value in np.unique(labels[labels > 0]):
        colour = COLOURS[(int(value) - 1) % len(COLOURS)]
        picture[_edge(labels == value)] = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    out = np.zeros((tile, tile, 3), dtype=np.float32)
    y, x = (tile - height) // 2, (tile - width) // 2
    out[y : y + height, x : x + width] = picture
    return out


def _edge(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask that touch its outside."""
    padded = np.pad(mask, 1, mode="edge")
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.asarray(mask & ~inner)
