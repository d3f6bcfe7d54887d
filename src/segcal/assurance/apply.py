"""Apply an `Assurance` to new scans: volumes, expected Dice, referral, masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from segcal.assurance.conformal import Estimate
from segcal.assurance.factor import dice_optimal_threshold
from segcal.assurance.intervals import Interval
from segcal.assurance.model import Assurance
from segcal.assurance.summary import CaseSummary, calibrated, summarize
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, remove_drafts
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import Grid, Header, read_image, write_nifti
from segcal.posthoc import BlockReader, Calibrator
from segcal.predictions import Unlabeled, name_file_in_errors

MaskKind: TypeAlias = Literal["argmax", "dice", "threshold", "inner", "outer"]
MASKS: tuple[MaskKind, ...] = get_args(MaskKind)
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
    number: int


@dataclass(frozen=True)
class StructureResult:
    """A structure of a scan: volume of the argmax mask, volume with interval, expected Dice."""

    name: str
    ml: float
    interval: Interval | None
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
    found = []
    for s, fit in enumerate(assurance.structures):
        ml = case.voxel_ml * case.hard_volume(s)
        own = assurance.structure_dice(case, s)
        found.append(StructureResult(fit.name, ml, assurance.interval(case, s), own))
    dice, rule = assurance.dice(case), assurance.referral
    outside = assurance.out_of_scope(case.features)
    status: Status = "accept"
    reason = ""
    if outside:
        status, reason = "refer", f"out of scope ({outside})"
    elif rule is None:
        status, reason = "no rule", "the fit had too few cases for a referral rule"
    elif np.isnan(dice.mean):
        status, reason = "refer", "no structure is predicted"
    elif dice.mean < rule.limit:
        status, reason = "refer", f"expected Dice {dice.mean:.3f} is below {rule.limit:.3f}"
    return CaseResult(case.name, dice, status, reason, not outside, tuple(found), plane)


def apply_assurance(
    assurance: Assurance,
    calibrator: Calibrator | None,
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
        assurance: see `load_assurance`; `calibrator` is the one inside it.
        scans: see `segcal.predictions.find_unlabeled`.
        out: a new folder, complete or not there.
        masks: which masks to write: label maps "argmax", "dice" (largest expected Dice) and
            "threshold" (that of the fit); and one file per structure, since they may overlap, for
            "inner" and "outer".
        jobs: processes.
        overwrite: whether an earlier result in `out` may be replaced.
    """
    for kind in masks:
        check_choice("--masks", kind, MASKS)
        for fit in assurance.structures:
            if kind in ("inner", "outer") and getattr(fit, kind) is None:
                raise ValueError(f"--masks {kind}: the fit supports none for {fit.name}")
    for scan in scans:
        check_classes(scan.softmax.path, scan.softmax.num_classes, assurance)
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
    with atomic_path(out) as draft:
        draft.mkdir()
        yield draft


def check_classes(path: Path, num_classes: int, assurance: Assurance) -> None:
    """Raise a PathError if a prediction has other classes than the fit."""
    fitted = len(assurance.structures) + 1
    if num_classes != fitted:
        problem = f"has {num_classes} classes, but the fit had {fitted}"
        raise PathError(path, problem, "use predictions of the network of the fit")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with the same keys; NaN is empty."""
    import pandas as pd

    pd.DataFrame(rows).to_csv(path, index=False)


def _case_row(result: CaseResult) -> dict[str, object]:
    mean, low, high = (round(v, 4) for v in result.dice)
    return {
        "case": result.case, "expected_dice": mean, "lower": low, "upper": high,
        "status": result.status, "reason": result.reason,
        "in_scope": "yes" if result.in_scope else "no",
    }  # fmt: skip


def _volume_rows(result: CaseResult) -> Iterator[dict[str, object]]:
    for one in result.structures:
        median, low, high = one.interval or (np.nan, np.nan, np.nan)
        yield {
            "case": result.case, "structure": one.name, "ml": round(one.ml, 5),
            "median": round(median, 5), "lower": round(low, 5), "upper": round(high, 5),
            "expected_dice": round(one.expected_dice, 4),
        }  # fmt: skip


def _apply_case(
    assurance: Assurance, calibrator: Calibrator | None, scan: Unlabeled, out: Path,
    masks: Sequence[MaskKind],
) -> CaseResult:  # fmt: skip
    values = scan.softmax.read()
    spacing = scan.header.spacing_mm if scan.header is not None else (1.0, 1.0, 1.0)
    image = np.concatenate([read_image(p)[0] for p in scan.images]) if scan.images else None
    values = values[:, None] if values.ndim == 3 else values
    with name_file_in_errors(scan.softmax.path):
        case = summarize(values, None, spacing, calibrator=calibrator, image=image, name=scan.name)
    limits = _thresholds(assurance, case)
    one_slice = _Slices(values, calibrator)
    if masks:
        grid = _grid(scan.header, values.shape[1:])
        folder = out / "masks"
        folder.mkdir(exist_ok=True)
        for suffix, mask in _masks(masks, one_slice, limits, assurance):
            write_nifti(folder / f"{scan.name}_{suffix}.nii.gz", mask, grid)
    return judge(assurance, case, _plane(one_slice, image, limits, spacing))


@dataclass(frozen=True)
class _Slices:
    """Probabilities of one scan, calibrated one slice at a time, so that memory stays constant."""

    values: NDArray[Any]
    calibrator: Calibrator | None

    def __getitem__(self, z: int) -> NDArray[np.float32]:
        part = self.values[:, z]
        flat = calibrated(
            part.reshape(len(part), -1), self.calibrator, BlockReader(from_probs=True)
        )
        return flat.reshape(part.shape)

    def __len__(self) -> int:
        return int(self.values.shape[1])


def _thresholds(assurance: Assurance, case: CaseSummary) -> dict[str, list[float]]:
    """The threshold of each structure for each kind of mask; infinite: an empty mask."""
    fits = assurance.structures
    return {
        "dice": [
            dice_optimal_threshold(case.histogram(s), fit.rho)[0] for s, fit in enumerate(fits)
        ],
        "threshold": [fit.threshold for fit in fits],
        "inner": [np.inf if fit.inner is None else fit.inner for fit in fits],
        "outer": [np.inf if fit.outer is None else fit.outer for fit in fits],
    }


def _masks(
    kinds: Sequence[MaskKind], slices: _Slices, limits: Mapping[str, Sequence[float]],
    assurance: Assurance,
) -> Iterator[tuple[str, Bytes]]:  # fmt: skip
    """(ending of the file name, mask) of every file; inner and outer masks are bits until then."""
    structures = assurance.structures
    bits = np.min_scalar_type(2 ** len(structures) - 1)
    shape = slices.values.shape[1:]
    maps = {
        kind: np.zeros(shape, bits if kind in ("inner", "outer") else np.uint8) for kind in kinds
    }
    for z in range(len(slices)):
        part = slices[z]
        for kind, found in maps.items():
            if kind == "argmax":
                found[z] = part.argmax(0)
            elif kind in ("dice", "threshold"):
                found[z] = _label_map(part, limits[kind])
            else:
                for s, mask in enumerate(_above(part, limits[kind])):
                    found[z] |= mask.astype(bits) << s
    for kind, found in maps.items():
        if kind not in ("inner", "outer"):
            yield kind, found
            continue
        for s, fit in enumerate(structures):
            name = "".join(c if c.isalnum() else "-" for c in fit.name)
            yield f"{kind}_{name}", ((found >> s) & 1).astype(np.uint8)


def _above(part: NDArray[np.float32], thresholds: Sequence[float]) -> NDArray[np.bool_]:
    """(structures, H, W): {p ≥ t}."""
    return np.asarray(part[1:] >= np.array(thresholds, np.float32)[:, None, None])


def _label_map(part: NDArray[np.float32], thresholds: Sequence[float]) -> Bytes:
    """The structure with the largest probability among those above their thresholds."""
    labels = np.zeros(part.shape[1:], np.uint8)
    best = np.zeros(part.shape[1:], np.float32)
    for label, (p, above) in enumerate(zip(part[1:], _above(part, thresholds), strict=True), 1):
        chosen = above & (p > best)
        labels[chosen], best[chosen] = label, p[chosen]
    return labels


def _grid(header: Header | None, shape: tuple[int, ...]) -> Grid:
    affine = np.eye(4) if header is None else header.affine
    spacing = (1.0, 1.0, 1.0) if header is None else header.spacing_mm
    return Grid.model_validate(
        {"original_shape": shape, "original_spacing_mm": spacing, "affine": affine.tolist(),
         "resized_shape": shape, "start": (0, 0, 0), "shape": shape}
    )  # fmt: skip


def _plane(
    slices: _Slices, image: NDArray[Any] | None, limits: Mapping[str, Sequence[float]],
    spacing: Sequence[float],
) -> Plane:  # fmt: skip
    """The slice with the largest predicted foreground."""
    z = int(slices.values[0].sum(axis=(1, 2), dtype=np.float64).argmin())
    part = slices[z]
    gray = 1 - part[0] if image is None else image[0, z].astype(np.float64)
    low, high = (0.0, 1.0) if image is None else np.quantile(gray, [0.01, 0.99])
    scaled = np.clip((gray - low) / max(high - low, 1e-9), 0, 1)
    inner, outer = (_above(part, limits[kind]) for kind in ("inner", "outer"))
    return Plane(
        (255 * scaled).astype(np.uint8), _label_map(part, limits["dice"]), inner, outer,
        (float(spacing[-2]), float(spacing[-1])), z,
    )  # fmt: skip
