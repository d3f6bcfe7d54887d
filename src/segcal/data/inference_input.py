"""Scans without labels, for prediction: found in a folder, read like the training set."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.data.case import hash_voxels
from segcal.data.formats.nifti import Header, check_channels, read_channels, read_header
from segcal.data.grid import Grid, GridRecipe, plan_grid
from segcal.data.info import DatasetInfo
from segcal.data.intensity import normalize_image
from segcal.data.orientation import axis_codes, reorient, turned_grid
from segcal.data.sources.files import nifti_name
from segcal.data.store import decode_image, encode_image

# Label maps beside the images in ACDC and BraTS.
_LABEL_ENDINGS = ("_gt", "_seg")


def find_images(folder: Path | str, channels: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Case name → its image files, of the NIfTI files in `folder` (or else in its subfolders).

    A case has one file with all channels, or one file per channel whose name ends in `_0000`,
    `_0001`, … or in the name of the channel (`_flair`, `_t1`, …). Label maps beside the images
    (NAME_gt, NAME_seg) are ignored.
    """
    folder = Path(folder)
    files = _nifti_files(list_folder(folder, "--input"))
    if not files:
        parts = [path for path in list_folder(folder) if path.is_dir()]
        files = _nifti_files([path for part in parts for path in list_folder(part)])
    if not files:
        raise PathError(folder, "holds no .nii or .nii.gz images", "check the path of --input")
    numbers = [f"_{number:04d}" for number in range(len(channels))]
    names = ["_" + name.casefold().replace(" ", "_") for name in channels]
    return _group(files, numbers) or _group(files, names) or _group(files, [""]) or {}


def _nifti_files(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    named = [(nifti_name(path), path) for path in paths if path.is_file()]
    return [(name, path) for name, path in named if name and not name.endswith(_LABEL_ENDINGS)]


def _group(
    files: Sequence[tuple[str, Path]], suffixes: Sequence[str]
) -> dict[str, tuple[Path, ...]] | None:
    """The files by case if every name ends in one of the suffixes, else None."""
    pattern = re.compile(rf"(.+)({'|'.join(map(re.escape, suffixes))})", re.IGNORECASE)
    cases: dict[str, dict[str, Path]] = {}
    for name, path in files:
        match = pattern.fullmatch(name)
        if match is None:
            return None
        channel = match[2].casefold()
        if channel in cases.setdefault(match[1], {}):
            problem = f"is a second file named {name}"
            raise PathError(path, problem, "keep one file per case and channel")
        cases[match[1]][channel] = path
    for name, paths in cases.items():
        missing = [suffix for suffix in suffixes if suffix not in paths]
        if missing:
            path = next(iter(paths.values())).with_name(f"{name}{missing[0]}.nii.gz")
            problem = f"is missing (a channel of {name})"
            raise PathError(path, problem, "complete the case or remove it")
    return {name: tuple(paths[s] for s in suffixes) for name, paths in cases.items()}


def check_scan(images: Sequence[Path], info: DatasetInfo) -> Header:
    """Check the headers of a scan and return the first; reads no voxels."""
    headers = [read_header(path) for path in images]
    check_channels(headers, len(info.channels))
    return headers[0]


def scan_grids(header: Header, recipe: GridRecipe, target: str | None = None) -> tuple[Grid, Grid]:
    """The grid of a scan's file, and that of the scan reoriented to the axis codes `target`.

    A file with a placeholder affine keeps its orientation.
    """
    file_grid = plan_grid(header.shape, header.spacing_mm, header.affine, recipe)
    return file_grid, turned_grid(file_grid, recipe, target)


@dataclass(frozen=True)
class Scan:
    """A scan as the network receives it.

    `image` is (C, Z, Y, X) on `grid`, the grid after reorientation; `file_grid` is that of the
    file; `voxels_sha256` identifies the scan.
    """

    image: NDArray[np.float32]
    grid: Grid
    file_grid: Grid
    voxels_sha256: str = ""

    def to_file_order(self, array: NDArray[Any]) -> NDArray[Any]:
        """(…, Z, Y, X) on the original shape of `grid`, in the orientation of the file."""
        return reorient(array, axis_codes(self.grid.affine), axis_codes(self.file_grid.affine))


def read_scan(images: Sequence[Path], info: DatasetInfo, target: str | None = None) -> Scan:
    """Read a scan as the data set `info` would have stored it.

    Intensity, grid and rounding are those of the data set, so that a network receives what it was
    trained on. The scan is first reoriented to the axis codes `target`, such as "RAS".
    """
    image, header = read_channels(images, len(info.channels))
    file_grid, grid = scan_grids(header, info.grid, target)
    turned = reorient(image, axis_codes(file_grid.affine), axis_codes(grid.affine))
    normalized, _ = normalize_image(images, turned, info.intensity)
    stored, scale, offset = encode_image(grid.apply_image(normalized), info.dtype)
    return Scan(decode_image(stored, scale, offset), grid, file_grid, hash_voxels(image))
