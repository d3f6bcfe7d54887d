"""Writing probabilities in the format of the files they were read from, or in another one."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import atomic_path, write_bytes
from segcal.data import Header
from segcal.predictions.softmax_files import SoftmaxFile

Form: TypeAlias = Literal["nifti", "npz", "both"]


def write_like(
    file: SoftmaxFile, probs: NDArray[np.floating], folder: Path, to: Form | None = None
) -> None:
    """Write `probs`, with the axes of `file.read()`, in the format of `file`, or as `to`.

    Files of the format of `file` keep their names; others are NAME_probs.nii.gz, or nnU-Net's
    NAME.npz and NAME.pkl. Each file is written completely or not at all, in the dtype of `probs`:
    further rounding could make two classes equal.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for form in _forms(file, to):
        if form == "own":
            _write_own(file, probs, folder)
        elif form == "nifti":
            header = file.header()
            assert header is not None
            image = nib.Nifti1Image(probs.T, header.affine)  # type: ignore[no-untyped-call]
            image.header.set_xyzt_units("mm")  # type: ignore[no-untyped-call]
            with atomic_path(folder / f"{file.name}_probs.nii.gz") as partial:
                nib.save(image, partial)
        else:
            write_nnunet(folder / f"{file.name}.npz", probs, file.header())


def _forms(file: SoftmaxFile, to: Form | None) -> list[Literal["own", "nifti", "npz"]]:
    """What to write; a PathError if it needs a position that the files do not contain."""
    own = "nifti" if file.format in ("nifti", "classes") else "npz"
    wanted = ("nifti", "npz") if to == "both" else (to or own,)
    if own == "npz" and "nifti" in wanted and file.header() is None:
        problem = "contains no position of its voxels, which NIfTI needs"
        raise PathError(file.path, problem, "put nnU-Net's .pkl file beside it, or use --to npz")
    same = {own} - ({"npz"} if file.format == "npy" and to else set())
    return ["own" if form in same else form for form in wanted]  # type: ignore[misc]


def write_nnunet(path: Path, probs: NDArray[np.floating], header: Header | None) -> None:
    """Write (K, Z, Y, X) as nnU-Net does: an .npz file, and its position in a .pkl file."""
    with atomic_path(path) as partial, partial.open("wb") as stream:
        np.savez_compressed(stream, probabilities=probs)
    if header is None:
        return
    affine = np.array(header.affine)
    affine[:2] *= -1  # ITK uses LPS coordinates, NIfTI uses RAS
    direction = affine[:3, :3] / np.sqrt((affine[:3, :3] ** 2).sum(0))
    spacing = [float(s) for s in header.spacing_mm]
    position = {
        "spacing": spacing[::-1],
        "origin": affine[:3, 3].tolist(),
        "direction": direction.ravel().tolist(),
    }
    properties = {"sitk_stuff": position, "spacing": spacing}
    write_bytes(path.with_suffix(".pkl"), pickle.dumps(properties))


def _write_own(file: SoftmaxFile, probs: NDArray[np.floating], folder: Path) -> None:
    if file.format in ("nifti", "classes"):
        parts = [probs] if file.format == "nifti" else list(probs)
        for source, part in zip(file.paths, parts, strict=True):
            write_nifti_like(source, part, folder)
        return
    values = file.reorder(probs, to_stored=True)
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
    for source in file.sidecars:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)


def write_nifti_like(source: Path, array: NDArray[Any], folder: Path) -> None:
    """Write `array` ([K,] Z, Y, X) under the name and with the header of the NIfTI file `source`.

    The shape of the file is kept, such as that of a 2-D file for an array of one slice.
    """
    try:
        header: Any = nib.load(source).header.copy()
    except Exception as error:  # nibabel raises many types on damaged files
        raise PathError(source, "is damaged or not a NIfTI file", "write it again") from error
    header.set_data_dtype(array.dtype)
    header.set_slope_inter(1.0, 0.0)
    image = nib.Nifti1Image(array.T.reshape(header.get_data_shape()), None, header)  # type: ignore[no-untyped-call]
    with atomic_path(folder / source.name) as partial:
        nib.save(image, partial)


def outputs_of(file: SoftmaxFile, folder: Path, to: Form | None = None) -> list[Path]:
    """The paths that `write_like` writes."""
    names = {
        "own": [path.name for path in (*file.paths, *file.sidecars)],
        "nifti": [f"{file.name}_probs.nii.gz"],
        "npz": [f"{file.name}.npz", *([f"{file.name}.pkl"] if file.header() else [])],
    }
    return [folder / name for form in _forms(file, to) for name in names[form]]


def check_not_existing(paths: Sequence[Path], overwrite: bool) -> None:
    """Raise a PathError if a file exists and `overwrite` is not set, or if a path is a folder."""
    for path in paths:
        if path.is_dir():
            raise PathError(path, "is a folder", "choose another --out")
        if path.exists() and not overwrite:
            raise PathError(path, "exists already", "pass --overwrite to replace it")
