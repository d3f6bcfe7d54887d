"""Raw volumes in, NIfTI files on their own grid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from segcal._checks import check_choice
from segcal.data import find_images, read_raw, write_nifti
from segcal.evaluation.predict import choose_device, exactly, predict_case
from segcal.evaluation.run import FinishedRun, RunFolderError, open_run

OUTPUTS = ("labels", "probs", "confidence", "entropy")
_CLIP = 1e-12


def predict_volumes(
    runs: Sequence[Path | str],
    source: Path | str,
    out: Path | str,
    *,
    outputs: Sequence[str] = OUTPUTS,
    checkpoint: str = "best",
    flips: Sequence[str] = (),
    average: str = "probs",
    device: str = "auto",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Predict every image of a folder, on the grid of its own file.

    Images are read as the training set's were (see `segcal.data.find_images` for their names).
    Probabilities come back from the network's grid by linear interpolation and still sum to 1;
    labels, confidence (the largest probability) and entropy (nats) are taken from them there.

    Args:
        runs: one run, or several to be averaged; they must share classes and preparation.
        source: folder of NIfTI images.
        out: folder for NAME_labels.nii.gz (uint8), NAME_probs.nii.gz (classes last, float32),
            NAME_confidence.nii.gz and NAME_entropy.nii.gz (float32).
        outputs: which of the four.
        checkpoint: "best" or "last".
        flips, average: as `predict_case`.
        overwrite: whether files in `out` may be replaced.
        progress: called with (cases done, cases in all).

    Returns:
        the files written.
    """
    for name in outputs:
        check_choice("outputs", name, OUTPUTS)
    opened = [open_run(run) for run in runs]
    _check_alike(opened)
    info = opened[0].info
    images = find_images(source, info.channels)
    out = Path(out)
    paths = {
        case: {what: out / f"{case}_{what}.nii.gz" for what in dict.fromkeys(outputs)}
        for case in images
    }
    there = [path for files in paths.values() for path in files.values() if path.exists()]
    if there and not overwrite:
        raise ValueError(f"{there[0]}: is there already; say --overwrite, or choose another --out")
    place = choose_device(device)
    networks = [run.network(checkpoint, place) for run in opened]
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with exactly():
        for done, (case, files) in enumerate(images.items(), start=1):
            image, grid = read_raw(files, info)
            found = predict_case(
                networks,
                torch.from_numpy(image).to(place),
                patch_size=opened[0].patch_size,
                flips=flips,
                average=average,
            )
            maps = _maps(grid.restore_probs(found.probs.cpu().numpy()), outputs)
            for what, array in maps.items():
                write_nifti(paths[case][what], array, grid)
                written.append(paths[case][what])
            if progress is not None:
                progress(done, len(images))
    return written


def _maps(probs: NDArray[np.float32], outputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    make: dict[str, Callable[[], NDArray[np.generic]]] = {
        "labels": lambda: probs.argmax(0).astype(np.uint8),
        "probs": lambda: probs,
        "confidence": lambda: probs.max(0),
        "entropy": lambda: -(probs * np.log(np.maximum(probs, _CLIP))).sum(0, dtype=np.float32),
    }
    return {what: make[what]() for what in dict.fromkeys(outputs)}


def _check_alike(runs: Sequence[FinishedRun]) -> None:
    """Runs are averaged only if they name the same classes and see images the same way."""
    if not runs:
        raise ValueError("Expected argument `runs` to name a run, but got none.")
    first = runs[0]
    for other in runs[1:]:
        for what in ("classes", "channels", "grid", "intensity", "dtype"):
            if getattr(other.info, what) != getattr(first.info, what):
                raise RunFolderError(
                    other.folder,
                    f"was trained on data with another `{what}` than {first.folder}",
                    "average runs of one data set only",
                )
        if other.patch_size != first.patch_size:
            raise RunFolderError(
                other.folder, f"has other patches than {first.folder}", "predict them one by one"
            )
