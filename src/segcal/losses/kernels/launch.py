"""Launching a kernel again without asking Triton which compiled version it was.

Triton looks at every argument of every launch to find the compiled kernel, and asks the driver
about every pointer; with some thirty arguments that takes longer than a small loss itself. Here the
caller promises that between launches of the same work only the tensors' addresses change, and
the second launch goes straight to the compiled kernel, or to the C function behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# What torch.cuda.current_device() asks once CUDA is known to be up; a build without CUDA lacks it.
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Work(NamedTuple):
    """All of a launch but the tensors.

    Attributes:
        kernel: what Triton made of the function.
        programs: how many.
        numbers: the run-time arguments after the tensors.
        constants: the compile-time arguments, and `num_warps`.
        known: the memory, one entry per device. Launches with it must be of tensors that differ in
            nothing but their content and address.
        advice: options of the compiler that the result does not depend on. Launches by
            torch.compile, which does not know them, and by Triton before 3.4 go without.
    """

    kernel: Any
    programs: int
    numbers: tuple[int | float, ...]
    constants: dict[str, Any]
    known: dict[int, _Ready]
    advice: dict[str, int]


class _Ready(NamedTuple):
    """A compiled kernel."""

    run: Callable[..., None]  # of Triton, takes the arguments and runs its hooks
    launch: Callable[..., None] | None  # the C function behind it, which is also told `head`
    head: tuple[Any, ...]
    tail: tuple[Any, ...]  # the arguments after the tensors


def launch(*jobs: tuple[Work, Sequence[Tensor]]) -> None:
    """Do each work on its tensors, in turn; all are on one device."""
    if torch.compiler.is_compiling() or _leaves_it_to_triton():
        for work, tensors in jobs:
            work.kernel[(work.programs,)](*tensors, *work.numbers, **work.constants)
        return
    device = jobs[0][1][0].get_device()
    if device != _current_device():  # type: ignore[misc]
        with torch.cuda.device(device):
            launch(*jobs)
        return
    stream, hooked = _current_stream(device), _hooked()  # type: ignore[misc]
    for work, tensors in jobs:
        pointers = [tensor.data_ptr() for tensor in tensors]
        low_bits = 0
        for pointer in pointers:
            low_bits |= pointer
        ready = work.known.get(device)
        if ready is None or low_bits % 16:  # Triton has another version for what is not aligned
            compiled = work.kernel[(work.programs,)](
                *tensors, *work.numbers, **work.constants, **work.advice
            )
            if low_bits % 16 == 0:
                work.known[device] = _ready(compiled, work, len(tensors))
        elif ready.launch is None or hooked:
            ready.run(*pointers, *ready.tail)
        else:
            ready.launch(work.programs, 1, 1, stream, *ready.head, *pointers, *ready.tail)


def _ready(compiled: Any, work: Work, tensors: int) -> _Ready:
    names = work.kernel.arg_names[tensors + len(work.numbers) :]
    tail = (*work.numbers, *(work.constants[name] for name in names))
    run = compiled[(work.programs, 1, 1)]
    launcher = compiled.run
    # The C function's arguments are Triton's own business: used where they are known, only there.
    familiar = _triton_version() == (3, 6) and type(launcher).__name__ == "CudaLauncher"
    if not familiar or launcher.global_scratch_size > 0 or launcher.profile_scratch_size > 0:
        return _Ready(run, None, (), tail)
    nothing = (None, None)  # memory for all programs to scribble on, and for a profiler
    no_hooks = (None, None, None)  # what to tell the hooks, the one before and the one after
    head = (
        compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl, *nothing,
        compiled.packed_metadata, *no_hooks,
    )  # fmt: skip
    return _Ready(run, launcher.launch, head, tail)


def _hooked() -> bool:
    """Whether someone (a profiler) wants to be told of every launch."""
    runtime = _runtime()
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        if hook is not None and getattr(hook, "calls", True):
            return True
    return False


@cache
def _runtime() -> Any:
    from triton import knobs

    return knobs.runtime


@cache
def _leaves_it_to_triton() -> bool:
    """Before 3.4 Triton's compiled kernels did not take all arguments."""
    return INTERPRETED or _triton_version() < (3, 4)


@cache
def _triton_version() -> tuple[int, int]:
    major, minor = version("triton").split(".")[:2]
    return int(major), int(minor)
