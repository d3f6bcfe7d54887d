"""Calibrated probabilities on disk in the form that they came in."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segcal.core.files import atomic_path
from segcal.predictions.nnunet import from_file_order
from segcal.predictions.softmax_files import SoftmaxFile


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
    with atomic_path(out) as partial:
        with partial.open("wb") as stream:
            if file.form == "npy":
                np.save(stream, values)
            else:
                key = "probabilities" if file.key == "logits" else file.key
                np.savez_compressed(stream, **{key: values})  # type: ignore[arg-type]
        if file.form != "npy":
            _copy_others(file, partial)
    beside = _beside(file)
    for source in beside:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    return [out, *(folder / source.name for source in beside)]


def _copy_others(file: SoftmaxFile, out: Path) -> None:
    """What else lies in the .npz, byte for byte."""
    with zipfile.ZipFile(file.path) as old, zipfile.ZipFile(out, "a") as new:
        for name in old.namelist():
            if name != f"{file.key}.npy":
                new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)


def _beside(file: SoftmaxFile) -> list[Path]:
    """The properties that belong to nnU-Net's softmax."""
    properties = file.path.with_suffix(".pkl")
    return [properties] if file.form == "nnunet" and properties.is_file() else []


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
        with atomic_path(out) as partial:
            nib.save(image, partial)
        written.append(out)
    return written


def outputs_of(file: SoftmaxFile, folder: Path) -> list[Path]:
    """All that `write_like` will write."""
    return [folder / path.name for path in (*file.paths, *_beside(file))]


def check_free(paths: Sequence[Path], overwrite: bool) -> None:
    """Refuse to replace what is there, unless told; a folder is never replaced."""
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path}: is a folder; choose another --out")
        if path.exists() and not overwrite:
            raise ValueError(f"{path}: exists already; say --overwrite to replace it")
