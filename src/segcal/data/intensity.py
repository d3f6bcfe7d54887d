"""Intensity normalization: z-score for MR, window and scale for CT. The parameters are stored."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from segcal.core.errors import PathError

# Soft tissue of the abdomen: level 40, width 400 Hounsfield units.
CT_WINDOW = (-160.0, 240.0)


class Intensity(BaseModel, frozen=True, extra="forbid"):
    """How the images of a data set are normalized.

    `zscore`: (x − mean) / std, per volume and channel; with `nonzero`, mean and std are taken over
    the voxels that are not 0 (skull-stripped brains).
    `window`: clip to [low, high], then scale to [0, 1].
    """

    kind: Literal["zscore", "window"] = "zscore"
    nonzero: bool = False
    low: float = CT_WINDOW[0]
    high: float = CT_WINDOW[1]

    def __str__(self) -> str:
        return "z-score" if self.kind == "zscore" else f"window {self.low:g} to {self.high:g}"


class ChannelIntensity(BaseModel, frozen=True, extra="forbid"):
    """What was done to one channel: stored = (clip(x, low, high) − shift) / divisor."""

    low: float | None = None
    high: float | None = None
    shift: float
    divisor: float


def normalize(
    channel: NDArray[np.floating], intensity: Intensity
) -> tuple[NDArray[np.float32], ChannelIntensity]:
    """Normalize the volume of one channel; a ValueError if the result would be constant."""
    if intensity.kind == "window":
        low, high = intensity.low, intensity.high
        clipped = np.clip(channel, low, high)
        if clipped.min() == clipped.max():
            raise ValueError(f"every voxel lies on one side of the window [{low}, {high}]")
        record = ChannelIntensity(low=low, high=high, shift=low, divisor=high - low)
        return ((clipped - low) / (high - low)).astype(np.float32), record
    voxels = channel[channel != 0] if intensity.nonzero else channel
    mean = float(voxels.mean(dtype=np.float64)) if voxels.size else 0.0
    std = float(voxels.std(dtype=np.float64)) if voxels.size else 0.0
    if not std > 0:
        raise ValueError("the image is constant")
    # Float64: with a mean of 1e6 and a standard deviation of 1, float32 would lose the variation.
    scaled = ((channel.astype(np.float64) - mean) / std).astype(np.float32)
    return scaled, ChannelIntensity(shift=mean, divisor=std)


def normalize_image(
    paths: Sequence[Path], image: NDArray[np.floating], intensity: Intensity
) -> tuple[NDArray[np.float32], tuple[ChannelIntensity, ...]]:
    """Normalize an image (C, Z, Y, X) channel by channel; errors name one of its `paths`."""
    result = np.empty(image.shape, dtype=np.float32)
    records = []
    for index, channel in enumerate(image):
        try:
            result[index], record = normalize(channel, intensity)
        except ValueError as error:
            path = paths[min(index, len(paths) - 1)]
            raise PathError(path, str(error), "remove the case or change --window") from error
        records.append(record)
    return result, tuple(records)
