"""Do the masks of predictions agree with the labels? A line if not, with the likely reason."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from segcal.metrics import POOR_DSC


def disagreement(table: NDArray[np.int64]) -> str:
    """Why masks hardly agree with labels; empty if they do.

    `table` is a sum of `segcal.metrics.confusion` over cases.

    Example:
        >>> found = disagreement(np.array([[90, 2, 3], [1, 0, 20], [2, 20, 1]]))
        >>> for part in found.split("; "):
        ...     print(part)
        masks and labels hardly agree (pooled Dice 0.02)
        with the classes in the order 0, 2, 1 it would be 0.89: check the order of the classes
    """
    dice = 2 * table / np.maximum(table.sum(1)[:, None] + table.sum(0), 1)
    present = np.flatnonzero(table[1:].sum(1)) + 1
    mean = dice[present, present].mean() if len(present) else np.nan
    if not mean < POOR_DSC:
        return ""
    order = linear_sum_assignment(dice, maximize=True)[1]
    best = dice[present, order[present]].mean()
    text = f"masks and labels hardly agree (pooled Dice {mean:.2f})"
    if best < POOR_DSC:
        return f"{text}; check that they belong together and have the same orientation"
    names = ", ".join(map(str, order))
    again = f"with the classes in the order {names} it would be {best:.2f}"
    return f"{text}; {again}: check the order of the classes"
