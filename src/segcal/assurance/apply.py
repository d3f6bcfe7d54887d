"""Apply an `Assurance` to new scans: volumes, expected Dice, referral, masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.factor import dice_optimal_threshold
from segcal.assurance.intervals import Interval
from segcal.assurance.model import Assurance
from segcal.assurance.summary import CaseSummary, calibrate_whole, calibrated, summarize
from segcal.core.arrays import most_probable
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, remove_drafts
from segcal.core.heads import Heads, paint, region_labels
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import Grid, GridRecipe, Header, plan_grid, read_image, write_nifti
from segcal.posthoc import BaseCalibrator, BlockReader
from segcal.predictions import SoftmaxFile, Unlabeled, name_file_in_errors
from segcal.stats import Estimate
from segcal.study import write_frame

MaskKind: TypeAlias = Literal["argmax", "dice", "threshold", "inner", "outer"]
MASKS: tuple[MaskKind, ...] = get_args(MaskKind)
_PAIR = ("inner", "outer")  # masks that may overlap: one file per structure
Status: TypeAlias = Literal["accept", "refer", "no rule"]
Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Plane:
    """One slice of a scan for a page: image and best labels (H, W), masks (structures, H, W)."""

    image: Bytes
    best: Bytes
    inner: NDArray[np.bool_]
    outer: NDArray[np.bool_]
    spacing_mm: tuple[float, float]


@dataclass(frozen=True)
class StructureResult:
    """A structure of a scan: volume of the argmax mask, volume with interval, expected Dice."""

    name: str
    ml: float
    interval: Interval
    expected_dice: float


@dataclass(frozen=True)
class CaseResult:
    """A scan: expected Dice, whether to accept it and why (not), and its structures."""

    case: str
    dice: Estimate
    status: Status
    reason: str
    in_scope: bool
    structures: tuple[StructureResult, ...]
    plane: Plane | None = None

    @property
    def order(self) -> tuple[bool, bool, float]:
        """A key that sorts the most doubtful scans first."""
        return self.in_scope, self.status == "accept", float(np.nan_to_num(self.dice.mean))


def judge(assurance: Assurance, case: CaseSummary, plane: Plane | None = None) -> CaseResult:
    """Volumes, expected Dice and the decision for one scan."""
    found = tuple(
        StructureResult(fit.name, case.voxel_ml * case.hard_volume(s),
                        assurance.interval(case, s), assurance.structure_dice(case, s))
        for s, fit in enumerate(assurance.structures)
    )  # fmt: skip
    dice, rule = assurance.dice(case), assurance.referral
    outside = assurance.out_of_scope(case.features)
    status: Status = "accept"
    reason = ""
    if outside:
        status, reason = "refer", f"unlike the scans of the fit ({outside})"
    elif rule is None:
        status = "no rule"
    elif np.isnan(dice.mean):
        status, reason = "refer", "no structure is predicted"
    elif dice.mean < rule.limit:
        status, reason = "refer", f"expected Dice {dice.mean:.3f} is below {rule.limit:.3f}"
    return CaseResult(case.name, dice, status, reason, not outside, found, plane)


def apply_assurance(
    assurance: Assurance,
    scans: Sequence[Unlabeled],
    out: Path,
    *,
    masks: Sequence[MaskKind] = (),
    jobs: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> list[CaseResult]:
    """Write volumes.csv, cases.csv and masks/ to `out`; return the scans, most doubtful first.

    Args:
        assurance: see `fit_assurance` and `load_assurance`.
        scans: see `segcal.predictions.find_unlabeled`.
        out: a new folder, complete or not there.
        masks: which masks to write: label maps "argmax", "dice" (largest expected Dice) and
            "threshold" (that of the fit); and one file per structure, since they may overlap, for
            "inner" and "outer", and for all masks of sigmoid heads ("argmax" is {p > 0.5}).
        jobs: processes.
        overwrite: whether an earlier result in `out` may be replaced.
    """
    for kind in masks:
        check_choice("--masks", kind, MASKS)
        for fit in assurance.structures:
            if kind in _PAIR and getattr(fit, kind) is None:
                raise ValueError(f"--masks {kind}: the fit supports none for {fit.name}")
    for scan in scans:
        check_classes(scan.softmax, assurance)
    calibrator = assurance.own_calibrator()
    with result_folder(out, overwrite) as partial_out:
        work = {
            scan.name: partial(_apply_case, assurance, calibrator, scan, partial_out, masks)
            for scan in scans
        }
        results = run_all(work, jobs, "applying", progress)
        results.sort(key=lambda result: result.order)
        write_csv(partial_out / "cases.csv", [_case_row(r) for r in results])
        write_csv(partial_out / "volumes.csv", [row for r in results for row in _volume_rows(r)])
    return results


@contextmanager
def result_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder that becomes `out`; only an earlier result is ever replaced."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / "volumes.csv").is_file():
            raise PathError(out, "exists and is not a result of assure", "choose another --out")
        if not overwrite:
            raise PathError(out, "holds a result already", "pass --overwrite to replace it")
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(out.parent)
    with atomic_path(out, replace=overwrite) as draft:
        draft.mkdir()
        yield draft


def check_classes(file: SoftmaxFile, assurance: Assurance) -> None:
    """Raise a PathError if a prediction has other classes than the fit."""
    if file.num_classes != assurance.num_classes:
        problem = f"has {file.num_classes} classes, but the fit had {assurance.num_classes}"
        raise PathError(file.path, problem, "use predictions of the network of the fit")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with the same keys; NaN is empty."""
    import pandas as pd

    write_frame(path, pd.DataFrame(rows), float_format="%.6g")


def _case_row(result: CaseResult) -> dict[str, object]:
    mean, low, high = result.dice
    return {
        "case": result.case, "expected_dice": mean, "lower": low, "upper": high,
        "status": result.status, "reason": result.reason,
        "in_scope": "yes" if result.in_scope else "no",
    }  # fmt: skip


def _volume_rows(result: CaseResult) -> Iterator[dict[str, object]]:
    for one in result.structures:
        median, low, high = one.interval
        yield {
            "case": result.case, "structure": one.name, "ml": one.ml, "median": median,
            "lower": low, "upper": high, "expected_dice": one.expected_dice,
        }  # fmt: skip


def _apply_case(
    assurance: Assurance, calibrator: BaseCalibrator | None, scan: Unlabeled, out: Path,
    masks: Sequence[MaskKind],
) -> CaseResult:  # fmt: skip
    values = scan.softmax.read()
    spacing = scan.header.spacing_mm if scan.header is not None else (1.0, 1.0, 1.0)
    image = np.concatenate([read_image(p)[0] for p in scan.images]) if scan.images else None
    values = values[:, None] if values.ndim == 3 else values
    with name_file_in_errors(scan.softmax.path):
        values, calibrator = calibrate_whole(values, calibrator, spacing)
        case = summarize(
            values, None, spacing, calibrator=calibrator, image=image, heads=assurance.heads,
            name=scan.name,
        )  # fmt: skip
    limits = _thresholds(assurance, case)
    maps: dict[str, list[Bytes]] = defaultdict(list)
    # Squares, so that many small probabilities do not outweigh the structure.
    inside = values.max(0) if assurance.heads else 1 - values[0].astype(np.float32)
    shown = int(np.argmax([(plane.astype(np.float64) ** 2).sum() for plane in inside]))
    for z in range(values.shape[1]) if masks else [shown]:
        # One slice at a time, so that memory stays constant.
        part = _calibrated_slice(values[:, z], calibrator, assurance)
        for kind in masks:
            separate = kind in _PAIR or assurance.heads
            found = _above(part, limits[kind]) if separate else [_labels(part, limits[kind])]
            for suffix, mask in zip(_suffixes(kind, assurance), found, strict=True):
                # Masks of single structures as bits: there may be dozens.
                maps[suffix].append(np.packbits(mask, 1) if separate else mask.astype(np.uint8))
        if z == shown:
            best = _labels(part, limits["dice"], assurance.heads).astype(np.uint8)
            picture = _plane(part, None if image is None else image[0, z], best, limits, spacing)
    for suffix, planes in maps.items():
        (out / "masks").mkdir(exist_ok=True)
        path = out / "masks" / f"{scan.name}_{suffix}.nii.gz"
        mask = np.stack(planes)
        if suffix not in MASKS:
            mask = np.unpackbits(mask, 2, values.shape[-1])
        write_nifti(path, mask, _grid(scan.header, mask.shape))
    return judge(assurance, case, picture)


def _calibrated_slice(
    values: NDArray[Any], calibrator: BaseCalibrator | None, assurance: Assurance
) -> NDArray[np.float32]:
    """Calibrated probabilities (1 + structures, H, W); the first is that of no structure."""
    if not assurance.heads:
        flat = values.reshape(len(values), -1)
        return calibrated(flat, calibrator, BlockReader(from_probs=True)).reshape(values.shape)
    if calibrator is not None:
        values = calibrator.transform(values, from_probs=True)
    probs = values.astype(np.float32, copy=False)
    return np.concatenate([1 - probs.max(0, keepdims=True), probs])


def _suffixes(kind: MaskKind, assurance: Assurance) -> list[str]:
    """Endings of the names of the files of a kind of mask."""
    if kind not in _PAIR and not assurance.heads:
        return [kind]
    names = (fit.name for fit in assurance.structures)
    return [f"{kind}_{''.join(c if c.isalnum() else '-' for c in name)}" for name in names]


def _thresholds(assurance: Assurance, case: CaseSummary) -> dict[str, list[float]]:
    """The threshold of each structure for each kind of mask; infinite: an empty mask."""
    fits = assurance.structures
    return {
        # Of heads, the masks {p > 0.5}.
        "argmax": [float(np.nextafter(np.float32(0.5), np.float32(1)))] * len(assurance.heads),
        # Empty where the argmax mask is: then the structure is more likely absent than present.
        "dice": [
            dice_optimal_threshold(case.histogram(s), fit.rho)[0] if case.hard_volume(s) else np.inf
            for s, fit in enumerate(fits)
        ],
        "threshold": [fit.threshold for fit in fits],
        "inner": [np.inf if fit.inner is None else fit.inner for fit in fits],
        "outer": [np.inf if fit.outer is None else fit.outer for fit in fits],
    }


def _above(part: NDArray[np.float32], thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """(structures, H, W): {p ≥ t}."""
    return np.asarray(part[1:] >= np.array(thresholds, np.float32)[:, None, None])


def _labels(
    part: NDArray[np.float32], thresholds: Sequence[float], heads: Heads | None = None
) -> NDArray[Any]:
    """The most probable structure among those above their thresholds; without any, argmax.

    Of heads, the smallest one is shown; see `region_labels`.
    """
    if heads:
        names = list(heads)
        order = [names.index(name) for name in region_labels(heads)]
        return paint(_above(part, thresholds), {head: head + 1 for head in order})
    if not thresholds:
        return most_probable(part)
    allowed = np.where(_above(part, thresholds), part[1:], 0)
    return np.where(allowed.max(0) > 0, most_probable(allowed) + 1, 0)


def _grid(header: Header | None, shape: tuple[int, ...]) -> Grid:
    affine = np.eye(4) if header is None else header.affine
    spacing = (1.0, 1.0, 1.0) if header is None else header.spacing_mm
    z, y, x = shape
    return plan_grid((z, y, x), spacing, affine, GridRecipe())


def _plane(
    part: NDArray[np.float32], image: NDArray[Any] | None, best: Bytes,
    limits: Mapping[str, Sequence[float]], spacing: Sequence[float],
) -> Plane:  # fmt: skip
    gray = 1 - part[0] if image is None else image.astype(np.float64)
    low, high = (0.0, 1.0) if image is None else np.quantile(gray, [0.01, 0.99])
    scaled = np.clip((gray - low) / max(high - low, 1e-9), 0, 1)
    return Plane(
        (255 * scaled).astype(np.uint8), best,
        _above(part, limits["inner"]), _above(part, limits["outer"]),
        (float(spacing[-2]), float(spacing[-1])),
    )  # fmt: skip
