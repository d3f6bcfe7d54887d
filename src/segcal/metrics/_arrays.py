"""numpy arrays and torch tensors alike, without importing torch for those who have none."""

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # numpy array or torch tensor: torch is not imported to say so


def is_tensor(array: object) -> bool:
    """Whether `array` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """The array on the CPU, as numpy; half precision becomes float32: numpy has no bfloat16."""
    if is_tensor(array):
        tensor = array.detach()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        return np.asarray(tensor.cpu().numpy())
    out = np.asarray(array)
    return out.astype(np.float32) if out.dtype == np.float16 else out
