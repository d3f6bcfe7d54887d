"""Slices of the best, median and worst case as pictures: masks and confidence of each method."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from segcal.report.arrays import open_arrays
from segcal.report.numbers import Numbers
from segcal.report.reliability import CaseBins, Curve, read_run_bins
from segcal.report.style import CLASSES

if TYPE_CHECKING:
    import pandas as pd

Bytes = npt.NDArray[np.uint8]
SIDE = 176  # pixels of the longer side of a picture


@dataclass(frozen=True)
class MethodPicture:
    """What one method made of a case; pictures are (H, W, 3) bytes."""

    method: str
    mask: Bytes
    confidence: Bytes
    dsc: float
    ece: float
    curve: Curve | None


@dataclass(frozen=True)
class CasePicture:
    """A case: its image, its truth, and every method's answer."""

    dataset: str
    case: str
    role: str
    dsc: float
    image: Bytes
    truth: Bytes
    methods: list[MethodPicture] = field(default_factory=list)

    @property
    def has_image(self) -> bool:
        """Predictions may come without images; their slices are then all black."""
        return bool(self.image.any())


def case_pictures(numbers: Numbers, dataset: str, region: str) -> list[CasePicture]:
    """The best, median and worst case of a dataset by mean DSC over methods and seeds.

    What is shown of a method, pictures and numbers, is of its first run.
    """
    slices = _open(numbers, dataset)
    there = {case for shown in slices.values() for case in shown.index}
    scores = numbers.cases(dataset, "dsc").mean(axis=1).dropna().sort_values(kind="stable")
    scores = scores[[case in there for case in scores.index]]
    if not len(scores):
        return []
    places = {"best": len(scores) - 1, "median": (len(scores) - 1) // 2, "worst": 0}
    out: list[CasePicture] = []
    for role, place in places.items():
        case = str(scores.index[place])
        if all(picture.case != case for picture in out):
            value = float(scores.iloc[place])
            out.append(_picture(numbers, dataset, case, role, value, slices, region))
    return out


@dataclass(frozen=True)
class _Shown:
    """The run that is shown of a method: its slices, where each case is in them, its bins."""

    run: str
    path: Path
    index: dict[str, int]
    bins: CaseBins | None


def _open(numbers: Numbers, dataset: str) -> dict[str, _Shown]:
    """method -> its first run that has slices."""
    out: dict[str, _Shown] = {}
    bins = {run.run: path for run, path in numbers.study.files("bins.npz")}
    for run, path in numbers.study.files("slices.npz"):
        if run.dataset != dataset or run.method in out:
            continue
        with open_arrays(path, "slices") as file:
            index = {str(case): i for i, case in enumerate(file["cases"])}
        there = read_run_bins(bins[run.run]) if run.run in bins else None
        out[run.method] = _Shown(run.run, path, index, there)
    return {m: out[m] for m in numbers.study.methods if m in out}


def _picture(
    numbers: Numbers,
    dataset: str,
    case: str,
    role: str,
    value: float,
    slices: Mapping[str, _Shown],
    region: str,
) -> CasePicture:
    planes = {
        m: _load(shown.path, shown.index, case)
        for m, shown in slices.items()
        if case in shown.index
    }
    first = next(iter(planes.values()))
    window = _window(planes)
    size = _size(first["image"][window], first["spacing"])
    grey, truth = _grey(first["image"][window], size), _labels(first["truth"][window], size)
    classes = len(numbers.study.datasets[dataset].labels) or int(first["truth"].max()) + 1
    rows = numbers.rows[numbers.rows["case"] == case]
    made = []
    for method, plane in planes.items():
        shown = slices[method]
        mine = rows[rows["run"] == shown.run]
        made.append(
            MethodPicture(
                method,
                _overlay(grey, _labels(plane["labels"][window], size), truth),
                _confidence(plane["confidence"][window], size, classes),
                float(mine.loc[mine["metric"] == "dsc", "value"].mean()),
                float(mine.loc[_is(mine, "ece", region), "value"].mean()),
                shown.bins.of_case(case, region) if shown.bins else None,
            )
        )
    return CasePicture(
        dataset, case, role, value, np.repeat(grey[..., None], 3, 2), _overlay(grey, truth, truth),
        made,
    )  # fmt: skip


def _is(rows: "pd.DataFrame", metric: str, region: str) -> "pd.Series[bool]":
    return (rows["metric"] == metric) & (rows["region"] == region)


def _load(path: Path, index: dict[str, int], case: str) -> dict[str, npt.NDArray[Any]]:
    i = index[case]
    names = ("image", "truth", "labels", "confidence", "spacing")
    with open_arrays(path, "slices") as file:
        return {name: np.asarray(file[f"{name}_{i}"]) for name in names}


def _window(planes: Mapping[str, dict[str, npt.NDArray[Any]]]) -> tuple[slice, ...]:
    """Around all that is true or predicted foreground, with a margin; at least a quarter."""
    inside = np.zeros(next(iter(planes.values()))["truth"].shape, bool)
    for plane in planes.values():
        inside |= (plane["truth"] > 0) | (plane["labels"] > 0)
    if not inside.any():
        return (slice(None), slice(None))
    out = []
    shape: tuple[int, ...] = inside.shape
    for axis, length in enumerate(shape):
        where = np.flatnonzero(inside.any(axis=1 - axis))
        margin = max(4, round(0.15 * (where[-1] - where[0] + 1)))
        low, high = int(where[0]) - margin, int(where[-1]) + 1 + margin
        more = max(0, length // 4 - (high - low))
        low, high = low - more // 2, high + more - more // 2
        out.append(slice(max(0, low), min(length, high)))
    return tuple(out)


def _size(plane: npt.NDArray[Any], spacing: npt.NDArray[Any]) -> tuple[int, int]:
    """(width, height) in pixels, in true proportions."""
    height, width = np.array(plane.shape) * np.maximum(spacing.astype(float), 1e-6)
    scale = SIDE / max(height, width)
    return max(8, round(width * scale)), max(8, round(height * scale))


def _resized(plane: npt.NDArray[Any], size: tuple[int, int], smooth: bool) -> Bytes:
    from PIL import Image

    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(plane.astype(np.uint8)).resize(size, how))


def _grey(plane: npt.NDArray[Any], size: tuple[int, int]) -> Bytes:
    return _resized(plane, size, smooth=True)


def _labels(plane: npt.NDArray[Any], size: tuple[int, int]) -> Bytes:
    return _resized(plane, size, smooth=False)


def _overlay(grey: Bytes, labels: Bytes, truth: Bytes) -> Bytes:
    """Classes in colour on the image, the outline of the truth in white."""
    out = np.repeat(grey[..., None].astype(np.float64) * 0.85, 3, axis=2)
    for value in np.unique(labels[labels > 0]):
        colour = CLASSES[(int(value) - 1) % len(CLASSES)]
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)
        inside = labels == value
        out[inside] = 0.5 * out[inside] + 0.5 * rgb
    out[_outline(truth)] = 255
    return out.astype(np.uint8)


def _outline(labels: Bytes) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbour has another label."""
    edge = np.zeros(labels.shape, bool)
    edge[:-1] |= labels[:-1] != labels[1:]
    edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    return edge


def _confidence(plane: npt.NDArray[Any], size: tuple[int, int], classes: int) -> Bytes:
    """Confidence from 1/K (dark) to 1 (bright)."""
    from matplotlib import colormaps

    low = 1 / max(classes, 2)
    values = (_resized(plane, size, smooth=False) / 255 - low) / (1 - low)
    return np.asarray(colormaps["cividis"](np.clip(values, 0, 1), bytes=True))[..., :3]


def data_uri(picture: Bytes) -> str:
    """A picture as WebP inside the page."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "WEBP", quality=82, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
