"""Raw images without labels, for prediction: found in a folder, read as a set's own were."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.data.dataset import DatasetInfo
from segcal.data.formats.nifti import Header, check_same_grid, read_header
from segcal.data.grid import Grid, GridRecipe, plan_grid
from segcal.data.orientation import UNKNOWN, Turn, orientation, plan_turn
from segcal.data.sources.base import check_channels, normalise_channels, read_channels, stem
from segcal.data.store import decode_image, encode_image

# What label maps beside the images are called in ACDC and BraTS.
_LABEL_ENDINGS = ("_gt", "_seg")


def find_images(folder: Path | str, channels: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Case name → its image files, of NIfTI files in `folder` (or else in its subfolders).

    One file a case, with all channels; or one file a channel, whose names end in `_0000`,
    `_0001`, … or in the channels' names (`_flair`, `_t1`, …). Label maps that lie beside the
    images (NAME_gt, NAME_seg) are passed over.
    """
    folder = Path(folder)
    files = _nifti_files(list_folder(folder, "--input"))
    if not files:
        parts = [path for path in list_folder(folder) if path.is_dir()]
        files = _nifti_files([path for part in parts for path in list_folder(part)])
    if not files:
        raise PathError(folder, "holds no .nii or .nii.gz images", "check the path of --input")
    endings = [f"{number:04d}" for number in range(len(channels))]
    named = [name.casefold().replace(" ", "_") for name in channels]
    for suffixes in (endings, named):
        grouped = _group(files, suffixes)
        if grouped is not None:
            return grouped
    cases: dict[str, tuple[Path, ...]] = {}
    for name, path in files:
        if name in cases:
            raise PathError(path, f"gives the name {name} a second time", "keep one file per case")
        cases[name] = (path,)
    return cases


def _nifti_files(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    named = [(stem(path), path) for path in paths if path.is_file()]
    return [(name, path) for name, path in named if name and not name.endswith(_LABEL_ENDINGS)]


def _group(
    files: Sequence[tuple[str, Path]], suffixes: Sequence[str]
) -> dict[str, tuple[Path, ...]] | None:
    """The files by case if every name ends in one of the suffixes, else None."""
    pattern = re.compile(rf"(.+)_({'|'.join(map(re.escape, suffixes))})", re.IGNORECASE)
    found = [pattern.fullmatch(name) for name, _ in files]
    cases: dict[str, dict[str, Path]] = {}
    for match, (_, path) in zip(found, files, strict=True):
        if match is None:
            return None
        channel = match[2].casefold()
        if channel in cases.setdefault(match[1], {}):
            raise PathError(path, "is a channel's second file", "keep one file per channel")
        cases[match[1]][channel] = path
    for name, paths in cases.items():
        missing = [suffix for suffix in suffixes if suffix not in paths]
        if missing:
            raise PathError(
                next(iter(paths.values())).with_name(f"{name}_{missing[0]}.nii.gz"),
                f"is missing (a channel of {name})",
                "complete the case or remove it",
            )
    return {name: tuple(paths[s] for s in suffixes) for name, paths in cases.items()}


@dataclass(frozen=True)
class RawScan:
    """A scan as the network is to see it, and the way back to its file.

    `grid` is that of the turned volume, `file_grid` the file's own; `image` is (C, Z, Y, X).
    """

    image: NDArray[np.float32]
    grid: Grid
    file_grid: Grid
    turn: Turn


def judge_raw(images: Sequence[Path], info: DatasetInfo) -> Header:
    """What the headers of a scan promise, or a PathError; no voxel is read."""
    headers = [read_header(path) for path in images]
    for other in headers[1:]:
        check_same_grid(other, headers[0])
    check_channels(images[0], sum(header.channels for header in headers), len(info.channels))
    return headers[0]


def place_raw(
    header: Header, recipe: GridRecipe, wanted: str | None = None
) -> tuple[Grid, Grid, Turn]:
    """The grid of the scan's file, that of the scan turned to `wanted` axis codes, and the turn.

    A file that does not say where its axes point is left as it is.
    """
    file_grid = plan_grid(header.shape, header.spacing_mm, header.affine, recipe)
    codes = orientation(file_grid)
    if wanted is None or UNKNOWN in (codes, wanted):
        return file_grid, file_grid, Turn()
    turn = plan_turn(codes, wanted)
    affine = turn.affine(header.affine, header.shape)
    shape, spacing_mm = turn.shape(header.shape), turn.spacing(header.spacing_mm)
    return file_grid, plan_grid(shape, spacing_mm, affine, recipe), turn


def read_raw(images: Sequence[Path], info: DatasetInfo, wanted: str | None = None) -> RawScan:
    """A scan as the set `info` would have stored it, and the way back.

    Intensities, grid and rounding are those of the set, so that a network sees what it was
    trained on; `wanted` are the axis codes ("RAS") to which it is turned first.
    """
    image, header = read_channels(images, len(info.channels))
    file_grid, grid, turn = place_raw(header, info.grid, wanted)
    normal, _ = normalise_channels(images, turn.apply(image), info.intensity)
    stored, scale, offset = encode_image(grid.apply_image(normal), info.dtype)
    return RawScan(decode_image(stored, scale, offset), grid, file_grid, turn)
