"""All calls of SimpleITK. They run in a child process (segcal.core.guarded): ITK crashes on some
damaged files, and reserves gigabytes on others. Do not import this module.
"""

import os
import tempfile
from types import SimpleNamespace
from typing import Any

from segcal.core.checks import require

sitk = require("SimpleITK")
sitk.ProcessObject.SetGlobalWarningDisplay(False)
# The memory is limited, and every thread reserves some.
sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)

_DESCRIPTION = "0008|103e"


def list_series(folder: str) -> list[tuple[str, ...]]:
    """The files of each DICOM series of a folder, ordered by position."""
    reader = sitk.ImageSeriesReader
    return [reader.GetGDCMSeriesFileNames(folder, i) for i in reader.GetGDCMSeriesIDs(folder)]


def read_headers(files: list[str]) -> list[SimpleNamespace]:
    return [_read_header(file) for file in files]


def _read_header(path: str) -> SimpleNamespace:
    """`series` is what the scanner calls the series of a file, or the name of the file."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(path)
    reader.ReadImageInformation()
    if not reader.GetSize():
        raise RuntimeError("an image without axes")
    described = reader.HasMetaDataKey(_DESCRIPTION)
    return SimpleNamespace(
        components=reader.GetNumberOfComponents(),
        size=reader.GetSize(),
        spacing=reader.GetSpacing(),
        origin=reader.GetOrigin(),
        direction=reader.GetDirection(),
        series=reader.GetMetaData(_DESCRIPTION).strip() if described else os.path.basename(path),
    )


def read_voxels(files: list[str]) -> Any:
    """The voxels of a file or of the slices of a series."""
    if not files[0].lower().endswith((".mha", ".mhd")):
        return sitk.GetArrayFromImage(sitk.ReadImage(files if len(files) > 1 else files[0]))
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        image = sitk.ReadImage(files[0])
        printed.seek(0)
        # ITK only prints that compressed data is damaged, and returns memory that was never set.
        if b"Uncompress failed" in printed.read():
            raise RuntimeError("damaged compressed data")
    return sitk.GetArrayFromImage(image)
