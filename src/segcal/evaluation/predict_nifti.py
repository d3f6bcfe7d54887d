"""Predict raw volumes and write maps on the grid of each file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from segcal.config import EvaluationConfig
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import file_sha256, write_json, write_text
from segcal.core.heads import Heads, head_masks, region_labels, region_map, two_classes
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import DatasetInfo, find_images, read_scan, write_nifti
from segcal.evaluation.finished_run import FinishedRun, open_runs
from segcal.evaluation.posthoc_run import default_calibrator, run_calibrator
from segcal.evaluation.predict import (
    AVERAGES,
    FLIPS,
    calibrated,
    choose_device,
    predict_case,
    reproducible_float32,
    restore_probs,
)
from segcal.evaluation.predict_manifest import PredictionManifest, seen_maps
from segcal.evaluation.scan_checks import Space, check_output_folder, read_headers
from segcal.metrics import (
    entropy,
    mean_pairwise_dice,
    mutual_information,
    pair_tables,
    predicted_labels,
    probability_variance,
)
from segcal.predictions import Form, write_nnunet
from segcal.study import neutral

_Maps = dict[str, Callable[[NDArray[np.float32]], NDArray[np.generic]]]
_MAPS: _Maps = {
    "labels": lambda probs: probs.argmax(0).astype(np.uint8),
    "probs": lambda probs: probs,
    "confidence": lambda probs: probs.max(0),
    "entropy": entropy,
}
# Of the probabilities (M, K, Z, Y, X) of several runs.
_DISAGREEMENT: _Maps = {
    "variance": probability_variance,
    "mutual_information": mutual_information,
}
OUTPUTS = tuple(_MAPS)


def _maps_of_heads(heads: Heads) -> _Maps:
    """The same maps of sigmoid heads (R, Z, Y, X), or (M, R, Z, Y, X) of several runs."""
    return {
        "labels": lambda probs: region_map(probs, heads),
        "probs": lambda probs: probs,
        "confidence": lambda probs: np.maximum(probs, 1 - probs).min(0),
        "entropy": lambda probs: sum(entropy(two_classes(p, from_probs=True)) for p in probs),
        "variance": probability_variance,
        "mutual_information": lambda members: sum(
            mutual_information(np.stack([1 - p, p], 1)) for p in members.swapaxes(0, 1)
        ),
    }


PAIRWISE_DICE, _COLUMNS = "pairwise_dice.csv", ("case", "structure", "dice")


@dataclass(frozen=True)
class PredictReport:
    """The maps written, the cases kept from an earlier call, and one problem per skipped scan.

    `calibrator` is the method that the probabilities are calibrated by, if they are.
    """

    written: tuple[Path, ...]
    kept: tuple[str, ...]
    problems: tuple[PathError, ...]
    calibrator: str | None = None


def predict_volumes(
    runs: Sequence[Path | str],
    source: Path | str,
    out: Path | str,
    *,
    outputs: Sequence[str] = OUTPUTS,
    to: Form | None = None,
    checkpoint: str = "best",
    flips: Sequence[str] = (),
    average: str = "probs",
    calibrator: Path | str | None = None,
    raw: bool = False,
    device: str = "auto",
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    warn: Callable[[str], None] = warnings.warn,
) -> PredictReport:
    """Predict every image of a folder, on the grid of its own file.

    Images are read as those of the training set were (see `segcal.data.find_images` for their
    names) and turned to its orientation; maps are turned back. Probabilities are interpolated
    linearly from the network's grid and still sum to 1; labels, confidence (the largest
    probability) and entropy (nats) are derived from them. Of sigmoid heads, the label map shows the
    smallest region (see `region_labels`), the confidence is that of the least certain region, and
    the entropy is the sum over regions; dataset.json names the regions for `segcal audit`.

    The mean Dice between the masks of several runs is written to pairwise_dice.csv.

    A scan that cannot be read is skipped and reported. Maps of the same scan with the same settings
    are kept.

    Args:
        runs: one run, or several to average; they must share classes and preparation. A folder
            with the runs fold0, fold1, … stands for these.
        source: folder of images of any supported format.
        out: folder for NAME_labels.nii.gz (uint8), NAME_probs.nii.gz (classes last, float32),
            NAME_confidence.nii.gz and NAME_entropy.nii.gz (float32); not the input folder.
        outputs: which of the four; for several runs also their disagreement, "variance" (of the
            probabilities, mean over classes) and "mutual_information" (nats), both float32.
        to: format of the probabilities: "nifti" (also None), "npz" for nnU-Net's NAME.npz and
            NAME.pkl, or "both".
        flips, average: as in `predict_case`.
        calibrator, raw: as in `evaluate_run`; all maps are of calibrated probabilities.
        device, progress: as in `evaluate_run`.
        overwrite: whether existing maps are replaced.
        warn: called with one line about each unusual orientation or spacing, about skipped label
            maps and cine files, and about scans that a run was trained on.
    """
    outputs = list(dict.fromkeys(outputs))
    for name in outputs:
        check_choice("--output", name, (*OUTPUTS, *_DISAGREEMENT))
    check_choice("--checkpoint", checkpoint, ("best", "last"))
    for axis in flips:
        check_choice("--flips", axis, FLIPS)
    check_choice("--average", average, AVERAGES)
    opened = open_runs(runs)
    single = [name for name in outputs if name in _DISAGREEMENT and len(opened) == 1]
    if single:
        raise ValueError(f"--output {single[0]}: needs several runs, but {runs[0]} is one")
    info, space, out = opened[0].data_info, Space(opened), Path(out)
    heads = opened[0].heads
    images = find_images(source, info.channels, warn)
    check_output_folder(out, Path(source), images)
    headers, problems = read_headers(images, info)
    endings = {what: [f"_{what}.nii.gz"] for what in outputs}
    if to in ("npz", "both") and "probs" in endings:
        endings["probs"] = [".npz"] if to == "npz" else [".npz", *endings["probs"]]
    files = [(what, ending) for what in outputs for ending in endings[what]]
    paths = {case: [out / f"{case}{ending}" for _, ending in files] for case in headers}
    settings: dict[str, Any] = {
        "checkpoints": [file_sha256(run.checkpoint(checkpoint)) for run in opened],
        "flips": sorted(set(flips)),
        "average": average,
        "orientation": space.orientation,
    }
    fitted = None
    config = EvaluationConfig.model_validate(
        {"checkpoint": checkpoint, "flips": settings["flips"], "average": average}
    )
    fit: dict[str, Any] = {"config": config, "data": None, "device": device, "say": warn}
    if calibrator is not None:
        fitted = run_calibrator(runs, calibrator, **fit)
    elif not raw:
        fitted = default_calibrator(runs, **fit)
    if fitted is not None:
        settings["calibrator"] = {"method": fitted.method, **fitted.params()}
    manifest = PredictionManifest(out, settings)
    kept = [c for c in headers if not overwrite and manifest.is_finished(images[c], paths[c])]
    todo = {case: header for case, header in headers.items() if case not in kept}
    for line in space.warnings(todo, info):
        warn(line)
    chosen = choose_device(device)
    networks = [run.network(checkpoint, chosen) for run in opened]
    compute = _maps_of_heads(heads) if heads else {**_MAPS, **_DISAGREEMENT}
    written: list[Path] = []
    seen = [c for c in kept if {path.name for path in paths[c]} & seen_maps(out)]
    for done, case in enumerate(todo, start=1):
        try:
            scan = read_scan(images[case], info, space.orientation)
        except PathError as problem:
            problems.append(problem)
        else:
            with reproducible_float32():
                found = predict_case(
                    networks, torch.from_numpy(scan.image).to(chosen),
                    patch_size=[run.patch_size for run in opened], flips=flips, average=average,
                    sigmoid=bool(heads),
                )  # fmt: skip
            if fitted is not None:
                found = calibrated(found, fitted, scan.grid.spacing_mm)
            probs = restore_probs(scan.grid, found.probs, bool(heads))
            each = [restore_probs(scan.grid, m.probs, bool(heads)) for m in found.members]
            members = np.stack(each) if each else np.empty(0, np.float32)
            maps = {what: compute[what](probs if what in _MAPS else members) for what in outputs}
            used = _part_of_training(opened, scan.voxels_sha256)
            seen += [case] if used else []
            manifest.begin(images[case], paths[case], seen=used)
            if heads:
                order = [region_labels(heads)[name] for name in heads]
                names = {"labels": {"background": 0, **heads}, "regions_class_order": order}
                write_json(out / "dataset.json", names)
            if len(members) or (out / PAIRWISE_DICE).is_file():
                _write_pairwise_dice(out, case, members, info, heads)
            for path, (what, _) in zip(paths[case], files, strict=True):
                array = scan.to_file_order(maps[what])
                if path.suffix == ".npz":
                    write_nnunet(path, array, headers[case])
                else:
                    write_nifti(path, array, scan.file_grid)
            written += paths[case]
        progress("predicting", done, len(todo))
    if not written and not kept:
        raise problems[0]
    if seen:
        warn(opened[0].describe_seen(seen))
    method = None if fitted is None else fitted.method
    return PredictReport(tuple(written), tuple(kept), tuple(problems), method)


def _part_of_training(runs: Sequence[FinishedRun], voxels_sha256: str) -> str | None:
    """The split ("train" before "val") in which a run used the scan."""
    scan = {"": voxels_sha256}
    if any(run.seen(scan, "val") for run in runs):
        return "train"
    return "val" if any(run.seen(scan) for run in runs) else None


def _write_pairwise_dice(
    folder: Path, case: str, members: NDArray[np.floating], info: DatasetInfo, heads: Heads
) -> None:
    """Replace the rows of a case in pairwise_dice.csv; `members` are (M, K, *S), or empty."""
    dice = {}
    if len(members) and heads:
        masks = head_masks(members).astype(np.uint8)
        dice = {
            name: mean_pairwise_dice(pair_tables(masks[:, k], 2), (1,))
            for k, name in enumerate(heads)
        }
    elif len(members):
        groups = info.regions or {name: (k,) for k, name in info.classes.items() if k > 0}
        tables = pair_tables(np.stack([predicted_labels(p) for p in members]), members.shape[1])
        dice = {name: mean_pairwise_dice(tables, labels) for name, labels in groups.items()}
    if dice:
        dice["mean"] = float(np.mean([*dice.values()]))
    path, case = folder / PAIRWISE_DICE, neutral(case)
    rows = pd.DataFrame(
        [(case, neutral(name), value) for name, value in dice.items()], columns=_COLUMNS
    )
    if path.is_file():
        try:
            old = pd.read_csv(path, dtype={"case": str}, keep_default_na=False)[[*_COLUMNS]]
        except (ValueError, KeyError) as error:
            raise PathError(path, "is damaged", "remove it, and pass --overwrite") from error
        rows = pd.concat([old[old["case"] != case], rows])
    write_text(path, rows.to_csv(index=False, float_format="%.6f"))
