"""The held-out cases of nnU-Net's cross-validation: softmax files and labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from segcal.core.errors import PathError
from segcal.core.heads import Heads
from segcal.data import read_dataset_json
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
    ignore, regions = _read_labels(results)
    label_folder = labels if labels is not None else _find_labels(results)
    found: dict[str, tuple[Path, Pair]] = {}
    for folder in _validation_folders(results, use_folds, warn):
        for pair in find_pairs(folder, label_folder, ignore_label=ignore, heads=regions):
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


def _read_labels(results: Path) -> tuple[int | None, Heads]:
    """The ignored label of the dataset, and the regions of a region-based training."""
    path = results / "dataset.json"
    if not path.is_file():
        example = "nnUNet_results/Dataset004_X/nnUNetTrainer__nnUNetPlans__3d_fullres"
        remedy = f"give a trainer's folder, such as {example}"
        raise PathError(results, "has no dataset.json", remedy)
    content = read_dataset_json(path)
    if content.ignore is not None and type(content.ignore) is not int:
        raise PathError(path, f"has the ignore label {content.ignore!r}", "restore the file")
    return content.ignore, content.regions


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
