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
        masks and labels hardly agree in class 1, 2 (pooled Dice 0.02)
        with the classes in the order 0, 2, 1 it would be 0.89: check the order of the classes
    """
    dice = 2 * table / np.maximum(table.sum(1)[:, None] + table.sum(0), 1)
    present = np.flatnonzero(table[1:].sum(1)) + 1
    order = linear_sum_assignment(dice, maximize=True)[1]
    moved = present[order[present] != present]
    if len(moved):  # of many classes two may be exchanged
        mean, best = dice[moved, moved].mean(), dice[moved, order[moved]].mean()
        if mean < POOR_DSC <= best:
            where = f"in class {', '.join(map(str, moved))} (pooled Dice {mean:.2f})"
            again = f"with the classes in the order {', '.join(map(str, order))} it would be"
            remedy = "check the order of the classes"
            return f"masks and labels hardly agree {where}; {again} {best:.2f}: {remedy}"
    mean = dice[present, present].mean() if len(present) else np.nan
    if not mean < POOR_DSC:
        return ""
    what = f"masks and labels hardly agree (pooled Dice {mean:.2f})"
    remedy = "check that they belong together and have the same orientation"
    return f"{what}; unless the network is that poor, {remedy}"
