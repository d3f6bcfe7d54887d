"""Slices of cases: pictures of the best, median and worst one, and layers for the case browser."""

import base64
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_rgb
from PIL import Image

from segcal.core.arrays import window_of
from segcal.report.context import Context
from segcal.report.curves import Curve
from segcal.report.plots.style import CLASS_COLORS, DOUBT_COLOR
from segcal.study import open_arrays

Bytes = npt.NDArray[np.uint8]
_Planes = dict[str, npt.NDArray[Any]]
SIDE, LARGE_SIDE = 176, 320  # pixels of the longer side of a picture, and if there are few
# Cases of a dataset in the browser, and characters of all of them together on the page.
MOST_CASES, MOST_CHARACTERS = 12, 3_000_000


@dataclass(frozen=True)
class MethodSlices:
    """The result of one method for a case; labels and confidence (slices, H, W) are bytes."""

    method: str
    labels: Bytes
    confidence: Bytes
    dsc: float
    ece: float
    curve: Curve | None
    outside: float = 0.0


@dataclass(frozen=True)
class CaseSlices:
    """A case: its image and truth (slices, H, W), and the results of all methods.

    Attributes:
        role: "worst", "median" or "best" by mean DSC over methods and seeds; "" for other cases.
        numbers: of the slices in the scan; empty if unknown.
        size: (width, height) of a picture, in true proportions.
        classes: number of classes.
    """

    dataset: str
    case: str
    role: str
    dsc: float
    image: Bytes
    truth: Bytes
    numbers: tuple[int, ...]
    size: tuple[int, int]
    classes: int
    methods: list[MethodSlices]

    @property
    def start(self) -> int:
        """The slice with most true foreground."""
        return int((self.truth > 0).sum(axis=(1, 2)).argmax())

    @property
    def has_image(self) -> bool:
        """False for predictions without images, whose slices are black."""
        return bool(self.image.any())

    def gray(self) -> Bytes:
        """The image of the first slice shown."""
        return resized(self.image[self.start], self.size, smooth=True)

    def mask(self, labels: Bytes) -> Bytes:
        """Classes in color on the image, the outline of the truth in white."""
        values, truth = (resized(each[self.start], self.size) for each in (labels, self.truth))
        out = np.repeat(self.gray()[..., None].astype(np.float64) * 0.85, 3, axis=2)
        for value in np.unique(values[values > 0]):
            rgb = 255 * np.array(to_rgb(class_color(int(value))))
            inside = values == value
            out[inside] = 0.5 * out[inside] + 0.5 * rgb.round()
        out[edges(truth)] = 255
        return out.astype(np.uint8)

    def doubt(self, confidence: Bytes) -> Bytes:
        """The image, covered with color where the confidence is low; 1/K covers it."""
        least = 1 / max(self.classes, 2)
        values = resized(confidence[self.start], self.size) / 255
        share = np.clip((1 - values) / (1 - least), 0, 1)[..., None]
        gray = np.repeat(self.gray()[..., None], 3, 2)
        mixed = (1 - share) * gray + share * 255 * np.array(to_rgb(DOUBT_COLOR))
        return np.asarray(mixed, dtype=np.uint8)


class _File(NamedTuple):
    """The slices of the first run of a method."""

    run: str
    path: Path
    cases: list[str]

    def read(self, case: str) -> _Planes:
        index = self.cases.index(case)
        with open_arrays(self.path, "slices") as file:
            layers = ("image", "truth", "labels", "confidence")
            out = {name: np.asarray(file[f"{name}_{index}"]) for name in (*layers, "spacing")}
            if out["truth"].ndim == 2:  # of an older version: one whole slice
                window = window_of(np.asarray(out["truth"] > 0))
                out |= {name: out[name][window][None] for name in layers}
            for name, default in (("slices", ()), ("outside", 0.0)):
                key = f"{name}_{index}"
                out[name] = np.asarray(file.get(key, default))
        return out


def chosen_cases(context: Context, dataset: str, available: set[str]) -> dict[str, str]:
    """Case -> role, the worst first: those of the tables of worst cases, the median, the best.

    With many methods, the worst ones by mean DSC over methods and seeds take their place.
    """
    scores = context.aggregates.cases(dataset, "dsc").mean(axis=1)
    scores = scores.dropna().sort_values(kind="stable")
    names = [str(case) for case in scores.index if case in available]
    if not names:
        return {}
    roles = {names[-1]: "best", names[(len(names) - 1) // 2]: "median", names[0]: "worst"}
    few = context.few_networks(context.study.datasets[dataset])
    listed = [context.worst_cases(dataset, method) for method in few] or [names[:5]]
    longest = max(map(len, listed))
    mixed = [each[i] for i in range(longest) for each in listed if i < len(each)]
    chosen = [*roles, *(case for case in mixed if case in available)]
    kept = set(list(dict.fromkeys(chosen))[:MOST_CASES])
    return {case: roles.get(case, "") for case in names if case in kept}


def case_slices(context: Context, dataset: str) -> list[CaseSlices]:
    """The chosen cases of a dataset; pictures and numbers are those of a method's first run."""
    first: dict[str, _File] = {}
    for run, path in context.study.files("slices.npz"):
        if run.dataset == dataset and run.method not in first:
            with open_arrays(path, "slices") as file:
                first[run.method] = _File(run.run, path, [str(case) for case in file["cases"]])
    files = {method: first[method] for method in context.study.methods if method in first}
    available = {case for each in files.values() for case in each.cases}
    chosen = chosen_cases(context, dataset, available)
    return [_read_case(context, dataset, case, role, files) for case, role in chosen.items()]


def _read_case(
    context: Context, dataset: str, case: str, role: str, files: dict[str, _File]
) -> CaseSlices:
    planes = {m: each.read(case) for m, each in files.items() if case in each.cases}
    main = next(iter(planes.values()))
    rows = context.aggregates.rows
    rows = rows[rows["case"] == case]
    methods = []
    for method, plane in planes.items():
        if plane["truth"].shape != main["truth"].shape:  # evaluated by another version
            continue
        run = files[method].run
        values = rows[rows["run"] == run].groupby(["metric", "region"], observed=True)["value"]
        means, bins = values.mean(), context.run_bins.get(run)
        methods.append(
            MethodSlices(
                method, plane["labels"], plane["confidence"],
                float(means.get(("dsc", "all"), np.nan)),
                float(means.get(("ece", context.region), np.nan)),
                bins.of_case(case, context.region) if bins else None,
                float(plane["outside"]),
            )
        )  # fmt: skip
    about = context.study.datasets[dataset]
    scores = context.aggregates.cases(dataset, "dsc").loc[[case]].to_numpy(float)
    side = LARGE_SIDE if context.few_networks(about) else SIDE
    return CaseSlices(
        dataset, case, role, float(np.mean(scores[~np.isnan(scores)])),
        main["image"], main["truth"], tuple(int(n) for n in main["slices"]),
        picture_size(main["image"][0], main["spacing"], side),
        len(about.labels) or int(main["truth"].max()) + 1, methods,
    )  # fmt: skip


def browser_data(cases: list[CaseSlices]) -> list[dict[str, Any]]:
    """The layers of the cases for the page's script, within `MOST_CHARACTERS` together.

    A case that is too large for its part has fewer slices; one that is still too large has none.
    """
    out = []
    for case in cases:
        for most in (len(case.truth), 6, 3, 1):
            ends = np.linspace(0, len(case.truth) - 1, most).round().astype(int)
            kept = np.unique([case.start, *(ends if most > 1 else ())])
            layers = _layers(case, kept)
            size = sum(len(each) for each in (layers["image"], layers["truth"]))
            size += sum(len(each["layers"]) for each in layers["methods"].values())
            if size <= MOST_CHARACTERS / len(cases):
                out.append(layers)
                break
    return out


def _layers(case: CaseSlices, kept: npt.NDArray[Any]) -> dict[str, Any]:
    image = io.BytesIO()
    Image.fromarray(case.image[kept].reshape(-1, case.image.shape[2])).save(
        image, "JPEG", quality=85
    )
    return {
        "dataset": case.dataset,
        "name": case.case,
        "role": case.role,
        "dsc": round(case.dsc, 6),
        "pixels": case.truth.shape[1:],
        "size": case.size,
        "classes": case.classes,
        "slices": [case.numbers[k] + 1 for k in kept] if case.numbers else [],
        "count": len(kept),
        "start": int(np.searchsorted(kept, case.start)),
        "image": _base64(image.getvalue()) if case.has_image else "",
        "truth": _deflated(case.truth[kept]),
        "methods": {
            each.method: {
                "dsc": None if np.isnan(each.dsc) else round(each.dsc, 6),
                "ece": None if np.isnan(each.ece) else round(each.ece, 6),
                "outside": round(each.outside, 3),
                # Fewer levels of confidence, which compress better.
                "layers": _deflated(each.labels[kept], np.rint(each.confidence[kept] * (63 / 255))),
            }
            for each in case.methods
        },
    }


def _deflated(*layers: npt.NDArray[Any]) -> str:
    return _base64(zlib.compress(np.concatenate(layers).astype(np.uint8).tobytes(), 9))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


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


def edges(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbor has another label."""
    edge = np.zeros(labels.shape, bool)
    edge[:-1] |= labels[:-1] != labels[1:]
    edge[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    return edge


def class_color(label: int) -> str:
    """The color of a class in masks and legends."""
    return CLASS_COLORS[(label - 1) % len(CLASS_COLORS)]


def data_uri(picture: Bytes) -> str:
    """A picture as a WebP image inside the page."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "WEBP", quality=82, method=4)
    return "data:image/webp;base64," + _base64(buffer.getvalue())
