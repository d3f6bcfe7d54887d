"""NRRD, MetaImage and DICOM through SimpleITK, which has LPS coordinates; headers are in RAS."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import missing_package
from segcal.core.errors import PathError, list_folder
from segcal.core.guarded import CallFailed, guarded_call
from segcal.core.text import first_few
from segcal.data.formats.header import DAMAGED, Header, Opened, check_size, check_space

_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_CALLS = Path(__file__).with_name("itk_calls.py")
_ONE_SERIES = "export one series (one volume) per folder"
# Slices may be this much nearer or farther than the others, as a fraction of their distance.
_UNEVEN = 0.1
_MAX_TEXT = 2**16  # bytes of a header that is text
# Bytes per voxel while a volume is read: four copies in the largest type.
_COPIES = 4 * 8


def open_itk(path: Path) -> Opened:
    """A single file; a further axis or vector components are channels."""
    if path.suffix.lower() in (".mha", ".mhd"):
        _check_metaimage(path)
    (header,) = _read_headers(path, [path])
    components, shape = header.components, header.size
    axes = min(len(shape), 3)
    affine = np.eye(4)
    direction = np.array(header.direction).reshape(len(shape), -1)
    affine[:axes, :axes] = direction[:axes, :axes] * header.spacing[:axes]
    affine[:axes, 3] = header.origin[:axes]
    if shape[3:] == (1,):
        shape = shape[:3]
    if components > 1:
        shape = (*(*shape, 1)[:3], *shape[3:], components)
    if len(shape) > 4:
        raise PathError(path, f"has {len(shape)} dimensions {shape}", "save one volume per file")

    def load() -> NDArray[Any]:
        array = _read_voxels(path, [path], shape)
        return np.moveaxis(array, -1, 0) if components > 1 else array

    return _header(path, shape, affine), load


def open_series(folder: Path) -> Opened:
    """The one DICOM series of a folder; the slices are ordered by position, not by name."""
    existing = dicom_files(folder)
    series: list[list[Path]] = [
        [folder / Path(name).name for name in names]
        for names in _call(folder, "list_series", str(folder.absolute()), files=existing)
    ]
    if len(series) > 1:
        counts = zip(_read_headers(folder, [files[0] for files in series]), series, strict=True)
        listed = first_few((f"{header.series} ({len(files)} files)" for header, files in counts), 5)
        raise PathError(folder, f"holds {len(series)} DICOM series: {listed}", _ONE_SERIES)
    files = series[0] if series else []
    for path in sorted(set(existing) - set(files)):
        raise PathError(path, "is truncated or damaged", DAMAGED)
    if len(files) == 1:
        return open_itk(files[0])
    first, last = _read_headers(folder, [files[0], files[-1]])
    affine = np.eye(4)
    direction = np.array(first.direction).reshape(3, 3)
    affine[:3, :2] = direction[:, :2] * first.spacing[:2]
    # From the positions: correct with gaps, overlap and a tilted gantry.
    step = (np.array(last.origin) - first.origin) / (len(files) - 1)
    affine[:3, 2], affine[:3, 3] = step, first.origin
    if not np.linalg.norm(step) > 0:
        raise PathError(folder, "holds several images at one position", _ONE_SERIES)
    colors = (first.components,) if first.components > 1 else ()
    shape = (*first.size[:2], len(files), *colors)

    def load() -> NDArray[Any]:
        origins = np.array([header.origin for header in _read_headers(folder, files)])
        gaps = np.linalg.norm(np.diff(origins, axis=0), axis=1)
        usual = float(np.median(gaps))
        if len(np.unique(origins.round(3), axis=0)) < len(files):
            raise PathError(folder, "holds several images at one position", _ONE_SERIES)
        wrong = int(np.argmax(np.abs(gaps - usual)))
        if abs(gaps[wrong] - usual) > _UNEVEN * usual:
            problem = f"lies {gaps[wrong]:.4g} mm from the next slice, the others {usual:.4g} mm"
            raise PathError(files[wrong], problem, "complete the series; slices are missing")
        array = _read_voxels(folder, files, shape)
        return np.moveaxis(array, -1, 0) if colors else array

    return _header(folder, shape, affine), load


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files of a folder, by name or by content (many have no ending)."""
    paths = [path for path in list_folder(folder) if path.is_file() and path.name != "DICOMDIR"]
    return [path for path in paths if path.suffix.lower() in (".dcm", ".ima") or _is_dicom(path)]


def _is_dicom(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def _check_metaimage(path: Path) -> None:
    """Refuse lists of files: where they are too short, ITK returns memory that was never set."""
    with path.open("rb") as stream:
        if re.search(rb"ElementDataFile\s*[=:]\s*LIST", stream.read(_MAX_TEXT)):
            raise PathError(path, "has its voxels in a list of files", "save one file per volume")


def _call(
    path: Path, function: str, argument: object, files: Sequence[Path], memory: int = 0
) -> Any:
    """Call a function of itk_calls.py, which reads `files`; `path` is what an error names."""
    if find_spec("SimpleITK") is None:
        raise missing_package("SimpleITK")
    memory += 2 * sum(file.stat().st_size for file in files)
    try:
        return guarded_call(_CALLS, function, argument, memory=memory)
    except CallFailed as error:
        for file in files if len(files) > 1 else ():
            _read_voxels(file, [file], ())  # The damaged one is named.
        raise PathError(path, "is truncated or damaged", DAMAGED) from error


def _read_headers(path: Path, files: Sequence[Path]) -> list[Any]:
    headers: list[Any] = _call(path, "read_headers", _names(files), files)
    return headers


def _read_voxels(path: Path, files: Sequence[Path], shape: Sequence[int]) -> NDArray[Any]:
    memory = int(np.prod(shape, dtype=object)) * _COPIES
    array: NDArray[Any] = _call(path, "read_voxels", _names(files), files, memory)
    return array


def _names(files: Sequence[Path]) -> list[str]:
    """Absolute, since the child may have another working folder."""
    return [str(file.absolute()) for file in files]


def _header(path: Path, file_shape: tuple[int, ...], affine: NDArray[np.float64]) -> Header:
    affine = _LPS_TO_RAS @ affine
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    try:
        check_space(affine, spacing)
    except ValueError as error:
        raise PathError(path, f"has an invalid header: {error}", DAMAGED) from error
    check_size(path, file_shape, 8)
    x, y, z = spacing.tolist()
    return Header(path, file_shape, affine, (z, y, x))
