"""Predict raw volumes and write maps on the grid of each file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import find_images, read_scan, write_nifti
from segcal.evaluation.finished_run import FinishedRun, open_run
from segcal.evaluation.predict import (
    AVERAGES,
    FLIPS,
    choose_device,
    predict_case,
    reproducible_float32,
)
from segcal.evaluation.predict_manifest import PredictionManifest, seen_maps
from segcal.evaluation.scan_checks import Space, check_output_folder, read_headers
from segcal.predictions import Form, write_nnunet

_CLIP = 1e-12
_MAPS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.generic]]] = {
    "labels": lambda probs: probs.argmax(0).astype(np.uint8),
    "probs": lambda probs: probs,
    "confidence": lambda probs: probs.max(0),
    "entropy": lambda probs: -(probs * np.log(np.maximum(probs, _CLIP))).sum(0, dtype=np.float32),
}
OUTPUTS = tuple(_MAPS)


@dataclass(frozen=True)
class PredictReport:
    """The maps written, the cases kept from an earlier call, and one problem per skipped scan."""

    written: tuple[Path, ...]
    kept: tuple[str, ...]
    problems: tuple[PathError, ...]


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
    device: str = "auto",
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    warn: Callable[[str], None] = warnings.warn,
) -> PredictReport:
    """Predict every image of a folder, on the grid of its own file.

    Images are read as those of the training set were (see `segcal.data.find_images` for their
    names) and turned to its orientation; maps are turned back. Probabilities are interpolated
    linearly from the network's grid and still sum to 1; labels, confidence (the largest
    probability) and entropy (nats) are derived from them.

    A scan that cannot be read is skipped and reported. Maps of the same scan with the same settings
    are kept.

    Args:
        runs: one run, or several to average; they must share classes and preparation.
        source: folder of images of any supported format.
        out: folder for NAME_labels.nii.gz (uint8), NAME_probs.nii.gz (classes last, float32),
            NAME_confidence.nii.gz and NAME_entropy.nii.gz (float32); not the input folder.
        outputs: which of the four.
        to: format of the probabilities: "nifti" (also None), "npz" for nnU-Net's NAME.npz and
            NAME.pkl, or "both".
        flips, average: as in `predict_case`.
        device, progress: as in `evaluate_run`.
        overwrite: whether existing maps are replaced.
        warn: called with one line about each unusual orientation or spacing, about skipped label
            maps and cine files, and about scans that a run was trained on.
    """
    outputs = list(dict.fromkeys(outputs))
    for name in outputs:
        check_choice("--output", name, OUTPUTS)
    check_choice("--checkpoint", checkpoint, ("best", "last"))
    for axis in flips:
        check_choice("--flips", axis, FLIPS)
    check_choice("--average", average, AVERAGES)
    opened = [open_run(run) for run in runs]
    _check_compatible(opened)
    info, space, out = opened[0].data_info, Space(opened), Path(out)
    images = find_images(source, info.channels, warn)
    check_output_folder(out, Path(source), images)
    headers, problems = read_headers(images, info)
    endings = {what: [f"_{what}.nii.gz"] for what in outputs}
    if to in ("npz", "both") and "probs" in endings:
        endings["probs"] = [".npz"] if to == "npz" else [".npz", *endings["probs"]]
    files = [(what, ending) for what in outputs for ending in endings[what]]
    paths = {case: [out / f"{case}{ending}" for _, ending in files] for case in headers}
    settings = {
        "checkpoints": [file_sha256(run.checkpoint(checkpoint)) for run in opened],
        "flips": sorted(set(flips)),
        "average": average,
        "orientation": space.orientation,
    }
    manifest = PredictionManifest(out, settings)
    kept = [c for c in headers if not overwrite and manifest.is_finished(images[c], paths[c])]
    todo = {case: header for case, header in headers.items() if case not in kept}
    for line in space.warnings(todo, info):
        warn(line)
    chosen = choose_device(device)
    networks = [run.network(checkpoint, chosen) for run in opened]
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
                    patch_size=opened[0].patch_size, flips=flips, average=average,
                )  # fmt: skip
            probs = scan.grid.restore_probs(found.probs.cpu().numpy())
            maps = {what: _MAPS[what](probs) for what in outputs}
            known = any(run.seen({case: scan.voxels_sha256}) for run in opened)
            seen += [case] if known else []
            manifest.begin(images[case], paths[case], seen=known)
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
    return PredictReport(tuple(written), tuple(kept), tuple(problems))


def _check_compatible(runs: Sequence[FinishedRun]) -> None:
    """Runs can be averaged only if their classes and the preparation of their data agree."""
    if not runs:
        raise ValueError("Expected argument `runs` to name a run, but got none.")
    first, *others = runs
    for other in others:
        for what in ("classes", "channels", "grid", "intensity", "dtype"):
            if getattr(other.data_info, what) != getattr(first.data_info, what):
                problem = f"was trained on data with another `{what}` than {first.folder}"
                raise PathError(other.folder, problem, "average runs of one data set only")
        if other.patch_size != first.patch_size:
            problem = f"was trained with another patch size than {first.folder}"
            raise PathError(other.folder, problem, "predict with one at a time")
