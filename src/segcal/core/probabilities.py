"""What values that are no probabilities look like; the hints of error messages."""

import numpy as np

from segcal.core.arrays import Array, to_numpy


def looks_like_labels(values: Array) -> bool:
    """Whether all values are whole numbers and some are neither 0 nor 1.

    Example:
        >>> looks_like_labels(np.array([0.0, 3.0])), looks_like_labels(np.array([0.0, 1.0]))
        (True, False)
    """
    array = to_numpy(values)
    return bool((array == np.rint(array)).all() and ((array != 0) & (array != 1)).any())


def hint_out_of_range(values: Array) -> str:
    """What values (K, …) outside [0, 1] are instead, with the remedy; empty if that is not clear.

    Example:
        >>> hint_out_of_range(np.array([[25.0, 100.0], [75.0, 0.0]]))
        'They look like percent: divide them by 100.'
    """
    array = to_numpy(values).astype(np.float64)
    if array.min() >= 0 and abs(array.sum(0) - 100).max() <= 1:
        return "They look like percent: divide them by 100."
    if looks_like_labels(array):
        return "They are whole numbers, like label maps: give floating-point probabilities."
    if array.max() <= 1e-6 and abs(np.exp(array).sum(0) - 1).max() < 1e-2:
        return "It looks like log-probabilities: apply exp."
    return ""
