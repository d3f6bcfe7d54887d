"""Where the voxels of a file lie, whatever its format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError, name_beside
from segcal.data.grid import Shape, Spacing

MAX_VOLUME_BYTES = 16 * 2**30
# Deflate, which most formats use, cannot compress better.
MAX_RATIO = 1040
_SMALL_BYTES = 2**28
DAMAGED = "download or export the file again"
_ONE_GRID = "both must be on one grid; resample one to the other or correct the header"


@dataclass(frozen=True)
class Header:
    """The checked header of a file, in millimeters whatever the unit of the file.

    `file_shape` is (x, y), (x, y, z) or (x, y, z, channels). `affine` maps voxel indices (x, y, z)
    to RAS coordinates, as nibabel does. `notes` records decisions: a placeholder affine, another
    unit, a missing slice thickness, a file without any geometry.
    """

    path: Path
    file_shape: tuple[int, ...]
    affine: NDArray[np.float64]
    spacing_mm: Spacing
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Spatial shape (Z, Y, X); a 2-D image has Z = 1."""
        x, y, z = (*self.file_shape, 1, 1)[:3]
        return z, y, x

    @property
    def channels(self) -> int:
        return self.file_shape[3] if len(self.file_shape) == 4 else 1

    @property
    def has_geometry(self) -> bool:
        """False for pictures and arrays: spacing and position are unknown, 1 mm is assumed."""
        return "geometry" not in self.notes


# A header, and the function that reads the voxels: (C, Z, Y, X), or the same without axes of 1.
Opened: TypeAlias = tuple[Header, Callable[[], NDArray[Any]]]


def plain_header(path: Path, file_shape: Sequence[int], itemsize: int = 1) -> Header:
    """The header of a file that holds numbers without spacing and position."""
    check_size(path, file_shape, itemsize)
    notes = {"geometry": "not in the file; spacing taken as 1 mm"}
    return Header(path, tuple(file_shape), np.eye(4), (1.0, 1.0, 1.0), notes)


def check_size(path: Path, file_shape: Sequence[int], itemsize: int) -> None:
    """Refuse to allocate what cannot be a scan, or cannot be in the file."""
    needed = int(np.prod(file_shape, dtype=object)) * itemsize
    # The header of .mhd and .nhdr files may be apart from the voxels.
    files = path.iterdir() if path.is_dir() else [path]
    apart = path.suffix.lower() in (".mhd", ".nhdr")
    capacity = needed if apart else sum(file.stat().st_size for file in files) * MAX_RATIO
    if needed <= 0 or needed > MAX_VOLUME_BYTES or needed > max(capacity, _SMALL_BYTES):
        problem = f"announces a volume of {tuple(file_shape)} voxels"
        raise PathError(path, problem, "the volume is too large, empty, or its header is damaged")


def check_space(affine: NDArray[np.float64], *spacings: NDArray[np.float64]) -> None:
    """Raise a ValueError if the affine or a spacing (x, y, z) cannot be that of a scan."""
    if not np.isfinite(affine).all() or np.abs(affine).max() > 1e6:
        raise ValueError("a non-finite affine")
    for spacing in spacings:
        if not (spacing.min() >= 1e-4 and spacing.max() <= 1e4):
            raise ValueError(f"voxel spacing {spacing.tolist()}")
    if abs(np.linalg.det(affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0))) < 1e-3:
        raise ValueError("a singular affine")


def check_channels(headers: Sequence[Header], channels: int) -> None:
    """The files of a case must be on one grid and have `channels` channels together."""
    for other in headers[1:]:
        check_same_grid(other, headers[0])
    found = sum(header.channels for header in headers)
    if found != channels:
        problem = f"has {found} channels where the data set has {channels}"
        remedy = "all cases of a data set must have the same channels"
        raise PathError(headers[0].path, problem, remedy)


def check_same_grid(header: Header, reference: Header) -> None:
    """Both files must have the same shape, spacing and corners (within a tenth of a voxel).

    The spacing is compared too: where affines are placeholders, only pixdim differs. Files
    without geometry are compared by shape only.
    """
    other, problem = name_beside(reference.path, header.path), ""
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in header.shape[::-1]))])
    apart = np.abs((corners @ (header.affine - reference.affine).T)[:, :3]).max()
    if header.shape != reference.shape:
        problem = f"has shape {header.shape} (z, y, x) but {other} has {reference.shape}"
    elif not (header.has_geometry and reference.has_geometry):
        return
    elif not np.allclose(header.spacing_mm, reference.spacing_mm, rtol=0.02):
        spacings = [" × ".join(f"{s:.4g}" for s in h.spacing_mm) for h in (header, reference)]
        problem = f"has spacing {spacings[0]} mm (z, y, x) but {other} has {spacings[1]}"
    elif apart > 0.1 * min(reference.spacing_mm):
        problem = f"lies {apart:.3g} mm away from {other} by its affine"
    if problem:
        raise PathError(header.path, problem, _ONE_GRID)
