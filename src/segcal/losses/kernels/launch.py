"""Launch kernels, the second time without Triton's search for the compiled version.

At every launch Triton inspects all arguments to find the compiled kernel, and queries the driver
about every pointer. With some thirty arguments this takes longer than a small loss itself. Here
only the tensors' addresses change between launches of the same work, so the second launch calls the
compiled kernel, or the C function behind it, directly. This saves time in Python loops over small
batches: a CUDA graph has no such cost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ENABLED = True  # benchmarks switch the direct launch off for comparison
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# A build without CUDA does not have this function.
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Work(NamedTuple):
    """A kernel and all its arguments but the tensors."""

    kernel: Any
    programs: int
    numbers: tuple[int | float, ...]  # the run-time arguments after the tensors
    constants: dict[str, Any]  # the compile-time arguments, and `num_warps`
    hints: dict[str, int]  # options of the compiler, which torch.compile does not accept
    compiled: dict[int, Callable[..., None]] | None  # direct launches by device, if supported


def launch(*jobs: tuple[Work, Sequence[Tensor]]) -> None:
    """Run each work on its tensors, in order; all are on one device."""
    by_triton_alone = torch.compiler.is_compiling() or INTERPRETED
    if not by_triton_alone:
        device = jobs[0][1][0].get_device()
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                launch(*jobs)
            return
        if ENABLED and jobs[0][0].compiled is not None:
            _launch_directly(jobs, device)
            return
    for work, tensors in jobs:
        _launch_by_triton(work, tensors, {} if by_triton_alone else work.hints)


def _launch_by_triton(work: Work, tensors: Sequence[Tensor], hints: dict[str, int]) -> Any:
    return work.kernel[(work.programs,)](*tensors, *work.numbers, **work.constants, **hints)


def _launch_directly(jobs: Sequence[tuple[Work, Sequence[Tensor]]], device: int) -> None:
    stream, hooked = _current_stream(device), _has_hooks()  # type: ignore[misc]
    for work, tensors in jobs:
        pointers = [tensor.data_ptr() for tensor in tensors]
        low_bits = 0
        for pointer in pointers:
            low_bits |= pointer
        assert work.compiled is not None
        direct = work.compiled.get(device)
        if direct is not None and low_bits % 16 == 0:
            direct(pointers, stream, hooked)
            continue
        found = _launch_by_triton(work, tensors, work.hints)
        if low_bits % 16 == 0:  # Triton compiles another version for unaligned data
            work.compiled[device] = _direct_launch(found, work, len(tensors))


def _direct_launch(kernel: Any, work: Work, tensors: int) -> Callable[..., None]:
    """The launch of a compiled kernel; takes pointers, stream, and whether to call hooks."""
    from segcal.losses.kernels import _triton

    names = work.kernel.arg_names[tensors + len(work.numbers) :]
    tail = (*work.numbers, *(work.constants[name] for name in names))
    run = kernel[(work.programs, 1, 1)]  # takes the arguments and calls Triton's hooks
    launcher = kernel.run
    # The arguments of the C function are an internal of Triton, known for this version only.
    familiar = _triton.VERSION == (3, 6) and type(launcher).__name__ == "CudaLauncher"
    if not familiar or launcher.global_scratch_size > 0 or launcher.profile_scratch_size > 0:
        return lambda pointers, stream, hooked: run(*pointers, *tail)
    no_scratch = (None, None)  # global scratch memory, and that of a profiler
    no_hooks = (None, None, None)  # the hooks' metadata, the enter hook and the exit hook
    head = (
        kernel.function, launcher.launch_cooperative_grid, launcher.launch_pdl, *no_scratch,
        kernel.packed_metadata, *no_hooks,
    )  # fmt: skip

    def direct(pointers: Sequence[int], stream: int, hooked: bool) -> None:
        if hooked:
            run(*pointers, *tail)
        else:
            launcher.launch(work.programs, 1, 1, stream, *head, *pointers, *tail)

    return direct


def _has_hooks() -> bool:
    """Whether a profiler has registered a hook that Triton must call at every launch."""
    from triton import knobs

    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return any(hook is not None and getattr(hook, "calls", True) for hook in hooks)
