"""Probability maps and targets of any kind, as a stream of small, checked chunks of voxels.

Every statistic of this room reads its voxels here, so that all of them accept the same inputs,
refuse the same mistakes with the same words, and need the same bounded memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from segcal.core.arrays import Array, is_tensor, to_numpy
from segcal.metrics._validate import Inspector

# Probabilities held at once, whatever the size of the volume. Measured: on a CPU, tables of 2^17
# stay in its cache and take 0.6 of the time of 2^20; a GPU wants large steps.
_CHUNK_CPU = 1 << 17
_CHUNK_GPU = 1 << 25


@dataclass
class Chunk:
    """Some voxels: `probs` (K, n); `target` (n,) int64 or (K, n) soft; and, where known, (n,) each:
    `group`, and `label`, the first class of the largest probability."""

    probs: Array
    target: Array
    group: Array | None = None
    label: Array | None = None

    @cached_property
    def own(self) -> Array:
        """Where in the flattened probabilities (numpy) those of the true classes are."""
        n = self.probs.shape[1]
        return self.target * n + np.arange(n)


def _dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _is_floating(array: Array) -> bool:
    return bool(array.is_floating_point()) if is_tensor(array) else array.dtype.kind == "f"


def _is_integer(array: Array) -> bool:
    name = _dtype_name(array)
    return name.startswith(("int", "uint"))


def check_array(name: str, value: Array) -> Array:
    """A numpy array in native byte order, or a tensor without its gradient."""
    if is_tensor(value):
        return value.detach()
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"Expected argument `{name}` to be a numpy array or a torch tensor, "
            f"but got {type(value).__name__}."
        )
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _readings(probs: Array, target: Array, num_classes: int) -> list[bool]:
    """Which of (K, *S) [False] and (B, K, *S) [True] the two shapes allow."""
    shape, wanted = tuple(probs.shape), tuple(target.shape)
    fits = []
    if len(shape) >= 2 and shape[0] == num_classes and wanted in (shape, shape[1:]):
        fits.append(False)
    if len(shape) >= 3 and shape[1] == num_classes and wanted in (shape, shape[:1] + shape[2:]):
        fits.append(True)
    return fits


def _is_batched(probs: Array, target: Array, num_classes: int, batched: bool | None) -> bool:
    fits = _readings(probs, target, num_classes)
    if batched is not None and batched in fits:
        return batched
    if batched is None and len(fits) == 1:
        return fits[0]
    shapes = f"`probs` {tuple(probs.shape)} with `target` {tuple(target.shape)}"
    if batched is None and fits:
        raise ValueError(
            "Expected argument `batched` to be True or False where the shapes allow both (K, *S) "
            f"and (B, K, *S), but got None for {shapes}."
        )
    raise ValueError(
        f"Expected argument `probs` to have shape (K, *S) or (B, K, *S) with K = {num_classes}, "
        f"and `target` (*S) or (B, *S), or the shape of `probs` if soft, but got {shapes}"
        f"{'' if batched is None else f' and batched={batched}'}."
    )


def _check_kinds(probs: Array, target: Array, mask: Array | None, soft: bool) -> None:
    if not _is_floating(probs):
        raise TypeError(
            f"Expected argument `probs` to be floating point, but got {_dtype_name(probs)}."
        )
    if soft and not _is_floating(target):
        raise TypeError(
            "Expected argument `target` to be floating point where it is soft (the shape of "
            f"`probs`), but got {_dtype_name(target)}."
        )
    if not soft and not _is_integer(target):
        raise TypeError(
            f"Expected argument `target` to hold integer labels, but got {_dtype_name(target)}."
        )
    if mask is not None and _dtype_name(mask) != "bool":
        raise TypeError(f"Expected argument `mask` to be boolean, but got {_dtype_name(mask)}.")


def _in_memory_order(probs: Array) -> list[int]:
    """The spatial axes of (K, *S) from the largest stride to the smallest.

    Read in this order, an image in Fortran order (as nibabel gives it) is as contiguous as another.
    """
    strides = probs.stride() if is_tensor(probs) else probs.strides
    return sorted(range(probs.ndim - 1), key=lambda axis: -abs(strides[1 + axis]))


def _permute(array: Array, order: list[int]) -> Array:
    """Put the trailing spatial axes in this order."""
    first = array.ndim - len(order)
    axes = [*range(first), *(first + axis for axis in order)]
    return array.permute(axes) if is_tensor(array) else array.transpose(axes)


Cut = tuple[int | slice, ...]


def _cuts(space: tuple[int, ...], step: int) -> Iterator[Cut]:
    """Indices of blocks of at most `step` voxels, in order, of nearly equal size along an axis."""
    if not space:
        yield ()
        return
    row = max(math.prod(space[1:]), 1)
    if row > step:
        for i in range(space[0]):
            yield from ((i, *rest) for rest in _cuts(space[1:], step))
        return
    parts = max(math.ceil(space[0] * row / (step // row * row)), 1)
    rows = max(math.ceil(space[0] / parts), 1)
    for start in range(0, space[0], rows):
        yield (slice(start, start + rows),)


def iter_chunks(
    probs: Array,
    target: Array,
    num_classes: int,
    *,
    mask: Array | None = None,
    group: Array | None = None,
    label: Array | None = None,
    ignore_index: int = -100,
    batched: bool | None = None,
    seen: Inspector | None = None,
) -> Iterator[Chunk]:
    """Checked chunks of the voxels that count: in `mask` and not `ignore_index`.

    Voxels left out are not checked: padding may hold anything. Chunks of a CUDA tensor stay on its
    device.
    Everything is checked before the last chunk is given: a caller that adds up into fresh tables
    and keeps them only at the end is never left with half an update.
    """
    probs, target = check_array("probs", probs), check_array("target", target)
    mask = None if mask is None else check_array("mask", mask)
    batch = _is_batched(probs, target, num_classes, batched)
    soft = target.ndim == probs.ndim
    _check_kinds(probs, target, mask, soft)
    space = tuple(probs.shape[:1] + probs.shape[2:]) if batch else tuple(probs.shape[1:])
    extras = {"mask": mask, "group": group, "label": label}
    for name, array in extras.items():
        if array is not None and tuple(array.shape) != space:
            raise ValueError(
                f"Expected argument `{name}` to have shape {space}, one value per voxel, "
                f"but got {tuple(array.shape)}."
            )
    seen = Inspector(num_classes) if seen is None else seen
    on_gpu = is_tensor(probs) and probs.device.type != "cpu"
    step = max((_CHUNK_GPU if on_gpu else _CHUNK_CPU) // num_classes, 1)
    for b in range(probs.shape[0]) if batch else [None]:
        one = {
            name: array if b is None or array is None else array[b]
            for name, array in {"probs": probs, "target": target, **extras}.items()
        }
        order = _in_memory_order(one["probs"])
        one = {n: None if array is None else _permute(array, order) for n, array in one.items()}
        for cut in _cuts(tuple(one["probs"].shape[1:]), step):
            flat = {n: None if a is None else _take(a, cut, len(order)) for n, a in one.items()}
            inside = flat.pop("mask")
            chunk = _keep(_settle(Chunk(**flat), on_gpu), inside, ignore_index, soft)
            if chunk.probs.shape[1]:
                seen.check(chunk.probs, chunk.target)
                yield chunk


def _take(array: Array, cut: Cut, axes: int) -> Array:
    """The voxels of a block: (n,), or (K, n) of an array with a class axis."""
    if array.ndim == axes:
        return array[cut].reshape(-1)
    return array[(slice(None), *cut)].reshape(array.shape[0], -1)


def _settle(chunk: Chunk, on_gpu: bool) -> Chunk:
    """Bring a chunk to where its probabilities are, in a dtype to compute with."""
    integer = not _is_floating(chunk.target)
    if not on_gpu:
        target = to_numpy(chunk.target)
        return Chunk(
            np.ascontiguousarray(to_numpy(chunk.probs)),
            target.astype(np.int64, copy=False) if integer else target,
            *(
                None if a is None else to_numpy(a).astype(np.int64, copy=False)
                for a in _marks(chunk)
            ),
        )
    import torch

    def move(array: Array, integer: bool) -> Array:
        tensor = torch.as_tensor(array, device=chunk.probs.device)
        if integer:
            return tensor.long()
        return tensor.float() if tensor.element_size() < 4 else tensor

    return Chunk(
        move(chunk.probs, False).contiguous(),
        move(chunk.target, integer),
        *(None if a is None else move(a, True) for a in _marks(chunk)),
    )


def _marks(chunk: Chunk) -> tuple[Array | None, Array | None]:
    return chunk.group, chunk.label


def _keep(chunk: Chunk, mask: Array | None, ignore_index: int, soft: bool) -> Chunk:
    """Only the voxels that count."""
    keep = None if soft else chunk.target != ignore_index
    if mask is not None:
        if is_tensor(chunk.probs):
            import torch

            inside: Array = torch.as_tensor(mask, device=chunk.probs.device)
        else:
            inside = to_numpy(mask)
        keep = inside if keep is None else keep & inside
    if keep is None or bool(keep.all()):
        return chunk
    return Chunk(
        chunk.probs[:, keep],
        chunk.target[..., keep],
        *(None if a is None else a[keep] for a in _marks(chunk)),
    )
