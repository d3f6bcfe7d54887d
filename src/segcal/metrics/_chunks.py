"""Probability maps and targets as a stream of small, checked chunks of voxels.

All statistics of this package read voxels through this module, so they accept the same inputs,
reject the same mistakes and need the same bounded memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from segcal.core.arrays import Array, check_array, is_tensor, to_numpy
from segcal.core.blocks import BLOCK_VALUES, iter_blocks, take_block
from segcal.metrics._validate import Inspector

# Probabilities in one chunk on a GPU, which needs large ones; on a CPU they are BLOCK_VALUES.
_CHUNK_GPU = 1 << 25


@dataclass
class Chunk:
    """Some voxels.

    Attributes:
        probs: (K, n).
        target: (n,) int64, or (K, n) if soft.
        group: (n,) index of the group in which each voxel is counted, or None for one group.
        label: (n,) the first class with the largest probability, or None if not known.
    """

    probs: Array
    target: Array
    group: Array | None = None
    label: Array | None = None

    @cached_property
    def target_index(self) -> Array:
        """Index in the flattened probabilities (numpy) of the probability of each true class."""
        n = self.probs.shape[1]
        return self.target * n + np.arange(n)


def _dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _is_floating(array: Array) -> bool:
    return bool(array.is_floating_point()) if is_tensor(array) else array.dtype.kind == "f"


def native_array(name: str, value: Array) -> Array:
    """A numpy array in native byte order, or a tensor without its gradient."""
    check_array(name, value)
    return value.detach() if is_tensor(value) else to_numpy(value, widen_half=False)


def _layouts(probs: Array, target: Array, num_classes: int) -> list[bool]:
    """The layouts that the two shapes allow: False for (K, *S), True for (B, K, *S)."""
    shape, target_shape = tuple(probs.shape), tuple(target.shape)
    fits = []
    if len(shape) >= 2 and shape[0] == num_classes and target_shape in (shape, shape[1:]):
        fits.append(False)
    if (
        len(shape) >= 3
        and shape[1] == num_classes
        and target_shape in (shape, shape[:1] + shape[2:])
    ):
        fits.append(True)
    return fits


def _is_batched(probs: Array, target: Array, num_classes: int, batched: bool | None) -> bool:
    fits = _layouts(probs, target, num_classes)
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
    if not soft and not _dtype_name(target).startswith(("int", "uint")):
        raise TypeError(
            f"Expected argument `target` to hold integer labels, but got {_dtype_name(target)}."
        )
    if mask is not None and _dtype_name(mask) != "bool":
        raise TypeError(f"Expected argument `mask` to be boolean, but got {_dtype_name(mask)}.")


def _in_memory_order(probs: Array) -> list[int]:
    """The spatial axes of (K, *S) from the largest stride to the smallest.

    In this order an image in Fortran order, as nibabel loads it, is read contiguously.
    """
    strides = probs.stride() if is_tensor(probs) else probs.strides
    return sorted(range(probs.ndim - 1), key=lambda axis: -abs(strides[1 + axis]))


def _permute(array: Array, order: list[int]) -> Array:
    """Permute the trailing spatial axes."""
    first = array.ndim - len(order)
    axes = [*range(first), *(first + axis for axis in order)]
    return array.permute(axes) if is_tensor(array) else array.transpose(axes)


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
    """Checked chunks of the voxels to count: those in `mask` and not `ignore_index`.

    Other voxels are not checked: padding may hold any value. Chunks of a CUDA tensor stay on its
    device. A chunk is checked before it is yielded, so a caller must add to new tables and keep
    them only after the last chunk: an error then leaves no partial update.
    """
    probs, target = native_array("probs", probs), native_array("target", target)
    mask = None if mask is None else native_array("mask", mask)
    batch = _is_batched(probs, target, num_classes, batched)
    soft = target.ndim == probs.ndim
    _check_kinds(probs, target, mask, soft)
    arrays = {"probs": probs, "target": target, "mask": mask, "group": group, "label": label}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    space = tuple(probs.shape[:1] + probs.shape[2:]) if batch else tuple(probs.shape[1:])
    for name in arrays.keys() & {"mask", "group", "label"}:
        if tuple(arrays[name].shape) != space:
            raise ValueError(
                f"Expected argument `{name}` to have shape {space}, one value per voxel, "
                f"but got {tuple(arrays[name].shape)}."
            )
    seen = Inspector(num_classes) if seen is None else seen
    on_gpu = is_tensor(probs) and probs.device.type != "cpu"
    step = max((_CHUNK_GPU if on_gpu else BLOCK_VALUES) // num_classes, 1)
    for volume in _volumes(arrays) if batch else [arrays]:
        order = _in_memory_order(volume["probs"])
        volume = {name: _permute(array, order) for name, array in volume.items()}
        for cut in iter_blocks(tuple(volume["probs"].shape[1:]), step):
            block = {name: take_block(array, cut, len(order)) for name, array in volume.items()}
            block = (_on_gpu if on_gpu else _on_cpu)(block)
            block = _keep_counted(block, None if soft else ignore_index)
            if block["probs"].shape[1]:
                seen.check(block["probs"], block["target"])
                yield Chunk(**block)


Block = dict[str, Array]  # arrays by name: "probs" and "target", and "mask", "group", "label"


def _volumes(arrays: Block) -> Iterator[Block]:
    for i in range(arrays["probs"].shape[0]):
        yield {name: array[i] for name, array in arrays.items()}


def _on_cpu(block: Block) -> Block:
    """The block as numpy, integers as int64."""
    out = {name: to_numpy(array) for name, array in block.items()}
    for name, array in out.items():
        if array.dtype.kind in "iu":
            out[name] = array.astype(np.int64, copy=False)
    return {**out, "probs": np.ascontiguousarray(out["probs"])}


def _on_gpu(block: Block) -> Block:
    """The block on the device of `probs`, integers as int64, floats of at least 32 bits."""
    import torch

    out = {}
    for name, array in block.items():
        tensor = torch.as_tensor(array, device=block["probs"].device)
        if tensor.is_floating_point():
            out[name] = tensor.float() if tensor.element_size() < 4 else tensor
        else:
            out[name] = tensor if tensor.dtype == torch.bool else tensor.long()
    return {**out, "probs": out["probs"].contiguous()}


def _keep_counted(block: Block, ignore_index: int | None) -> Block:
    """The voxels in the mask that are not ignored."""
    keep = block.pop("mask", None)
    if ignore_index is not None:
        valid = block["target"] != ignore_index
        keep = valid if keep is None else keep & valid
    if keep is None or bool(keep.all()):
        return block
    return {name: array[..., keep] for name, array in block.items()}
