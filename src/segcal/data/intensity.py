"""Intensities: z-score for MR, window then scale for CT. What was done is recorded."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

# Soft tissue of the abdomen: level 40, width 400 Hounsfield units.
CT_WINDOW = (-160.0, 240.0)


class Intensity(BaseModel):
    """How a set's images are normalised.

    `zscore`: (x − mean) / std, per volume and channel; with `nonzero` the two are taken over the
    voxels that are not 0, which is what is left of a skull-stripped head.
    `window`: clip to [low, high], then to [0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["zscore", "window"] = "zscore"
    nonzero: bool = False
    low: float = CT_WINDOW[0]
    high: float = CT_WINDOW[1]


class ChannelIntensity(BaseModel):
    """What was done to one channel: stored = (clip(x, low, high) − shift) / divisor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float | None = None
    high: float | None = None
    shift: float
    divisor: float


def normalise(
    channel: NDArray[np.floating], intensity: Intensity
) -> tuple[NDArray[np.float32], ChannelIntensity]:
    """Normalise one channel's volume; a ValueError when nothing but one value would be left."""
    if intensity.kind == "window":
        low, high = intensity.low, intensity.high
        clipped = np.clip(channel, low, high)
        if clipped.min() == clipped.max():
            raise ValueError(f"every voxel lies on one side of the window [{low}, {high}]")
        done = ChannelIntensity(low=low, high=high, shift=low, divisor=high - low)
        return ((clipped - low) / (high - low)).astype(np.float32), done
    voxels = channel[channel != 0] if intensity.nonzero else channel
    mean = float(voxels.mean(dtype=np.float64)) if voxels.size else 0.0
    std = float(voxels.std(dtype=np.float64)) if voxels.size else 0.0
    if not std > 0:
        raise ValueError("the image is constant")
    # In double: a mean of 1e6 with a spread of 1 would lose the spread in single precision.
    scaled = ((channel.astype(np.float64) - mean) / std).astype(np.float32)
    return scaled, ChannelIntensity(shift=mean, divisor=std)
