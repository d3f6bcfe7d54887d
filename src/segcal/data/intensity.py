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
# An image is clipped if a voxel deviates this many standard deviations, and this many times the
# range of the other voxels.
_OUTLIER = 30.0


class Intensity(BaseModel, frozen=True, extra="forbid"):
    """How the images of a data set are normalized.

    `zscore`: (x − mean) / std, per volume and channel; with `nonzero`, mean and std are taken over
    the voxels that are not 0 (skull-stripped brains). Voxels that are far outside the range of all
    others are clipped first: one of 1e30 would flatten the image.
    `window`: clip to [low, high], then scale to [0, 1].
    """

    kind: Literal["zscore", "window"] = "zscore"
    nonzero: bool = False
    low: float = CT_WINDOW[0]
    high: float = CT_WINDOW[1]

    def __str__(self) -> str:
        if self.kind == "window":
            return f"window {self.low:g} to {self.high:g}"
        return "z-score over the voxels that are not 0" if self.nonzero else "z-score"


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
    limits: tuple[float | None, float | None] = (None, None)
    mean, std = _moments(channel, intensity.nonzero)
    largest = max(float(channel.max()) - mean, mean - float(channel.min()))
    if largest > _OUTLIER * std:
        # The limits of all but a thousandth of the voxels, and as far again on both sides.
        low, high = (float(v) for v in np.percentile(channel, (0.05, 99.95)))
        if largest > _OUTLIER * (high - low) > 0:
            limits = (2 * low - high, 2 * high - low)
            channel = np.clip(channel, *limits)
            mean, std = _moments(channel, intensity.nonzero)
    if not std > 0:
        raise ValueError("the image is constant")
    # Float64: with a mean of 1e6 and a standard deviation of 1, float32 would lose the variation.
    scaled = ((channel.astype(np.float64) - mean) / std).astype(np.float32)
    return scaled, ChannelIntensity(low=limits[0], high=limits[1], shift=mean, divisor=std)


def _moments(channel: NDArray[np.floating], nonzero: bool) -> tuple[float, float]:
    """Mean and standard deviation."""
    voxels = channel[channel != 0] if nonzero else channel
    if not voxels.size:
        return 0.0, 0.0
    return float(voxels.mean(dtype=np.float64)), float(voxels.std(dtype=np.float64))


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
