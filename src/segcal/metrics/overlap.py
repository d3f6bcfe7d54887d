"""Overlap of label maps: a confusion matrix, and Dice coefficients computed from it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array
from segcal.core.checks import check_choice, check_int
from segcal.metrics._geometry import LabelMap, check_labels
from segcal.metrics._validate import label_message

EmptyPolicy = Literal["nan", "diagonal", "paper"]
# Masks with a lower mean DSC are poor. A convention.
POOR_DSC = 0.5


def check_pair(
    labels: Array, target: Array, num_classes: int, ignore_index: int
) -> tuple[LabelMap, LabelMap]:
    """Both label maps as numpy, of one shape, with labels in 0..K-1 (or ignored in `target`)."""
    check_int("num_classes", num_classes, low=1)
    truth = check_labels("target", target)
    predicted = check_labels("labels", labels, truth.shape)
    for name, array, allowed in (("labels", predicted, None), ("target", truth, ignore_index)):
        if array.size and (array.min() < 0 or array.max() >= num_classes):
            found = [v for v in np.unique(array) if v != allowed and not 0 <= v < num_classes]
            if found:
                raise ValueError(label_message(name, found, num_classes))
    return predicted, truth


# Voxels that are counted at a time, so that their 8 bytes each stay in the cache.
_BLOCK = 1 << 18


def confusion(
    labels: Array, target: Array, num_classes: int, *, ignore_index: int = -100
) -> npt.NDArray[np.int64]:
    """(K, K) counts of voxels with true label i (row) and predicted label j (column). Additive."""
    predicted, truth = check_pair(labels, target, num_classes, ignore_index)
    predicted, truth = predicted.ravel(), truth.ravel()
    if truth.size and (truth == ignore_index).any():
        keep = truth != ignore_index
        predicted, truth = predicted[keep], truth[keep]
    out = np.zeros(num_classes**2, np.int64)
    for start in range(0, len(truth), _BLOCK):
        block = slice(start, start + _BLOCK)
        # Both int64: numpy adds int64 and uint64 as floats.
        pair = truth[block].astype(np.int64)
        pair *= num_classes
        pair += predicted[block].astype(np.min_scalar_type(-num_classes), copy=False)
        out += np.bincount(pair, minlength=num_classes**2)
    return out.reshape(num_classes, num_classes)


def dsc(
    labels: Array,
    target: Array,
    num_classes: int,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    empty: EmptyPolicy = "nan",
    ignore_index: int = -100,
) -> dict[str, float]:
    """Dice similarity coefficient 2|A∩B| / (|A|+|B|) of each structure, A predicted and B true.

    The value is 1 if both are empty and 0 if one is. `empty="paper"` gives 1 whenever B is empty,
    even with false positives; `"nan"` and `"diagonal"` differ for surface distances only. If all
    voxels are ignored, it is NaN.

    Args:
        labels, target: integer label maps of one case, of one shape.
        num_classes: K; labels are 0..K-1.
        groups: name → labels of one structure, such as {"WT": (1, 2, 3)}; None for each class
            but 0.
        empty: value for empty masks, see above.
        ignore_index: label of voxels in `target` that are not counted.

    Example:
        >>> import numpy as np
        >>> dsc(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]), 3)
        {'1': 0.6666666666666666, '2': 0.6666666666666666}
    """
    check_choice("empty", empty, get_args(EmptyPolicy))
    table = confusion(labels, target, num_classes, ignore_index=ignore_index)
    return {
        name: dsc_from_confusion(table, members, empty)
        for name, members in check_groups(groups, num_classes).items()
    }


def dsc_from_confusion(
    table: npt.NDArray[np.int64], labels: Sequence[int], empty: EmptyPolicy = "nan"
) -> float:
    """DSC of the structure with these labels, from the table of `confusion`; see `dsc`."""
    if not table.any():
        return math.nan
    inside = list(labels)
    both = int(table[np.ix_(inside, inside)].sum())
    true, predicted = int(table[inside].sum()), int(table[:, inside].sum())
    if true == 0 and (predicted == 0 or empty == "paper"):
        return 1.0
    return 2 * both / (true + predicted)


def check_groups(
    groups: Mapping[str, Iterable[Any]] | None, num_classes: int
) -> dict[str, tuple[int, ...]]:
    """Checked structures, name → labels; by default one per class, without the background."""
    if groups is None:
        return {str(k): (k,) for k in range(1, num_classes)}
    if not isinstance(groups, Mapping):
        raise TypeError(
            f"Expected argument `groups` to map names to labels, but got {type(groups).__name__}."
        )
    out = {}
    for name, members in groups.items():
        out[str(name)] = tuple(
            check_int(f"groups[{name!r}]", k, low=0, high=num_classes - 1) for k in members
        )
        if not out[str(name)] or len(set(out[str(name)])) < len(out[str(name)]):
            raise ValueError(
                f"Expected argument `groups[{name!r}]` to hold distinct labels, "
                f"but got {members!r}."
            )
    return out
