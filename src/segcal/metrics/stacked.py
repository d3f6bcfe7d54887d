"""Calibration of many volumes in one pass: a GPU is asked once for all, not once for each."""

from collections.abc import Sequence

import numpy as np

from segcal.core.arrays import Array, is_tensor
from segcal.core.checks import check_int
from segcal.metrics._binning import empty_tables, tally
from segcal.metrics._chunks import check_array, iter_chunks
from segcal.metrics.calibration import CalibrationBins


def stacked_bins(
    probs: Array,
    target: Array,
    lengths: Sequence[int],
    mask: Array | None = None,
    *,
    num_bins: int = 15,
) -> list[CalibrationBins]:
    """The `CalibrationBins` of each of several volumes that lie one after another.

    It gives what `CalibrationBins.update` gives of each volume by itself.

    Args:
        probs: (K, Z, …), numpy or torch, after softmax: the volumes along the axis Z.
        target: integer labels (Z, …).
        lengths: what each volume takes of Z, in order.
        mask: boolean (Z, …): the voxels that count. None counts all.
        num_bins: M.

    Example:
        >>> import numpy as np
        >>> probs = np.array([[0.2, 0.4, 0.9], [0.8, 0.6, 0.1]])  # a volume of 2 voxels, one of 1
        >>> bins = stacked_bins(probs, np.array([1, 0, 0]), lengths=[2, 1])
        >>> [(one.voxels, round(one.ece(), 3)) for one in bins]
        [(2, 0.4), (1, 0.1)]
    """
    probs = check_array("probs", probs)
    each = [check_int("lengths", length, low=0) for length in lengths]
    if sum(each) != probs.shape[1]:
        raise ValueError(
            f"Expected argument `lengths` to add up to {probs.shape[1]}, the length of axis 1 of "
            f"`probs`, but got {sum(each)}."
        )
    num_classes = int(probs.shape[0])
    tables = empty_tables(len(each), num_classes, check_int("num_bins", num_bins, low=1))
    for chunk in iter_chunks(
        probs, target, num_classes, mask=mask, group=_owners(probs, each), batched=False
    ):
        tables += tally(chunk, num_bins, len(each))
    return [CalibrationBins.from_tables(tables, index) for index in range(len(each))]


def _owners(probs: Array, lengths: list[int]) -> Array:
    """Which volume each voxel is of: (Z, …), of which only (Z,) is in memory."""
    space = tuple(probs.shape[1:])
    owner = np.repeat(np.arange(len(lengths)), lengths).reshape(-1, *[1] * (len(space) - 1))
    if not is_tensor(probs):
        return np.broadcast_to(owner, space)
    import torch

    return torch.as_tensor(owner, device=probs.device).expand(space)
