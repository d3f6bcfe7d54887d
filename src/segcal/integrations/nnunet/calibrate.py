"""Calibrate nnU-Net's softmax: fitted on its cross-validation, applied to its predictions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, staged_files
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data.formats.nifti import read_header
from segcal.evaluation.posthoc_apply import Applied
from segcal.evaluation.posthoc_fit import naming
from segcal.posthoc import Calibrator
from segcal.predictions.pairing import Pair, Pairs, check_place, find_pairs
from segcal.predictions.softmax_files import SoftmaxFile, find_softmax
from segcal.predictions.writer import check_free, outputs_of, write_like

AVERAGES = ("probs", "logits")
# Local temperature wants images, and a matrix on raw logits wants logits; nnU-Net keeps neither.
METHODS = ("temperature", "vector", "dirichlet")
# What nnUNetv2_ensemble and the like expect in a folder of predictions.
BESIDE = ("dataset.json", "plans.json", "predict_from_raw_data_args.json")
# The smallest probability that counts in an average of logarithms, as of a float32 that is 0.
_FLOOR = 1e-30
_FLOOR_HALF = 2.0**-24


def held_out(
    results: Path,
    labels: Path | None = None,
    folds: Sequence[int] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Pairs:
    """The softmax that each fold's network gave the cases it did not see, beside their labels.

    Args:
        results: a trainer's folder below nnUNet_results, with `fold_0`, `fold_1`, …
        labels: folder of label maps; None looks where nnU-Net keeps them,
            `$nnUNet_preprocessed/DATASET/gt_segmentations`, then `$nnUNet_raw/DATASET/labelsTr`.
        folds: which to use; None is every one that was validated with `--npz`.
        say: called with a line for each fold that is left out.
    """
    ignore = _ignore_label(results)
    where = labels if labels is not None else _find_labels(results)
    found: dict[str, tuple[Path, Pair]] = {}
    for folder in _validations(results, folds, say):
        for pair in find_pairs(folder, where, ignore_label=ignore):
            if pair.name in found:
                raise PathError(
                    folder,
                    f"holds {pair.name}, which {found[pair.name][0]} holds, too",
                    "choose folds that share no case with --fold",
                )
            found[pair.name] = folder, pair
    pairs = tuple(pair for _, (_, pair) in sorted(found.items()))
    kinds = {pair.softmax.num_classes for pair in pairs}
    if len(kinds) > 1:
        raise PathError(
            results, f"has folds of {sorted(kinds)} classes", "use folds of one network"
        )
    return Pairs(results, pairs, ())


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PathError(
            path.parent,
            f"has no {path.name}",
            "give a trainer's folder, such as "
            "nnUNet_results/Dataset004_X/nnUNetTrainer__nnUNetPlans__3d_fullres",
        ) from error
    except (OSError, ValueError) as error:
        raise PathError(path, "cannot be read as JSON", "restore the file") from error


def _ignore_label(results: Path) -> int | None:
    """The ignored label of the dataset; a dataset of regions is refused."""
    content = _read_json(results / "dataset.json")
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(labels, dict):
        raise PathError(results / "dataset.json", "names no labels", "restore the file")
    if any(isinstance(label, list) and len(label) > 1 for label in labels.values()):
        raise PathError(
            results,
            "was trained with regions, whose sigmoids do not sum to 1",
            "calibrate a network that was trained with labels",
        )
    ignore = labels.get("ignore")
    if ignore is not None and type(ignore) is not int:
        raise PathError(
            results / "dataset.json", f"has the ignore label {ignore!r}", "restore the file"
        )
    return ignore


def _find_labels(results: Path) -> Path:
    dataset = results.resolve().parent.name
    places = [
        Path(os.environ[variable]) / dataset / folder
        for variable, folder in (
            ("nnUNet_preprocessed", "gt_segmentations"),
            ("nnUNet_raw", "labelsTr"),
        )
        if variable in os.environ
    ]
    for place in places:
        if place.is_dir():
            return place
    raise PathError(
        results,
        f"says nothing of its labels, and nnUNet_preprocessed has none of {dataset}",
        "set nnUNet_preprocessed, or give --labels FOLDER",
    )


def _validations(
    results: Path, folds: Sequence[int] | None, say: Callable[[str], None]
) -> list[Path]:
    """The validation folders of the folds that were asked for, each with softmax in it."""
    if folds is not None:
        chosen = [results / f"fold_{fold}" for fold in dict.fromkeys(folds)]
    else:
        chosen = sorted(p for p in results.glob("fold_*") if p.name.removeprefix("fold_").isdigit())
    remedy = "run nnUNetv2_train … --val --npz for each fold"
    if not chosen:
        also = "fold_all has seen every case; " if (results / "fold_all").is_dir() else ""
        raise PathError(results, "has no fold with held-out cases", also + remedy)
    out = [fold / "validation" for fold in chosen]
    with_softmax = [folder for folder in out if any(folder.glob("*.npz"))]
    missing = [folder for folder in out if folder not in with_softmax]
    if missing and (folds is not None or not with_softmax):
        raise PathError(missing[0], "holds no softmax (.npz)", remedy)
    for folder in missing:
        say(f"{folder}: holds no softmax (.npz) and is left out; {remedy}")
    return with_softmax


@dataclass(frozen=True)
class Predictions:
    """The same cases as several networks predicted them; usually one folder per fold."""

    folders: tuple[Path, ...]
    cases: dict[str, tuple[SoftmaxFile, ...]]

    def outputs(self, out: Path) -> list[Path]:
        """All that `calibrate_predictions` will write."""
        files = [files[0] for files in self.cases.values()]
        beside = [out / name for name in BESIDE if (self.folders[0] / name).is_file()]
        maps = [out / source.name for file in files for source in label_maps(file)]
        return [*(path for file in files for path in outputs_of(file, out)), *maps, *beside]

    @property
    def without_labels(self) -> list[str]:
        """Cases beside which lies no label map that can be written anew."""
        return [name for name, files in self.cases.items() if not label_maps(files[0])]


def label_maps(file: SoftmaxFile) -> list[Path]:
    """The label map that nnU-Net wrote beside its softmax, if it is NIfTI."""
    places = (file.path.with_name(f"{file.name}{ending}") for ending in (".nii.gz", ".nii"))
    return [place for place in places if place.is_file()]


def find_predictions(folders: Sequence[Path], num_classes: int) -> Predictions:
    """Check that the folders hold the same cases, in nnU-Net's form, of `num_classes` classes."""
    each = [find_softmax(folder) for folder in folders]
    for folder, found in zip(folders, each, strict=True):
        lost = sorted(set(each[0]) ^ set(found))
        if lost:
            raise PathError(
                folder,
                f"and {folders[0]} do not hold the same cases: {lost[0]} is in one only",
                "predict the same images with every fold",
            )
        for file in found.values():
            first = each[0][file.name]
            if file.placement is None:
                raise PathError(
                    file.path,
                    "has no .pkl beside it",
                    "predict with nnUNetv2_predict --save_probabilities",
                )
            if file.num_classes != num_classes:
                raise PathError(
                    file.path,
                    f"has {file.num_classes} classes, but the calibrator was fitted on "
                    f"{num_classes}",
                    "use predictions of the same network",
                )
            if file.shape != first.shape:
                raise PathError(
                    file.path,
                    f"has shape {file.shape}, but {first.path} has {first.shape}",
                    "predict the same images with every fold",
                )
            for place in label_maps(file):
                check_place(file, place, read_header(place))
    cases = {name: tuple(found[name] for found in each) for name in each[0]}
    return Predictions(tuple(folders), cases)


def check_out(predictions: Predictions, out: Path, overwrite: bool) -> None:
    """Refuse an output folder that is an input, or that would lose something."""
    if out.resolve() in {folder.resolve() for folder in predictions.folders}:
        raise ValueError(
            f"Expected argument `--out` to be another folder than the predictions, but got {out}."
        )
    check_free(predictions.outputs(out), overwrite)


def calibrate_predictions(
    calibrator: Calibrator,
    predictions: Predictions,
    out: Path,
    *,
    average: str = "probs",
    progress: ProgressCallback = no_progress,
) -> Iterator[Applied]:
    """Calibrate every case into `out`, as nnU-Net would have written it; one case at a time.

    The files appear in `out` when the last case is done, or none does.

    Args:
        average: how several networks become one. "probs" calibrates each and takes the mean of the
            probabilities; "logits" takes the mean of the log-probabilities, as nnU-Net does with
            several folds, and calibrates that.

    `Applied.changed` counts voxels whose label the calibration moved, not the averaging.
    """
    check_choice("average", average, AVERAGES)
    with staged_files(out) as draft:
        for name in BESIDE:
            source = predictions.folders[0] / name
            if source.is_file():
                shutil.copyfile(source, draft / name)
        for number, (name, files) in enumerate(predictions.cases.items(), start=1):
            before, after = _one_case(calibrator, files, average)
            write_like(files[0], after, draft)
            _write_labels(files[0], after, draft)
            progress("calibrating", number, len(predictions.cases))
            changed = int((before.argmax(0) != after.argmax(0)).sum())
            yield Applied(name, int(np.prod(after.shape[1:])), changed)


def _one_case(
    calibrator: Calibrator, files: Sequence[SoftmaxFile], average: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Averaged probabilities (K, *S), not calibrated and calibrated."""
    before, after = np.zeros(()), np.zeros(())
    for file in files:
        # As stored: half precision has another smallest probability, here as in the fit.
        probs = file.read()
        with naming(file.path):
            calibrated = calibrator.transform(probs, from_probs=True)
        if len(files) == 1:
            return probs.astype(np.float32), np.asarray(calibrated, dtype=np.float32)
        if average == "probs":
            before, after = before + probs / len(files), after + calibrated / len(files)
        else:
            floor = _FLOOR_HALF if probs.dtype.itemsize < 4 else _FLOOR
            before = before + np.log(np.maximum(probs, floor, dtype=np.float64)) / len(files)
    if average == "logits":
        before = np.exp(before - before.max(0))
        before /= before.sum(0)
        after = calibrator.transform(before, from_probs=True)
    return before.astype(np.float32), after.astype(np.float32)


def _write_labels(file: SoftmaxFile, probs: NDArray[np.float32], out: Path) -> None:
    """The label map beside the softmax, with the header of the one that nnU-Net wrote."""
    import nibabel as nib

    for source in label_maps(file):
        header: Any = nib.load(source).header.copy()
        labels = probs.argmax(0).T.astype(np.uint8 if len(probs) <= 256 else np.uint16)
        shape = header.get_data_shape()
        if labels.shape != (*shape, 1, 1)[:3]:
            raise PathError(
                source,
                f"has shape {shape}, but the softmax has {labels.shape}",
                "predict again with --save_probabilities",
            )
        header.set_data_dtype(labels.dtype)
        image = nib.Nifti1Image(labels.reshape(shape), None, header)
        with atomic_path(out / source.name) as partial:
            nib.save(image, partial)
