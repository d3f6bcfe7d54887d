"""One case: its arrays, and the properties stored with them."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from segcal.core.arrays import label_shares
from segcal.data.grid import IGNORED, Grid, Shape, Spacing
from segcal.data.info import Dtype
from segcal.data.intensity import ChannelIntensity


class SourceFile(BaseModel, frozen=True, extra="forbid"):
    """Size and time of a file that a case was prepared from; `name` is relative to the source."""

    name: str
    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Case:
    """A case in memory. Axes (C, Z, Y, X) and (Z, Y, X): the slice axis comes first.

    `truth`, where it is known (phantoms), is the true probability of each class, (K, Z, Y, X).
    `raters` are the label maps of several readers by name; `label` is then their majority.
    `voxels_sha256` identifies the scan: a hash of the voxel values of the source image.
    """

    name: str
    patient: str
    image: NDArray[np.float32]
    label: NDArray[np.uint8]
    grid: Grid
    intensity: tuple[ChannelIntensity, ...]
    voxels_sha256: str
    truth: NDArray[np.float32] | None = None
    group: str | None = None
    annotated: tuple[int, ...] | None = None
    sources: tuple[SourceFile, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    raters: dict[str, NDArray[np.uint8]] = field(default_factory=dict)


def majority(raters: Iterable[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The label that most readers drew; ties go to the lower class; ignored if no one judged."""
    drawn = np.stack(list(raters))
    shares = label_shares(drawn, int(drawn.max(initial=0, where=drawn != IGNORED)) + 1)
    return np.where(shares.any(axis=0), shares.argmax(axis=0), IGNORED).astype(np.uint8)


def hash_voxels(image: NDArray[Any]) -> str:
    """`voxels_sha256` of an image (C, Z, Y, X) as it was read: no preparation changes it."""
    digest = hashlib.sha256(repr(image.shape).encode())
    digest.update(np.ascontiguousarray(image, dtype=np.float32).data)
    return digest.hexdigest()


class CaseProperties(BaseModel, frozen=True, extra="forbid"):
    """`case.json`: what is stored beside the arrays of a case.

    The stored image is decoded as stored · scale + offset, per channel. `voxels` counts the
    stored voxels of each class; `image_range` has the decoded minimum and maximum of each channel;
    `readers` counts the voxels of each class of each reader, in the order of the array `raters`;
    `settings` holds everything that decided how the source files became these arrays. `group` is a
    site, scanner or pathology; `annotated` lists the classes that the label map shows if these are
    not all of them.
    """

    version: Literal[2] = 2
    name: str
    patient: str
    channels: int
    shape: Shape
    spacing_mm: Spacing
    dtype: Dtype
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    image_range: tuple[tuple[float, float], ...]
    voxels: dict[int, int]
    grid: Grid
    intensity: tuple[ChannelIntensity, ...]
    voxels_sha256: str
    sha256: dict[str, str]
    group: str | None = None
    annotated: tuple[int, ...] | None = None
    settings: dict[str, str]
    sources: tuple[SourceFile, ...] = ()
    notes: dict[str, str] = {}
    readers: dict[str, dict[int, int]] = {}

    @property
    def ignored(self) -> int:
        """Number of stored voxels that do not count."""
        return math.prod(self.shape) - sum(self.voxels.values())
