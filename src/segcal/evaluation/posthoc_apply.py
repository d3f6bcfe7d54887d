"""Apply a fitted calibrator to a folder of predictions."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import staged_files
from segcal.core.heads import head_masks
from segcal.core.jobs import run_all
from segcal.core.progress import ProgressCallback, no_progress
from segcal.evaluation.predict_manifest import write_applied
from segcal.metrics import predicted_labels
from segcal.posthoc import BaseCalibrator, HeadCalibrator
from segcal.predictions import (
    Axes,
    Form,
    SoftmaxFile,
    Unlabeled,
    check_not_existing,
    check_one_map,
    find_unlabeled,
    name_file_in_errors,
    outputs_of,
    write_like,
)

DATASET = "dataset.json"


@dataclass
class Applied:
    """What was calibrated: cases, their voxels, and the voxels whose label changed."""

    cases: int = 0
    voxels: int = 0
    changed_labels: int = 0

    def count(
        self,
        before: NDArray[np.floating],
        after: NDArray[np.floating],
        threshold: float | None = None,
    ) -> None:
        """Add a case: its logits or probabilities (K, *S) before and after calibration.

        `threshold` is that of sigmoid heads before calibration: 0.5, or 0 for logits.
        """
        self.cases += 1
        self.voxels += before[0].size
        if threshold is None:
            changed = predicted_labels(before) != predicted_labels(after)
        else:
            changed = ((before > threshold) != head_masks(after)).any(0)
        self.changed_labels += int(changed.sum())

    def __str__(self) -> str:
        labels = f"{self.changed_labels:,} of {self.voxels:,} voxels changed their label"
        return f"{self.cases} cases, {labels}"


def apply_folder(
    calibrator: BaseCalibrator,
    folder: Path,
    out: Path,
    *,
    from_probs: bool,
    images: Path | None = None,
    axes: Axes = "auto",
    to: Form | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Applied:
    """Calibrate every case of `folder` into `out`; each of `jobs` processes holds one case.

    `images` and `axes` are as in `find_pairs`: methods that use distances take the voxel size of
    plain arrays from the images. `to` is the format of the files, see `write_like`; None keeps that
    of the input. The files appear in `out` after the last case, so either all are written or none.
    """
    num_classes = calibrator.check_fitted()
    scans = find_unlabeled(folder, images, axes=axes, one_map=num_classes == 1)
    found = {scan.name: scan.softmax for scan in scans}
    if out.resolve() == folder.resolve():
        raise PathError(out, "is the input folder", "choose another --out")
    check_not_existing([p for file in found.values() for p in outputs_of(file, out, to)], overwrite)
    for scan in scans:
        check_num_classes(scan.softmax, num_classes)
        if calibrator.needs_spacing and scan.spacing_mm is None:
            problem = f"contains no voxel size, which the method {calibrator.method} needs"
            remedy = "give the folder of the images (--images), or fit the method temperature"
            raise PathError(scan.softmax.path, problem, remedy)
    with staged_files(out) as draft:
        work = {
            scan.name: partial(_apply, calibrator, scan, draft, from_probs, to) for scan in scans
        }
        parts = run_all(work, jobs, "calibrating", progress)
        if (folder / DATASET).is_file():  # names of classes and regions, for `segcal audit`
            shutil.copyfile(folder / DATASET, draft / DATASET)
        maps = {name: (file.path, outputs_of(file, out, to)) for name, file in found.items()}
        write_applied(folder, out, draft, maps, calibrator)
    changed = sum(part.changed_labels for part in parts)
    return Applied(len(parts), sum(part.voxels for part in parts), changed)


def _apply(
    calibrator: BaseCalibrator, scan: Unlabeled, folder: Path, from_probs: bool, to: Form | None
) -> Applied:
    file = scan.softmax
    values, done = file.read(), Applied()
    with name_file_in_errors(file.path):
        probs = calibrator.transform(values, from_probs=from_probs, spacing_mm=scan.spacing_mm)
    write_like(file, probs, folder, to)
    threshold = None
    if isinstance(calibrator, HeadCalibrator):
        threshold = 0.5 if from_probs else 0.0
    done.count(values, probs, threshold)
    return done


def check_num_classes(file: SoftmaxFile, num_classes: int) -> None:
    """Raise a PathError if a prediction has another number of classes than the calibrator."""
    if file.num_classes != num_classes:
        if file.num_classes == 1:
            check_one_map(file)
        problem = f"has {file.num_classes} classes, but the calibrator was fitted on {num_classes}"
        remedy = "use predictions of the network that it was fitted on, or fit another calibrator"
        raise PathError(file.path, problem, remedy)
