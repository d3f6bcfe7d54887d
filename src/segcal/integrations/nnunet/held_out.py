"""The held-out cases of nnU-Net's cross-validation: softmax files and labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from segcal.core.documents import read_json
from segcal.core.errors import PathError
from segcal.predictions import Pair, Pairs, find_pairs

Warn: TypeAlias = Callable[[str], None]


def held_out(
    results: Path,
    labels: Path | None = None,
    use_folds: Sequence[int] | None = None,
    warn: Warn = print,
) -> Pairs:
    """The softmax files of the held-out cases of all folds, with their labels.

    Args:
        results: a trainer's folder below nnUNet_results, with `fold_0`, `fold_1`, …
        labels: folder of label maps; None looks where nnU-Net keeps them,
            `$nnUNet_preprocessed/DATASET/gt_segmentations`, then `$nnUNet_raw/DATASET/labelsTr`.
        use_folds: numbers of the folds; None uses every fold that was validated with `--npz`.
        warn: called with a line for each fold that is skipped.
    """
    ignore = _ignore_label(results)
    label_folder = labels if labels is not None else _find_labels(results)
    found: dict[str, tuple[Path, Pair]] = {}
    for folder in _validation_folders(results, use_folds, warn):
        for pair in find_pairs(folder, label_folder, ignore_label=ignore):
            if pair.name in found:
                problem = f"contains {pair.name}, which is also in {found[pair.name][0]}"
                raise PathError(folder, problem, "choose folds that share no case with --fold")
            found[pair.name] = folder, pair
    pairs = tuple(pair for _, (_, pair) in sorted(found.items()))
    counts = {pair.softmax.num_classes for pair in pairs}
    if len(counts) > 1:
        problem = f"has folds of {sorted(counts)} classes"
        raise PathError(results, problem, "use folds of one network")
    return Pairs(results, pairs, ())


def _ignore_label(results: Path) -> int | None:
    """The ignored label of the dataset; a PathError if it was trained with regions."""
    path = results / "dataset.json"
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        example = "nnUNet_results/Dataset004_X/nnUNetTrainer__nnUNetPlans__3d_fullres"
        remedy = f"give a trainer's folder, such as {example}"
        raise PathError(results, "has no dataset.json", remedy) from error
    except (OSError, ValueError) as error:
        raise PathError(path, "cannot be read as JSON", "restore the file") from error
    labels = content.get("labels") if isinstance(content, dict) else None
    if not isinstance(labels, dict):
        raise PathError(path, "has no labels", "restore the file")
    if any(isinstance(label, list) and len(label) > 1 for label in labels.values()):
        problem = "was trained with regions, whose sigmoids do not sum to 1"
        raise PathError(results, problem, "calibrate a network that was trained with labels")
    ignore = labels.get("ignore")
    if ignore is not None and type(ignore) is not int:
        raise PathError(path, f"has the ignore label {ignore!r}", "restore the file")
    return ignore


def _find_labels(results: Path) -> Path:
    dataset = results.resolve().parent.name
    places = {"nnUNet_preprocessed": "gt_segmentations", "nnUNet_raw": "labelsTr"}
    for variable, folder in places.items():
        place = Path(os.environ.get(variable, "")) / dataset / folder
        if variable in os.environ and place.is_dir():
            return place
    problem = f"has no label maps, and nnUNet_preprocessed has none for {dataset}"
    raise PathError(results, problem, "set nnUNet_preprocessed, or give --labels FOLDER")


def _validation_folders(results: Path, folds: Sequence[int] | None, warn: Warn) -> list[Path]:
    """The validation folders of the requested folds, each with softmax files."""
    if folds is not None:
        chosen = [results / f"fold_{fold}" for fold in dict.fromkeys(folds)]
    else:
        chosen = sorted(p for p in results.glob("fold_*") if p.name.removeprefix("fold_").isdigit())
    remedy = "run nnUNetv2_train … --val --npz for each fold"
    if not chosen:
        also = "fold_all was trained on every case; " if (results / "fold_all").is_dir() else ""
        raise PathError(results, "has no fold with held-out cases", also + remedy)
    out = [fold / "validation" for fold in chosen]
    with_softmax = [folder for folder in out if any(folder.glob("*.npz"))]
    missing = [folder for folder in out if folder not in with_softmax]
    if missing and (folds is not None or not with_softmax):
        raise PathError(missing[0], "contains no softmax (.npz)", remedy)
    for folder in missing:
        warn(f"{folder}: contains no softmax (.npz) and is skipped; {remedy}")
    return with_softmax
