"""Scans without labels, for prediction: found in a folder, read like the training set."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, list_folder
from segcal.data.case import hash_voxels
from segcal.data.formats import (
    Header,
    check_channels,
    describe_content,
    is_label_name,
    read_channels,
    read_header,
    scan_name,
)
from segcal.data.grid import Grid, GridRecipe, plan_grid
from segcal.data.info import DatasetInfo
from segcal.data.intensity import normalize_image
from segcal.data.orientation import axis_codes, reorient, turned_grid
from segcal.data.store import decode_image, encode_image


def find_images(
    folder: Path | str, channels: Sequence[str], skip: Callable[[str], None] = lambda line: None
) -> dict[str, tuple[Path, ...]]:
    """Case name → its image files, of the images in `folder` (or else in its subfolders).

    A case has one file with all channels, or one file per channel whose name ends in `_0000`,
    `_0001`, … or in the name of the channel (`_flair`, `_t1`, …). Skipped, with one line each to
    `skip`, are label maps (NAME_gt, NAME_seg, …) and, for a network with one channel, files with
    several (cine).
    """
    folder = Path(folder)
    entries = list_folder(folder, "--input")
    found = _scans(entries)
    if not found:
        found = _scans([p for part in entries if part.is_dir() for p in list_folder(part)])
    files = _leave_out(found, lambda name, _: is_label_name(name), "label maps", skip)
    if len(channels) == 1:
        what = "files with several time frames or channels"
        files = _leave_out(files, lambda _, path: _is_cine(path), what, skip) or files
    if not files:
        raise PathError(folder, "holds no images", f"check --input; {describe_content(folder)}")
    numbers = [f"_{number:04d}" for number in range(len(channels))]
    names = ["_" + name.casefold().replace(" ", "_") for name in channels]
    return _group(files, numbers) or _group(files, names) or _group(files, [""]) or {}


def _scans(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    return [(name, path) for path in paths if (name := scan_name(path))]


def _is_cine(path: Path) -> bool:
    try:
        return read_header(path).channels > 1
    except PathError:
        return False  # reported when the scan is read


def _leave_out(
    files: Sequence[tuple[str, Path]],
    unwanted: Callable[[str, Path], bool],
    what: str,
    skip: Callable[[str], None],
) -> list[tuple[str, Path]]:
    kept = [file for file in files if not unwanted(*file)]
    if kept and len(kept) < len(files):
        example = next(path.name for name, path in files if (name, path) not in kept)
        skip(f"{len(files) - len(kept)} {what} skipped ({example}, …)")
    return kept


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
            first = next(iter(paths.values()))
            ending = first.name[len(scan_name(first) or "") :]
            path = first.with_name(f"{name}{missing[0]}{ending}")
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
    if 1 <= image.max() < len(info.classes) and (image == np.rint(image)).all():
        problem = f"holds whole numbers up to {image.max():g} only, like a label map"
        raise PathError(images[0], problem, "give the folder of the images")
    file_grid, grid = scan_grids(header, info.grid, target)
    turned = reorient(image, axis_codes(file_grid.affine), axis_codes(grid.affine))
    normalized, _ = normalize_image(images, turned, info.intensity)
    stored, scale, offset = encode_image(grid.apply_image(normalized), info.dtype)
    return Scan(decode_image(stored, scale, offset), grid, file_grid, hash_voxels(image))
