"""Image files of every supported format, read through one interface.

Arrays are (C, Z, Y, X), the reverse of the axis order in the file; affines are RAS, as in nibabel.
The ending of the name decides the format. A folder of DICOM files or of pictures is one volume.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder, read_errors
from segcal.data.formats.arrays import open_array
from segcal.data.formats.header import Header, Opened, check_channels, check_same_grid
from segcal.data.formats.itk import dicom_files, open_itk, open_series
from segcal.data.formats.nifti import open_nifti
from segcal.data.formats.pictures import PICTURES, open_pictures

__all__ = [
    "CONTAINERS", "SUPPORTED", "Header", "check_channels", "check_same_grid", "describe_content",
    "files_of", "find_label", "is_label_name", "nifti_name", "read_channels", "read_header",
    "read_image", "read_labels", "read_masks", "read_voxels", "scan_name",
]  # fmt: skip

NIFTI = (".nii.gz", ".nii")
_ITK = (".nrrd", ".nhdr", ".mha", ".mhd", ".dcm")
_ARRAYS = (".npy", ".npz", ".h5", ".hdf5")
# Formats that may hold the image and its labels in one file.
CONTAINERS = (".npz", ".h5", ".hdf5")
_ENDINGS = (*NIFTI, *_ITK, *PICTURES, *_ARRAYS)
_VOLUMES = (*NIFTI, *_ITK[:-1], *_ARRAYS)
# Files with the voxels of an .mhd or .nhdr header.
_DETACHED = (".raw", ".zraw", ".raw.gz")
SUPPORTED = (
    "NIfTI, NRRD, MHA/MHD, folders of DICOM slices, PNG/TIFF/JPEG pictures or folders of them, "
    "npy/npz, HDF5 (.h5)"
)
# Tolerance for labels that were scaled or stored as float.
_INTEGER_TOLERANCE = 1e-4
_LABEL_ENDINGS = ("_gt", "_seg", "_label", "_labels", "_mask", "-seg")


def scan_name(path: Path) -> str | None:
    """The name without its ending, or that of a folder of slices; None if it is not supported."""
    if path.is_dir():
        return path.name if _slices(path) else None
    return file_stem(path, _ENDINGS)


def file_stem(path: Path, endings: Sequence[str]) -> str | None:
    """The name of a file without its ending (in any case); None if it has another one."""
    for ending in endings:
        if path.name.lower().endswith(ending) and len(path.name) > len(ending):
            return path.name[: -len(ending)]
    return None


def nifti_name(path: Path) -> str | None:
    """File name without .nii or .nii.gz (in any case); None if it is not a NIfTI file."""
    return file_stem(path, NIFTI)


def is_label_name(name: str) -> bool:
    """Whether files of this name (without ending) are label maps: NAME_gt, NAME_seg, …"""
    return name.lower().endswith(_LABEL_ENDINGS)


def find_label(labels: Mapping[str, Path], case: str) -> Path | None:
    """The label map of a case among files by name: NAME_gt, NAME_seg, …, or else NAME."""
    names = [case + spelled for e in _LABEL_ENDINGS for spelled in (e, e.upper())]
    return next((labels[name] for name in (*names, case) if name in labels), None)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that `path` is read from: itself, its slices, or its header and voxel file."""
    if path.is_dir():
        return tuple(_slices(path))
    if path.suffix.lower() not in (".mhd", ".nhdr"):
        return (path,)
    stem = path.name[: -len(path.suffix)]
    detached = [path.with_name(stem + ending) for ending in _DETACHED]
    return (path, *(other for other in detached if other.is_file()))


def _ending(path: Path) -> str:
    """Such as .nii.gz; of other files the last suffix."""
    return "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix


def describe_content(folder: Path) -> str:
    """What a folder holds, by ending, and what could be read: the text of an error message."""
    entries = list_folder(folder)
    counts = Counter(_ending(path) or "without ending" for path in entries if path.is_file())
    found = [f"{count} {ending}" for ending, count in counts.most_common(5)]
    folders = sum(path.is_dir() for path in entries)
    found += [f"{folders} folders"] if folders else []
    return f"found {', '.join(found) or 'nothing'}; supported are {SUPPORTED}"


def _slices(folder: Path) -> list[Path]:
    """The files of a folder that is one volume: pictures, or DICOM."""
    entries = list_folder(folder)
    pictures = [path for path in entries if file_stem(path, PICTURES)]
    if pictures or any(path.is_file() and file_stem(path, _VOLUMES) for path in entries):
        return pictures
    return dicom_files(folder)


def _open(path: Path, key: str) -> Opened:
    if path.is_dir():
        slices = _slices(path)
        if not slices:
            raise PathError(path, "holds no slices", describe_content(path))
        return open_pictures(path, slices) if file_stem(slices[0], PICTURES) else open_series(path)
    with read_errors(path):
        path.open("rb").close()
    if file_stem(path, _ITK):
        return open_itk(path)
    if file_stem(path, PICTURES):
        return open_pictures(path, [path])
    if file_stem(path, _ARRAYS):
        return open_array(path, key)
    return open_nifti(path)


def read_header(path: Path, key: str = "image") -> Header:
    """Read and check a header; reads no voxels. `key` names the array in an .npz or .h5 file."""
    return _open(path, key)[0]


def read_voxels(path: Path, key: str = "image") -> tuple[NDArray[Any], Header]:
    """The values of a file as it defines them, (C, Z, Y, X)."""
    header, load = _open(path, key)
    return load().reshape(header.channels, *header.shape), header


def read_image(path: Path, key: str = "image") -> tuple[NDArray[np.floating], Header]:
    """An image as (C, Z, Y, X), finite and not constant in any channel.

    The type is float32, or float64 if the file has a type that float32 does not represent: with a
    mean of 1e8 and a standard deviation of 1, float32 would lose the variation.
    """
    voxels, header = read_voxels(path, key)
    if "palette" in header.notes:
        raise PathError(path, "has a color palette", "save it as a gray or RGB picture")
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(voxels, dtype=np.float32)
    invalid = single.size - np.count_nonzero(np.isfinite(single))
    if invalid:
        raise PathError(path, f"holds {invalid} NaN or infinite voxels", "repair or remove it")
    image: NDArray[np.floating] = single
    if voxels.dtype.itemsize > 2 and voxels.dtype != np.float32:
        image = np.ascontiguousarray(voxels, dtype=np.float64)
    for index, channel in enumerate(image):
        if channel.min() == channel.max():
            which = f"channel {index} is" if len(image) > 1 else "the image is"
            raise PathError(path, f"{which} constant ({channel.min():g})", "remove the case")
    return image, header


def read_channels(
    paths: Sequence[Path], channels: int, key: str = "image"
) -> tuple[NDArray[np.floating], Header]:
    """The image (C, Z, Y, X) in one file, or in one file per channel on one grid."""
    parts = [read_image(path, key) for path in paths]
    check_channels([header for _, header in parts], channels)
    image = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
    return image, parts[0][1]


def read_labels(path: Path, key: str = "label") -> tuple[NDArray[np.integer], Header]:
    """A label map (Z, Y, X) in the integer type of the file, or int32; whole numbers only."""
    voxels, header = read_voxels(path, key)
    if len(voxels) != 1:
        raise PathError(path, f"is a label map with {len(voxels)} channels", "give a 3-D label map")
    values = voxels[0]
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    if not np.issubdtype(values.dtype, np.integer):
        if not np.isfinite(values).all() or np.abs(values).max() > 2**31:
            raise PathError(path, "holds NaN or huge labels", "labels must be whole numbers")
        rounded = np.rint(values)
        wrong = np.abs(values - rounded) > _INTEGER_TOLERANCE
        if wrong.any():
            example = repr(float(values[wrong].flat[0]))
            problem = f"holds labels that are not whole numbers (such as {example})"
            remedy = (
                "resample labels with nearest neighbor and write them without scaling; if it is an "
                "image, are images and labels swapped?"
            )
            raise PathError(path, problem, remedy)
        values = rounded.astype(np.int32)
    return np.ascontiguousarray(values), header


def read_masks(masks: Mapping[int, Path]) -> tuple[NDArray[np.uint8], Header]:
    """One label map from one file per class (label → mask; what is not 0 has the class)."""
    merged: NDArray[np.uint8] | None = None
    for value, path in masks.items():
        mask, header = read_labels(path)
        inside = mask != 0
        if merged is None:
            merged, first = np.zeros(mask.shape, np.uint8), header
        check_same_grid(header, first)
        if inside.any() and mask[inside].min() != mask[inside].max():
            remedy = "call it NAME_seg if it is the label map of a case"
            raise PathError(path, "holds several labels but is read as the mask of a class", remedy)
        before = merged[inside]
        if before.any():
            other = masks[int(before[before != 0][0])].name
            problem = f"overlaps {other} in {np.count_nonzero(before)} voxels"
            raise PathError(path, problem, "a voxel must have one class; correct a mask")
        merged[inside] = value
    assert merged is not None
    return merged, first
