"""NRRD, MetaImage and DICOM through SimpleITK, which has LPS coordinates; headers are in RAS."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.checks import require
from segcal.core.errors import PathError, list_folder
from segcal.core.text import first_few
from segcal.data.formats.header import DAMAGED, Header, Opened, check_size, check_space

_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
_DESCRIPTION = "0008|103e"
_ONE_SERIES = "export one series (one volume) per folder"
# Slices may be this much nearer or farther than the others, as a fraction of their distance.
_UNEVEN = 0.1
_MAX_TEXT = 2**16  # bytes of a header that is text
_MAX_HEADER, _MAX_LINE = 2**20, 500  # bytes of NRRD headers, which may hold long texts


def open_itk(path: Path) -> Opened:
    """A single file; a further axis or vector components are channels."""
    sitk = _import_sitk()
    reader = _read_information(path)
    components = reader.GetNumberOfComponents()
    shape = tuple(reader.GetSize())
    axes = min(len(shape), 3)
    affine = np.eye(4)
    direction = np.array(reader.GetDirection()).reshape(len(shape), -1)
    affine[:axes, :axes] = direction[:axes, :axes] * reader.GetSpacing()[:axes]
    affine[:axes, 3] = reader.GetOrigin()[:axes]
    if shape[3:] == (1,):
        shape = shape[:3]
    if components > 1:
        shape = (*(*shape, 1)[:3], *shape[3:], components)
    if len(shape) > 4:
        raise PathError(path, f"has {len(shape)} dimensions {shape}", "save one volume per file")

    def load() -> NDArray[Any]:
        with _damaged(path):
            array: NDArray[Any] = sitk.GetArrayFromImage(reader.Execute())
        return np.moveaxis(array, -1, 0) if components > 1 else array

    return _header(path, shape, affine), load


def open_series(folder: Path) -> Opened:
    """The one DICOM series of a folder; the slices are ordered by position, not by name."""
    sitk = _import_sitk()
    names = sitk.ImageSeriesReader.GetGDCMSeriesFileNames
    series = [names(str(folder), i) for i in sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))]
    if len(series) > 1:
        listed = first_few((f"{_describe(names[0])} ({len(names)} files)" for names in series), 5)
        raise PathError(folder, f"holds {len(series)} DICOM series: {listed}", _ONE_SERIES)
    files: tuple[str, ...] = series[0] if series else ()
    for path in sorted(set(dicom_files(folder)) - {Path(name) for name in files}):
        raise PathError(path, "is truncated or damaged", DAMAGED)
    if len(files) == 1:
        return open_itk(Path(files[0]))
    first, last = _read_information(Path(files[0])), _read_information(Path(files[-1]))
    affine = np.eye(4)
    direction = np.array(first.GetDirection()).reshape(3, 3)
    affine[:3, :2] = direction[:, :2] * first.GetSpacing()[:2]
    # From the positions: correct with gaps, overlap and a tilted gantry.
    step = (np.array(last.GetOrigin()) - first.GetOrigin()) / (len(files) - 1)
    affine[:3, 2], affine[:3, 3] = step, first.GetOrigin()
    if not np.linalg.norm(step) > 0:
        raise PathError(folder, "holds several images at one position", _ONE_SERIES)

    def load() -> NDArray[Any]:
        origins = np.array([_read_information(Path(name)).GetOrigin() for name in files])
        gaps = np.linalg.norm(np.diff(origins, axis=0), axis=1)
        usual = float(np.median(gaps))
        if len(np.unique(origins.round(3), axis=0)) < len(files):
            raise PathError(folder, "holds several images at one position", _ONE_SERIES)
        wrong = int(np.argmax(np.abs(gaps - usual)))
        if abs(gaps[wrong] - usual) > _UNEVEN * usual:
            problem = f"lies {gaps[wrong]:.4g} mm from the next slice, the others {usual:.4g} mm"
            raise PathError(Path(files[wrong]), problem, "complete the series; slices are missing")
        with _damaged(folder):
            array: NDArray[Any] = sitk.GetArrayFromImage(sitk.ReadImage(files))
        return np.moveaxis(array, -1, 0) if colors else array

    colors = (first.GetNumberOfComponents(),) if first.GetNumberOfComponents() > 1 else ()
    return _header(folder, (*first.GetSize()[:2], len(files), *colors), affine), load


def dicom_files(folder: Path) -> list[Path]:
    """The DICOM files of a folder, by name or by content (many have no ending)."""
    paths = [path for path in list_folder(folder) if path.is_file() and path.name != "DICOMDIR"]
    return [path for path in paths if path.suffix.lower() in (".dcm", ".ima") or _is_dicom(path)]


def _is_dicom(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def _import_sitk() -> Any:
    sitk = require("SimpleITK")
    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    return sitk


def _check_metaimage(path: Path) -> None:
    """Refuse headers of MetaImage on which ITK crashes: it does not check the dimensions."""
    with path.open("rb") as stream:
        lines = stream.read(_MAX_TEXT).split(b"\n")
    fields = dict[str, str]()
    for line in lines:
        key, _, value = line.decode("latin1").partition("=")
        fields[key.strip()] = value.strip()
        if key.strip() == "ElementDataFile":
            break
    # A list or a pattern of files is not supported.
    names_one_file = fields.get("ElementDataFile", "%").split("%")[0] not in ("", "LIST")
    if fields.get("NDims", "") not in ("2", "3", "4") or not names_one_file:
        raise PathError(path, "has an invalid header", DAMAGED)


def _check_nrrd(path: Path) -> None:
    """Refuse headers of NRRD that ITK misreads: messages about long lines overflow, and so do
    sizes of more than 32 bits, for which it allocates the memory nevertheless.
    """
    with path.open("rb") as stream:
        header = stream.read(_MAX_HEADER).replace(b"\r", b"").partition(b"\n\n")[0]
    for line in header.split(b"\n"):
        text = line.startswith((b"#", b"content:", b"labels:")) or b":=" in line
        sizes = line.partition(b":")[2].split() if line.startswith(b"sizes:") else []
        too_large = any(size.isdigit() and int(size) >= 2**31 for size in sizes)
        if too_large or (len(line) > _MAX_LINE and not text):
            raise PathError(path, "has an invalid header", DAMAGED)


def _read_information(path: Path) -> Any:
    """SimpleITK's reader of a file, after it read the header."""
    if path.suffix.lower() in (".mha", ".mhd"):
        _check_metaimage(path)
    if path.suffix.lower() in (".nrrd", ".nhdr"):
        _check_nrrd(path)
    reader = _import_sitk().ImageFileReader()
    reader.SetFileName(str(path))
    with _damaged(path):
        reader.ReadImageInformation()
    return reader


def _describe(name: str) -> str:
    """What the scanner calls the series of a file."""
    reader = _read_information(Path(name))
    described = reader.HasMetaDataKey(_DESCRIPTION)
    return str(reader.GetMetaData(_DESCRIPTION)).strip() if described else Path(name).name


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


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PathError(path, "is truncated or damaged", DAMAGED) from error
