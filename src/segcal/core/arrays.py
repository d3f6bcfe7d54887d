"""numpy arrays and torch tensors through one interface; torch is not imported for it."""

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = Any  # numpy array or torch tensor; naming the type would import torch


def is_tensor(array: object) -> bool:
    """Whether `array` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def check_array(name: str, array: object) -> None:
    """Raise unless `array` is a numpy array or a torch tensor."""
    if not isinstance(array, np.ndarray) and not is_tensor(array):
        raise TypeError(
            f"Expected argument `{name}` to be a numpy array or a torch tensor, "
            f"but got {type(array).__name__}."
        )


def to_numpy(array: Array, *, widen_half: bool = True) -> np.ndarray[Any, Any]:
    """The array on the CPU, as numpy in native byte order.

    numpy has no bfloat16, so it becomes float32; float16 does too unless `widen_half` is False.
    """
    if is_tensor(array):
        tensor = array.detach()
        torch = sys.modules["torch"]
        if tensor.dtype == torch.bfloat16 or (widen_half and tensor.dtype == torch.float16):
            tensor = tensor.float()
        return np.asarray(tensor.cpu().numpy())
    out = np.asarray(array)
    if widen_half and out.dtype == np.float16:
        return _widened(out)
    return out if out.dtype.isnative else out.astype(out.dtype.newbyteorder("="))


def _widened(half: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float16 as float32, exactly; several times faster than `astype`."""
    # Sign, exponent and mantissa are moved to their places in a float32. The product corrects the
    # bias of the exponent, also for subnormal numbers.
    bits = half.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(~0x70000000)
    out = bits.view(np.float32)
    out *= np.float32(2.0**112)
    if out.size and max(out.max(), -out.min()) >= 2**16:  # infinite or NaN
        return half.astype(np.float32)
    return out


def most_probable(probs: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """`probs.argmax(0)` of finite numbers (K, …); twice as fast for many voxels."""
    return np.asarray((probs == probs.max(0)).argmax(0))


def divide(total: npt.ArrayLike, count: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """total / count, NaN where the count is 0."""
    known = np.asarray(count) > 0
    return np.asarray(np.divide(total, count, out=np.full(np.shape(total), np.nan), where=known))


def label_shares(labels: Array, num_classes: int, axis: int = 0) -> Array:
    """The share of each class among several label maps, float32.

    (R, *S) → (K, *S): the maps lie along `axis`, which becomes the class axis. Labels outside
    0..K-1 do not vote. The shares sum to 1, or are all 0 where no map votes.

    Example:
        >>> label_shares(np.array([[0, 1, 255], [1, 1, 255]]), num_classes=2)
        array([[0.5, 0. , 0. ],
               [0.5, 1. , 0. ]], dtype=float32)
    """
    stack: Any = sys.modules["torch"].stack if is_tensor(labels) else np.stack
    votes = stack([(labels == k).sum(axis) for k in range(num_classes)], axis)
    total = votes.sum(axis, keepdims=True)
    shares = votes / (total + (total == 0))
    return shares.float() if is_tensor(labels) else shares.astype(np.float32)


def window_of(inside: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[slice, ...]:
    """Around all pixels of a 2-D mask, with a margin; at least a quarter of each side."""
    if not inside.any():
        return (slice(None), slice(None))
    out = []
    shape: tuple[int, ...] = inside.shape
    for axis, length in enumerate(shape):
        where = np.flatnonzero(inside.any(axis=1 - axis))
        margin = max(4, round(0.15 * (where[-1] - where[0] + 1)))
        low, high = int(where[0]) - margin, int(where[-1]) + 1 + margin
        more = max(0, length // 4 - (high - low))
        low, high = low - more // 2, high + more - more // 2
        out.append(slice(max(0, low), min(length, high)))
    return tuple(out)
