"""Calibrate nnU-Net's softmax: fit on its cross-validation, apply to its predictions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import staged_files
from segcal.core.heads import head_masks, paint, region_map
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import read_dataset_json, read_header
from segcal.evaluation import Applied, Fitted, check_num_classes, fit_pairs, write_applied
from segcal.integrations.nnunet.held_out import Warn, held_out
from segcal.posthoc import CALIBRATORS, BaseCalibrator, HeadCalibrator, to_probs
from segcal.predictions import (
    SoftmaxFile,
    check_not_existing,
    check_same_place,
    find_softmax,
    name_file_in_errors,
    outputs_of,
    write_like,
    write_nifti_like,
)

Average: TypeAlias = Literal["probs", "logits"]
# Files that nnUNetv2_ensemble and other commands expect in a folder of predictions.
EXTRA_FILES = ("dataset.json", "plans.json", "predict_from_raw_data_args.json")
# The smallest probability in an average of logarithms.
_FLOOR = 1e-30
_FLOOR_HALF = 2.0**-24
_SAME_IMAGES = "predict the same images with every fold"

Predictions: TypeAlias = dict[str, tuple[SoftmaxFile, ...]]  # case → one file per network


def calibrate_results(
    results: Path,
    file: Path,
    *,
    method: str = "temperature",
    labels: Path | None = None,
    use_folds: Sequence[int] | None = None,
    region: str = "all",
    folds: int = 5,
    patient: str | None = None,
    seed: int = 0,
    predictions: Sequence[Path] = (),
    out: Path | None = None,
    average: Average = "probs",
    overwrite: bool = False,
    warn: Warn = print,
    on_fit: Callable[[Fitted], None] | None = None,
    progress: ProgressCallback = no_progress,
) -> Applied | None:
    """Fit a calibrator on the held-out cases of all folds, save it, and calibrate predictions.

    All files are checked before any work starts.

    Args:
        results, labels, use_folds: see `held_out`.
        file: path of the calibrator.
        method, region, folds, patient, seed, progress: see `segcal.evaluation.fit_pairs`.
        predictions, out, average: see `apply_to_predictions`; without them nothing is calibrated.
        warn: called with a line for each fold or label map that is skipped.
        on_fit: called with the fitted calibrator before predictions are calibrated.
    """
    check_choice("average", average, get_args(Average))
    if method != "auto" and CALIBRATORS.get(method).space == "logits":
        needed = f"--method {method} needs logits, but nnU-Net saves probabilities"
        raise ValueError(f"{needed}; use another method, such as dirichlet")
    if (out is None) != (not predictions):
        raise ValueError("--predictions FOLDER and --out FOLDER must be given together")
    check_not_existing([file], overwrite)
    pairs = held_out(results, labels, use_folds, warn)
    found = find_predictions(predictions, out, pairs.num_classes, overwrite) if out else None
    fitted = fit_pairs(
        pairs, method, from_probs=True, region=region, folds=folds, patient=patient, seed=seed,
        progress=progress,
    )  # fmt: skip
    fitted.calibrator.save(file)
    if on_fit is not None:
        on_fit(fitted)
    if found is None or out is None:
        return None
    return _calibrate_all(fitted.calibrator, found, out, average, warn, progress)


def apply_to_predictions(
    calibrator: BaseCalibrator,
    predictions: Sequence[Path],
    out: Path,
    *,
    average: Average = "probs",
    overwrite: bool = False,
    warn: Warn = print,
    progress: ProgressCallback = no_progress,
) -> Applied:
    """Calibrate every case into `out`, in nnU-Net's format; one case at a time.

    The files appear in `out` after the last case, so either all are written or none.
    `changed_labels` of the result counts changes by the calibration, not by the averaging.

    Args:
        predictions: folders written with --save_probabilities, one per network.
        average: how several networks are combined. "probs" calibrates each and averages the
            probabilities; "logits" averages the log-probabilities, as nnU-Net does with several
            folds, and calibrates the average.
    """
    check_choice("average", average, get_args(Average))
    found = find_predictions(predictions, out, calibrator.check_fitted(), overwrite)
    return _calibrate_all(calibrator, found, out, average, warn, progress)


def find_predictions(
    folders: Sequence[Path], out: Path, num_classes: int, overwrite: bool
) -> Predictions:
    """The files of each case, one per folder; checks that all fit together and `out` is free."""
    each = [find_softmax(folder) for folder in folders]
    for folder, found in zip(folders, each, strict=True):
        different = sorted(set(each[0]) ^ set(found))
        if different:
            one = f"{different[0]} is in only one"
            raise PathError(folder, f"has other cases than {folders[0]}: {one}", _SAME_IMAGES)
        for file in found.values():
            _check_prediction(file, each[0][file.name], num_classes)
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise PathError(out, "is a folder of predictions", "choose another --out")
    outputs = [out / source.name for source in _extra_files(folders[0])]
    for file in each[0].values():
        outputs += [*outputs_of(file, out), *(out / path.name for path in _label_maps(file))]
    check_not_existing(outputs, overwrite)
    return {name: tuple(found[name] for found in each) for name in each[0]}


def _label_maps(file: SoftmaxFile) -> list[Path]:
    """The label map that nnU-Net wrote next to its softmax, if it is NIfTI."""
    places = (file.path.with_name(f"{file.name}{ending}") for ending in (".nii.gz", ".nii"))
    return [place for place in places if place.is_file()]


def _extra_files(folder: Path) -> list[Path]:
    return [folder / name for name in EXTRA_FILES if (folder / name).is_file()]


def _check_prediction(file: SoftmaxFile, first: SoftmaxFile, num_classes: int) -> None:
    if file.geometry is None:
        remedy = "predict with nnUNetv2_predict --save_probabilities"
        raise PathError(file.path, "has no .pkl file next to it", remedy)
    check_num_classes(file, num_classes)
    if file.shape != first.shape:
        problem = f"has shape {file.shape}, but {first.path} has {first.shape}"
        raise PathError(file.path, problem, _SAME_IMAGES)
    for place in _label_maps(file):
        check_same_place(file, place, read_header(place))


def _calibrate_all(
    calibrator: BaseCalibrator,
    predictions: Predictions,
    out: Path,
    average: Average,
    warn: Warn,
    progress: ProgressCallback,
) -> Applied:
    missing = [name for name, files in predictions.items() if not _label_maps(files[0])]
    if missing:
        cases = f"{len(missing)} cases ({missing[0]}, …)"
        warn(f"no label map is written for {cases}: nnU-Net wrote none in NIfTI format")
    done = Applied()
    folder = next(iter(predictions.values()))[0].path.parent
    with staged_files(out) as draft:
        for source in _extra_files(folder):
            shutil.copyfile(source, draft / source.name)
        for files in predictions.values():
            before, after = _calibrate_case(calibrator, files, average)
            write_like(files[0], after, draft)
            if isinstance(calibrator, HeadCalibrator):
                labels = _region_map(calibrator, after, folder)
            else:
                labels = after.argmax(0).astype(np.uint8 if len(after) <= 256 else np.uint16)
            for source in _label_maps(files[0]):
                write_nifti_like(source, labels, draft)
            done.count(before, after, 0.5 if isinstance(calibrator, HeadCalibrator) else None)
            progress("calibrating", done.cases, len(predictions))
        made = {
            name: (files[0].path, outputs_of(files[0], out)) for name, files in predictions.items()
        }
        write_applied(folder, out, draft, made, calibrator)
    return done


def _region_map(
    calibrator: HeadCalibrator, probs: NDArray[np.floating], folder: Path
) -> NDArray[np.uint8]:
    """The label map of regions, as nnU-Net writes it: `regions_class_order` of dataset.json."""
    order = read_dataset_json(folder / "dataset.json").class_order
    if len(order) == len(calibrator.heads):
        return paint(head_masks(probs), dict(enumerate(order)))
    return region_map(probs, calibrator.heads)


def _calibrate_case(
    calibrator: BaseCalibrator, files: Sequence[SoftmaxFile], average: Average
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Averaged probabilities (K, *S), before and after calibration."""
    before, after = np.zeros(()), np.zeros(())
    for file in files:
        # In the stored dtype: half precision has another smallest probability, as in the fit.
        probs = file.read()
        with name_file_in_errors(file.path):
            calibrated = calibrator.transform(probs, from_probs=True, spacing_mm=file.spacing_mm)
        if len(files) == 1:
            return probs.astype(np.float32), np.asarray(calibrated, dtype=np.float32)
        if average == "probs":
            before, after = before + probs / len(files), after + calibrated / len(files)
        else:
            floor = _FLOOR_HALF if probs.dtype.itemsize < 4 else _FLOOR
            logits = np.log(np.maximum(probs, floor, dtype=np.float64))
            if isinstance(calibrator, HeadCalibrator):
                logits -= np.log(np.maximum(1 - probs.astype(np.float64), floor))
            before = before + logits / len(files)
    if average == "logits":
        # In the dtype of the result, in which `transform` keeps the largest class.
        before = to_probs(before, heads=isinstance(calibrator, HeadCalibrator)).astype(np.float32)
        after = calibrator.transform(before, from_probs=True, spacing_mm=files[0].spacing_mm)
    return before.astype(np.float32), after.astype(np.float32)
