"""Launching a kernel again without asking Triton which compiled version it was.

Triton looks at every argument of every launch to find the compiled kernel; with some thirty of
them that takes longer than a small loss itself. Here the caller names what the version depends
on (shapes, types, options), the alignment of the tensors is added, and the second launch goes
straight to the compiled kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_KNOWN: dict[Hashable, tuple[Callable[..., None], list[Any]]] = {}


def launch(
    kernel: Any,
    programs: int,
    arguments: Sequence[Any],
    constants: dict[str, Any],
    warps: int,
    key: Hashable,
) -> None:
    """Run `kernel` in `programs` programs. `key` settles all but the tensors' alignment."""
    if torch.compiler.is_compiling() or INTERPRETED or not _direct():
        kernel[(programs,)](*arguments, **constants, num_warps=warps)
        return
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    device = tensors[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, programs, arguments, constants, warps, key)
        return
    full = (id(kernel), key, device.index, *(tensor.data_ptr() % 16 == 0 for tensor in tensors))
    known = _KNOWN.get(full)
    if known is None:
        compiled = kernel[(programs,)](*arguments, **constants, num_warps=warps)
        names = kernel.arg_names[len(arguments) :]
        _KNOWN[full] = compiled[(programs, 1, 1)], [constants[name] for name in names]
    else:
        run, values = known
        run(*arguments, *values)


@cache
def _direct() -> bool:
    """Whether this Triton's compiled kernels take all arguments, as those since 3.4 do."""
    major, minor = version("triton").split(".")[:2]
    return (int(major), int(minor)) >= (3, 4)
