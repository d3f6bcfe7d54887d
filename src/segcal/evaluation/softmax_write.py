"""Calibrated probabilities on disk in the form that they came in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segcal.data.store import replacing
from segcal.evaluation.nnunet_files import from_file_order
from segcal.evaluation.softmax import SoftmaxFile


def write_like(file: SoftmaxFile, probs: NDArray[np.floating], folder: Path) -> list[Path]:
    """Write `probs`, arranged as `file.read()` gives them, as `file` is; the paths written.

    Each file is written whole or not at all, in the dtype of `probs`: rounding it further could
    make two classes equal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values: NDArray[Any] = probs
    if file.form in ("nifti", "classes"):
        return _write_nifti(file, values, folder)
    if file.placement is not None:
        values = from_file_order(values, file.placement)
    elif file.axes == "xyz":
        values = values.transpose(0, *range(values.ndim - 1, 0, -1))
    out = folder / file.path.name
    with replacing(out) as partial, partial.open("wb") as stream:
        if file.form == "npy":
            np.save(stream, values)
        else:
            key = "probabilities" if file.key == "logits" else file.key
            np.savez_compressed(stream, **{key: values})  # type: ignore[arg-type]
    beside = file.path.with_suffix(".pkl")
    if file.form != "nnunet" or not beside.is_file():
        return [out]
    copy = folder / beside.name
    with replacing(copy) as partial:
        shutil.copyfile(beside, partial)
    return [out, copy]


def _write_nifti(file: SoftmaxFile, values: NDArray[Any], folder: Path) -> list[Path]:
    parts = [values] if file.form == "nifti" else list(values)
    written = []
    for source, part in zip(file.paths, parts, strict=True):
        header: Any = nib.load(source).header.copy()
        header.set_data_dtype(part.dtype)
        header.set_slope_inter(1.0, 0.0)
        shape = header.get_data_shape()
        array = part.T.reshape(shape)
        image = nib.Nifti1Image(array, None, header)  # type: ignore[no-untyped-call]
        out = folder / source.name
        with replacing(out) as partial:
            nib.save(image, partial)
        written.append(out)
    return written


def outputs_of(file: SoftmaxFile, folder: Path) -> list[Path]:
    """What `write_like` will write."""
    return [folder / path.name for path in file.paths]
