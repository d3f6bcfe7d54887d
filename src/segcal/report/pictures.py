"""Slices of the best, median and worst case: masks and confidence maps of each method."""

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from PIL import Image

from segcal.report.context import Context
from segcal.report.curves import Curve
from segcal.report.plots.style import CLASS_COLORS
from segcal.study import open_arrays

Bytes = npt.NDArray[np.uint8]
_Plane = dict[str, npt.NDArray[Any]]
SIDE, LARGE_SIDE = 176, 320  # pixels of the longer side of a picture, and if there are few


@dataclass(frozen=True)
class MethodPicture:
    """The result of one method for a case; pictures are (H, W, 3) bytes."""

    method: str
    mask: Bytes
    confidence: Bytes
    dsc: float
    ece: float
    curve: Curve | None


@dataclass(frozen=True)
class CasePicture:
    """A case: its image, its truth, and the results of all methods."""

    dataset: str
    case: str
    role: str
    dsc: float
    image: Bytes
    truth: Bytes
    methods: list[MethodPicture] = field(default_factory=list)

    @property
    def has_image(self) -> bool:
        """False for predictions without images, whose slices are black."""
        return bool(self.image.any())


class _Slices(NamedTuple):
    """The slices of the first run of a method."""

    run: str
    path: Path
    cases: list[str]

    def read(self, case: str) -> _Plane:
        names, index = ("image", "truth", "labels", "confidence", "spacing"), self.cases.index(case)
        with open_arrays(self.path, "slices") as file:
            return {name: np.asarray(file[f"{name}_{index}"]) for name in names}


def case_pictures(context: Context, dataset: str) -> list[CasePicture]:
    """The best, median and worst case of a dataset by mean DSC over methods and seeds.

    The pictures and numbers of a method are those of its first run.
    """
    first: dict[str, _Slices] = {}
    for run, path in context.study.files("slices.npz"):
        if run.dataset == dataset and run.method not in first:
            with open_arrays(path, "slices") as file:
                first[run.method] = _Slices(run.run, path, [str(case) for case in file["cases"]])
    slices = {method: first[method] for method in context.study.methods if method in first}
    available = {case for each in slices.values() for case in each.cases}
    scores = context.aggregates.cases(dataset, "dsc").mean(axis=1)
    scores = scores.dropna().sort_values(kind="stable")
    scores = scores[[case in available for case in scores.index]]
    if not len(scores):
        return []
    places = {"best": len(scores) - 1, "median": (len(scores) - 1) // 2, "worst": 0}
    out: dict[str, CasePicture] = {}
    for role, place in places.items():
        case = str(scores.index[place])
        if case not in out:
            out[case] = _picture(context, dataset, case, role, float(scores.iloc[place]), slices)
    return list(out.values())


def _picture(
    context: Context, dataset: str, case: str, role: str, dsc: float, slices: dict[str, _Slices]
) -> CasePicture:
    planes = {m: each.read(case) for m, each in slices.items() if case in each.cases}
    first = next(iter(planes.values()))
    window = window_of(
        np.any([(p["truth"] > 0) | (p["labels"] > 0) for p in planes.values()], axis=0)
    )
    side = LARGE_SIDE if context.few_networks(context.study.datasets[dataset]) else SIDE
    size = picture_size(first["image"][window], first["spacing"], side)
    gray = resized(first["image"][window], size, smooth=True)
    truth = resized(first["truth"][window], size)
    classes = len(context.study.datasets[dataset].labels) or int(first["truth"].max()) + 1
    rows = context.aggregates.rows
    rows = rows[rows["case"] == case]
    methods = []
    for method, plane in planes.items():
        run = slices[method].run
        values = rows[rows["run"] == run].groupby(["metric", "region"], observed=True)["value"]
        means, bins = values.mean(), context.run_bins.get(run)
        methods.append(
            MethodPicture(
                method,
                _overlay(gray, resized(plane["labels"][window], size), truth),
                _confidence_map(plane["confidence"][window], size, classes),
                float(means.get(("dsc", "all"), np.nan)),
                float(means.get(("ece", context.region), np.nan)),
                bins.of_case(case, context.region) if bins else None,
            )
        )
    image = np.repeat(gray[..., None], 3, 2)
    return CasePicture(dataset, case, role, dsc, image, _overlay(gray, truth, truth), methods)


def window_of(inside: npt.NDArray[np.bool_]) -> tuple[slice, ...]:
    """Around all foreground, with a margin; at least a quarter of each side."""
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


def picture_size(
    plane: npt.NDArray[Any], spacing: npt.ArrayLike, side: int = SIDE
) -> tuple[int, int]:
    """(width, height) in pixels, in true proportions; `side` is the longer one."""
    height, width = np.array(plane.shape) * np.maximum(np.asarray(spacing, float), 1e-6)
    scale = side / max(height, width)
    return max(8, round(width * scale)), max(8, round(height * scale))


def resized(plane: npt.NDArray[Any], size: tuple[int, int], smooth: bool = False) -> Bytes:
    """A picture of another size."""
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(plane.astype(np.uint8)).resize(size, how))


def _overlay(gray: Bytes, labels: Bytes, truth: Bytes) -> Bytes:
    """Classes in color on the image, the outline of the truth in white."""
    out = np.repeat(gray[..., None].astype(np.float64) * 0.85, 3, axis=2)
    for value in np.unique(labels[labels > 0]):
        rgb = 255 * np.array(to_rgb(class_color(int(value))))
        inside = labels == value
        out[inside] = 0.5 * out[inside] + 0.5 * rgb.round()
    out[edges(truth)] = 255
    return out.astype(np.uint8)


def edges(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbor has another label."""
    edge = np.zeros(labels.shape, bool)
    edge[:-1] |= labels[:-1] != labels[1:]
    edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    return edge


def class_color(label: int) -> str:
    """The color of a class in masks and legends."""
    return CLASS_COLORS[(label - 1) % len(CLASS_COLORS)]


def _confidence_map(plane: npt.NDArray[Any], size: tuple[int, int], classes: int) -> Bytes:
    """Confidence from 1/K (dark) to 1 (bright)."""
    low = 1 / max(classes, 2)
    values = (resized(plane, size) / 255 - low) / (1 - low)
    return np.asarray(colormaps["cividis"](np.clip(values, 0, 1), bytes=True))[..., :3]


def data_uri(picture: Bytes) -> str:
    """A picture as a WebP image inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "WEBP", quality=82, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
