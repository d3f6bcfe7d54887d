"""Writing calibrated probabilities in the format of the files they were read from."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import atomic_path
from segcal.predictions.softmax_files import SoftmaxFile


def write_like(file: SoftmaxFile, probs: NDArray[np.floating], folder: Path) -> None:
    """Write `probs`, with the axes of `file.read()`, in the format of `file`.

    Each file is written completely or not at all, in the dtype of `probs`: further rounding could
    make two classes equal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if file.format in ("nifti", "classes"):
        parts = [probs] if file.format == "nifti" else list(probs)
        for source, part in zip(file.paths, parts, strict=True):
            write_nifti_like(source, part, folder)
        return
    values = file.to_stored(probs)
    with atomic_path(folder / file.path.name) as partial:
        with partial.open("wb") as stream:
            if file.format == "npy":
                np.save(stream, values)
            else:
                key = "probabilities" if file.key == "logits" else file.key
                np.savez_compressed(stream, **{key: values})  # type: ignore[arg-type]
        if file.format != "npy":  # the other arrays are copied byte for byte
            with zipfile.ZipFile(file.path) as old, zipfile.ZipFile(partial, "a") as new:
                for name in [n for n in old.namelist() if n != f"{file.key}.npy"]:
                    new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    for source in _properties(file):
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)


def write_nifti_like(source: Path, array: NDArray[Any], folder: Path) -> None:
    """Write `array` ([K,] Z, Y, X) under the name and with the header of the NIfTI file `source`.

    The shape of the file is kept, such as that of a 2-D file for an array of one slice.
    """
    header: Any = nib.load(source).header.copy()
    header.set_data_dtype(array.dtype)
    header.set_slope_inter(1.0, 0.0)
    image = nib.Nifti1Image(array.T.reshape(header.get_data_shape()), None, header)  # type: ignore[no-untyped-call]
    with atomic_path(folder / source.name) as partial:
        nib.save(image, partial)


def _properties(file: SoftmaxFile) -> list[Path]:
    """nnU-Net's .pkl file, if there is one."""
    properties = file.path.with_suffix(".pkl")
    return [properties] if file.format == "nnunet" and properties.is_file() else []


def outputs_of(file: SoftmaxFile, folder: Path) -> list[Path]:
    """The paths that `write_like` writes."""
    return [folder / path.name for path in (*file.paths, *_properties(file))]


def check_not_existing(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise a PathError if a file exists and `overwrite` is not set, or if a path is a folder."""
    for path in paths:
        if path.is_dir():
            raise PathError(path, "is a folder", "choose another --out")
        if path.exists() and not overwrite:
            raise PathError(path, "exists already", "pass --overwrite to replace it")
