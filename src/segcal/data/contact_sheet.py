"""The contact sheet: one slice of every case, with the contours of its labels."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion

from segcal.core.files import atomic_path, make_parent
from segcal.data.dataset import PreparedCase, PreparedDataset
from segcal.data.grid import IGNORED
from segcal.data.resample import center_start, crop_or_pad, resize_labels, resize_linear

# Bright, distinct on gray; the first eight are distinguishable with color blindness. The others are
# at least 30 units of CIELAB away from each other.
COLORS = (
    "#e69f00", "#56b4e9", "#33cc66", "#f0e442", "#d55e00", "#cc79a7", "#4477ff", "#ffffff",
    "#ff00ff", "#666633", "#ff0066", "#00ff00", "#44ffee", "#5533ff", "#cc0099", "#ffaa88",
    "#bbdd99", "#008877", "#dd88ff", "#779911", "#bbff00", "#ff0022", "#aa4444", "#6666aa",
    "#ccbbff", "#9933cc", "#bbff77", "#007722", "#996611", "#006688", "#ddbb66", "#55cc11",
)  # fmt: skip
TILE = 128
MAX_CASES = 400
_LEGEND_ROW_PIXELS = 17


def write_contact_sheet(
    dataset: PreparedDataset, path: Path | str, *, cases: Sequence[str] | None = None
) -> int:
    """Write the sheet as PNG and return the number of cases on it.

    `cases` names those to show; all by default. Of more than 400, an even selection is shown.
    """
    names = dataset.info.cases if cases is None else tuple(cases)
    if not names:
        raise ValueError("Expected argument `cases` to name a case, but got none.")
    if len(names) > MAX_CASES:
        names = tuple(names[i] for i in np.linspace(0, len(names) - 1, MAX_CASES).astype(int))
    columns = math.ceil(math.sqrt(len(names) * 1.4))
    rows = math.ceil(len(names) / columns)
    sheet = np.zeros((rows * TILE, columns * TILE, 3), dtype=np.float32)
    captions = {}
    for index, name in enumerate(names):
        y, x = (index // columns) * TILE, (index % columns) * TILE
        sheet[y : y + TILE, x : x + TILE] = _tile(dataset[name])
        captions[x, y] = name if len(name) <= TILE // 5 else "…" + name[-TILE // 5 :]
    make_parent(Path(path))
    with atomic_path(Path(path)) as partial:
        _draw(sheet, captions, dataset.classes, partial)
    return len(names)


def _draw(
    sheet: NDArray[np.float32],
    captions: dict[tuple[int, int], str],
    classes: dict[int, str],
    path: Path,
) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.patheffects import withStroke

    height, width = sheet.shape[:2]
    width = max(width, 480)
    named = [(label, name) for label, name in sorted(classes.items()) if label > 0]
    longest = max((len(name) for _, name in named), default=1)
    columns = max(1, min(len(named), width // (6 * longest + 50)))
    total = height + _LEGEND_ROW_PIXELS * (math.ceil(len(named) / columns) + 1)
    figure = Figure(figsize=(width / 100, total / 100), dpi=100)
    axes = figure.add_axes((0.0, 0.0, 1.0, height / total))
    axes.imshow(sheet, interpolation="none")
    axes.set_axis_off()
    for (x, y), caption in captions.items():
        text = axes.text(x + 3, y + 3, caption, color="white", fontsize=5.5, va="top")
        # An outline keeps the text readable on bright tissue.
        text.set_path_effects([withStroke(linewidth=1.2, foreground="black")])
    colors = [COLORS[(label - 1) % len(COLORS)] for label, _ in named]
    handles = [
        Patch(facecolor=color, edgecolor="gray", linewidth=0.5, label=name)
        for color, (_, name) in zip(colors, named, strict=True)
    ]
    figure.legend(handles=handles, loc="upper left", ncols=columns, fontsize=7, frameon=False)
    figure.savefig(path, format="png", dpi=100)


def _tile(case: PreparedCase) -> NDArray[np.generic]:
    """The middle labeled slice of the first channel, in true proportions, with contours."""
    label = case.label()
    labeled = np.flatnonzero(((label > 0) & (label < IGNORED)).any(axis=(1, 2)))
    index = int(labeled[len(labeled) // 2]) if labeled.size else len(label) // 2
    image = case.image_slice(index)[0]
    size_mm = np.array(image.shape) * np.array(case.spacing_mm[1:])
    height, width = np.maximum(1, np.round(size_mm * (TILE - 2) / size_mm.max())).astype(int)
    gray = resize_linear(image, (height, width))
    low, high = np.percentile(gray, (1, 99))
    gray = np.clip((gray - low) / max(float(high - low), 1e-6), 0, 1)
    picture = np.repeat(gray[None], 3, axis=0)
    labels = resize_labels(label[index], (height, width))
    for value in np.unique(labels[(labels > 0) & (labels < IGNORED)]):
        code = COLORS[(int(value) - 1) % len(COLORS)]
        color = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        mask = labels == value
        edge = mask & ~binary_erosion(mask, border_value=1)
        picture[:, edge] = np.array(color)[:, None]
    start = center_start((height, width), (TILE, TILE))
    return np.moveaxis(crop_or_pad(picture, start, (TILE, TILE), 0), 0, 2)
