"""Post-hoc calibration of files: apply a fitted calibrator to a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import staged_files
from segcal.data.formats.nifti import read_header
from segcal.evaluation.posthoc_fit import naming
from segcal.posthoc import Calibrator
from segcal.predictions.pairing import (
    AXES,
    arrange,
    as_volume,
    check_place,
    find_images,
    read_channels,
)
from segcal.predictions.softmax_files import SoftmaxFile, find_softmax
from segcal.predictions.writer import check_free, outputs_of, write_like


@dataclass(frozen=True)
class Applied:
    """What `apply_folder` did to one case."""

    name: str
    voxels: int
    changed: int


def apply_folder(
    calibrator: Calibrator,
    folder: Path,
    out: Path,
    *,
    from_probs: bool,
    images: Path | None = None,
    axes: str = "auto",
    overwrite: bool = False,
) -> Iterator[Applied]:
    """Calibrate every case of `folder` into `out`, in the same form; one case at a time.

    The files appear in `out` when the last case is done, or none does.

    Args:
        images: see `find_pairs`.
        axes: order of the axes of plain arrays; "auto" tells by the images' shapes, else it is that
            of the calibrator's fit.
    """
    check_choice("axes", axes, AXES)
    found = find_softmax(folder)
    if out.resolve() == folder.resolve():
        raise ValueError(
            f"Expected argument `out` to be another folder than the input, but got {out}."
        )
    check_free([path for file in found.values() for path in outputs_of(file, out)], overwrite)
    wanted = calibrator.check_fitted()
    for file in found.values():
        if file.num_classes != wanted:
            raise PathError(
                file.path,
                f"has {file.num_classes} classes, but the calibrator was fitted on {wanted}",
                "fit one on this network",
            )
    pictures = find_images(images, found) if images is not None else {}
    found = _in_order(calibrator, folder, found, pictures, axes)
    with staged_files(out) as draft:
        for file in found.values():
            yield _apply(calibrator, file, draft, from_probs, pictures.get(file.name, ()))


def _in_order(
    calibrator: Calibrator,
    folder: Path,
    found: dict[str, SoftmaxFile],
    pictures: Mapping[str, Sequence[Path]],
    axes: str,
) -> dict[str, SoftmaxFile]:
    """The files with their axes as in the fit: local temperature tells one axis from another."""
    fitted = calibrator.about.get("axes")
    known = fitted if axes == "auto" and fitted in ("zyx", "xyz") else axes
    if not pictures:
        order = "zyx" if known == "auto" else known
        plain = ("npz", "npy")
        return {n: f.with_axes(order) if f.form in plain else f for n, f in found.items()}
    headers = {name: read_header(paths[0]) for name, paths in pictures.items()}
    try:
        found = arrange(folder, found, headers, axes)
    except PathError:
        if known == axes:
            raise
        found = arrange(folder, found, headers, known)  # shapes do not tell, the fit does
    for name, file in found.items():
        check_place(file, headers[name].path, headers[name])
    return found


def _apply(
    calibrator: Calibrator, file: SoftmaxFile, out: Path, from_probs: bool, images: Sequence[Path]
) -> Applied:
    stored = file.read()
    values = as_volume(stored, 3 if calibrator.about.get("dims") == 3 else 0)
    image = read_channels(images) if images else None
    with naming(file.path):
        probs = calibrator.transform(values, from_probs=from_probs, image=image)
    changed = int((values.argmax(0) != probs.argmax(0)).sum())
    write_like(file, probs.reshape(stored.shape), out)
    return Applied(file.name, int(np.prod(values.shape[1:])), changed)
