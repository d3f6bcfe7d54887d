"""Predict raw volumes and write maps on the grid of each file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from segcal.config import EvaluationConfig
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import file_sha256, write_json, write_text
from segcal.core.heads import Heads, head_masks, region_map, two_classes
from segcal.core.jobs import run_jobs
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import DatasetInfo, Header, find_images, read_scan, write_nifti
from segcal.evaluation.finished_run import FinishedRun, open_runs, unfinished
from segcal.evaluation.posthoc_choice import chose_none
from segcal.evaluation.posthoc_run import requested_calibrator
from segcal.evaluation.predict import AVERAGES, FLIPS, restore_probs
from segcal.evaluation.predict_manifest import PredictionManifest, seen_maps
from segcal.evaluation.predictor import Predictor, make_predictor
from segcal.evaluation.scan_checks import Space, check_output_folder, read_headers
from segcal.metrics import (
    entropy,
    mean_pairwise_dice,
    mutual_information,
    pair_tables,
    predicted_labels,
    probability_variance,
)
from segcal.posthoc import BaseCalibrator
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
_DISAGREEMENT: _Maps = {"variance": probability_variance, "mutual_information": mutual_information}
OUTPUTS = tuple(_MAPS)


def _maps_of_heads(heads: Heads) -> _Maps:
    """The same maps of sigmoid heads (R, Z, Y, X), or (M, R, Z, Y, X) of several runs."""
    return {
        **_MAPS,
        **_DISAGREEMENT,
        "labels": lambda probs: region_map(probs, heads),
        "confidence": lambda probs: np.maximum(probs, 1 - probs).min(0),
        "entropy": lambda probs: sum(entropy(two_classes(p, from_probs=True)) for p in probs),
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
    jobs: int = 1,
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
    the entropy is the sum over regions. Beside probabilities, dataset.json names the classes or
    regions for `segcal audit` and `segcal assure`.

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
        jobs: processes, each with one scan at a time and the networks; the result does not depend
            on it. On a GPU they share it.
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
    opened, out = open_runs(runs), Path(out)
    for line in unfinished(opened):
        warn(line)
    single = [name for name in outputs if name in _DISAGREEMENT and len(opened) == 1]
    if single:
        raise ValueError(f"--output {single[0]}: needs several runs, but {runs[0]} is one")
    info, space = opened[0].data_info, Space(opened)
    images = find_images(source, info.channels, warn)
    check_output_folder(out, Path(source), images)
    headers, problems = read_headers(images, info)
    files = {case: _files_of(out, case, outputs, to) for case in headers}
    config = EvaluationConfig.model_validate(
        {"checkpoint": checkpoint, "flips": sorted(set(flips)), "average": average}
    )
    fitted = requested_calibrator(
        runs, calibrator, raw, config=config, data=None, device=device, say=warn
    )
    fitted = None if fitted is None or chose_none(fitted) else fitted
    manifest = PredictionManifest(out, _settings(opened, config, space.orientation, fitted))
    kept = [c for c in headers if not overwrite and manifest.is_finished(images[c], files[c])]
    todo = {case: header for case, header in headers.items() if case not in kept}
    for line in space.warnings(todo, info):
        warn(line)
    predictor = make_predictor(opened, config, device, fitted)
    # An error of the networks must not cost existing maps. Workers load them on their own device.
    _ = (predictor if jobs == 1 else replace(predictor, device="cpu")).networks
    plan = _Plan(predictor, info, space.orientation, opened[0].heads)
    work = {
        case: partial(_predict_scan, plan, images[case], header, files[case])
        for case, header in todo.items()
    }
    if todo:
        manifest.begin(images, {case: files[case] for case in todo})
    predicted: dict[str, _Predicted] = {}
    with closing(run_jobs(work, jobs)) as outcomes:
        for case, outcome in outcomes:
            if isinstance(outcome, PathError):
                raise outcome
            predicted[case] = outcome
            _record(case, outcome, files[case], manifest, opened)
            progress("predicting", len(predicted), len(todo))
    failed = [problem for case in todo if (problem := predicted[case].problem)]
    problems += failed
    if len(failed) == len(headers):
        raise problems[0]
    known = seen_maps(out)
    seen = [c for c in (*kept, *todo) if any(path.name in known for path in files[c])]
    if seen:
        warn(opened[0].describe_seen(seen))
    written = [path for case in todo if not predicted[case].problem for path in files[case]]
    method = None if fitted is None else fitted.method
    return PredictReport(tuple(written), tuple(kept), tuple(problems), method)


def _files_of(out: Path, case: str, outputs: Sequence[str], to: Form | None) -> dict[Path, str]:
    """The files of a scan, and the kind of map in each."""
    files = {}
    for what in outputs:
        if what == "probs" and to in ("npz", "both"):
            files[out / f"{case}.npz"] = what
        if what != "probs" or to != "npz":
            files[out / f"{case}_{what}.nii.gz"] = what
    return files


def _settings(
    runs: Sequence[FinishedRun],
    config: EvaluationConfig,
    orientation: str | None,
    calibrator: BaseCalibrator | None,
) -> dict[str, Any]:
    """What decides the content of the maps of a scan."""
    settings: dict[str, Any] = {
        "checkpoints": [file_sha256(run.checkpoint(config.checkpoint)) for run in runs],
        "flips": config.flips,
        "average": config.average,
        "orientation": orientation,
    }
    if calibrator is not None:
        settings["calibrator"] = {"method": calibrator.method, **calibrator.params()}
    return settings


@dataclass(frozen=True)
class _Plan:
    """How every scan is read and predicted."""

    predict: Predictor
    info: DatasetInfo
    orientation: str | None
    heads: Heads


@dataclass(frozen=True)
class _Predicted:
    """A scan whose maps are written, or why it cannot be read. `dice`: of several runs."""

    problem: PathError | None = None
    voxels_sha256: str = ""
    dice: Mapping[str, float] = field(default_factory=dict)


def _predict_scan(
    plan: _Plan, images: Sequence[Path], header: Header, maps: Mapping[Path, str]
) -> _Predicted:
    """Predict a scan and write its maps (path → kind)."""
    try:
        scan = read_scan(images, plan.info, plan.orientation)
    except PathError as problem:
        return _Predicted(problem)
    heads = plan.heads
    found = plan.predict(scan.image, scan.grid.spacing_mm)
    probs = restore_probs(scan.grid, found.probs, bool(heads))
    each = [restore_probs(scan.grid, m.probs, bool(heads)) for m in found.members]
    members = np.stack(each) if each else np.empty(0, np.float32)
    compute = _maps_of_heads(heads) if heads else {**_MAPS, **_DISAGREEMENT}
    arrays = {
        what: scan.to_file_order(compute[what](probs if what in _MAPS else members))
        for what in dict.fromkeys(maps.values())
    }
    for path, what in maps.items():
        if path.suffix == ".npz":
            write_nnunet(path, arrays[what], header)
        else:
            write_nifti(path, arrays[what], scan.file_grid)
    dice = _pairwise_dice(members, plan.info, heads) if len(members) else {}
    return _Predicted(None, scan.voxels_sha256, dice)


def _record(
    case: str,
    found: _Predicted,
    files: Mapping[Path, str],
    manifest: PredictionManifest,
    runs: Sequence[FinishedRun],
) -> None:
    """Complete the folder after a scan: names of the classes, Dice between runs, manifest."""
    if found.problem is not None:
        manifest.forget(files)
        return
    if runs[0].heads or "probs" in files.values():
        write_json(manifest.folder / "dataset.json", runs[0].dataset_json)
    if found.dice or (manifest.folder / PAIRWISE_DICE).is_file():
        _write_pairwise_dice(manifest.folder, case, found.dice)
    manifest.finish(files, seen=_part_of_training(runs, found.voxels_sha256))


def _part_of_training(runs: Sequence[FinishedRun], voxels_sha256: str) -> str | None:
    """The split ("train" before "val") in which a run used the scan."""
    scan = {"": voxels_sha256}
    if any(run.seen(scan, "val") for run in runs):
        return "train"
    return "val" if any(run.seen(scan) for run in runs) else None


def _pairwise_dice(
    members: NDArray[np.floating], info: DatasetInfo, heads: Heads
) -> dict[str, float]:
    """The mean Dice between the masks of `members` (M, K, *S), by structure."""
    if heads:
        masks = head_masks(members).astype(np.uint8)
        dice = {
            name: mean_pairwise_dice(pair_tables(masks[:, k], 2), (1,))
            for k, name in enumerate(heads)
        }
    else:
        groups = info.regions or {name: (k,) for k, name in info.classes.items() if k > 0}
        tables = pair_tables(np.stack([predicted_labels(p) for p in members]), members.shape[1])
        dice = {name: mean_pairwise_dice(tables, labels) for name, labels in groups.items()}
    return {**dice, "mean": float(np.mean([*dice.values()]))}


def _write_pairwise_dice(folder: Path, case: str, dice: Mapping[str, float]) -> None:
    """Replace the rows of a case in pairwise_dice.csv, which is sorted by case."""
    path, case = folder / PAIRWISE_DICE, neutral(case)
    rows = pd.DataFrame(
        [(case, neutral(name), value) for name, value in dice.items()], columns=_COLUMNS
    )
    if path.is_file():
        try:
            old = pd.read_csv(path, dtype={"case": str}, keep_default_na=False)[[*_COLUMNS]]
        except (ValueError, KeyError) as error:
            raise PathError(path, "is damaged", "remove it, and pass --overwrite") from error
        rows = pd.concat([old[old["case"] != case], rows]).sort_values("case", kind="stable")
    write_text(path, rows.to_csv(index=False, float_format="%.6f"))
