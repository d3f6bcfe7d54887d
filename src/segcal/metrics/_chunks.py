"""Probability maps and targets as a stream of small, checked chunks of voxels.

All statistics of this package read voxels through this module, so they accept the same inputs,
reject the same mistakes and need the same bounded memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.arrays import Array, check_array, is_tensor, to_numpy
from segcal.core.blocks import BLOCK_VALUES, iter_blocks, take_block
from segcal.metrics._validate import Inspector

# Probabilities in one chunk on a GPU, which needs large ones; on a CPU they are BLOCK_VALUES.
_CHUNK_GPU = 1 << 25
_FLOAT = ("float", "bfloat")
Block = dict[str, Array]  # arrays by name: "probs" and "target", and "mask", "group", "label"


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
    def top(self) -> tuple[Array, Array]:
        """Confidence and label (int64) of each voxel; ties go to the smaller class."""
        if self.label is not None:
            return self.probs.take(self.index_of(self.label)), self.label
        if is_tensor(self.probs):
            return tuple(self.probs.max(dim=0))
        confidence, label = top_label(self.probs)
        return confidence, label.astype(np.int64)

    @cached_property
    def target_index(self) -> Array:
        """`index_of` the true labels."""
        return self.index_of(self.target)

    def index_of(self, label: Array) -> Array:
        """Index in the flattened probabilities of the class `label` of each voxel."""
        n = self.probs.shape[1]
        return label * n + self.arange(n)

    def arange(self, n: int) -> Array:
        """The integers below n, of the kind and on the device of `probs`."""
        if not is_tensor(self.probs):
            return np.arange(n)
        import torch

        return torch.arange(n, device=self.probs.device)


def top_label(probs: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Largest probability and its class, (K, …) -> (…) each; ties go to the smaller class.

    One pass over each class. Up to 256 classes the label is a byte, which is several times faster.
    """
    confidence = probs[0].copy(order="K")
    small = np.uint8 if len(probs) <= 256 else np.int64
    label = np.zeros_like(confidence, dtype=small)
    for k in range(1, len(probs)):
        # k is larger than any label so far, so the maximum assigns k where p_k is larger.
        np.maximum(label, (probs[k] > confidence) * small(k), out=label)
        np.maximum(confidence, probs[k], out=confidence)
    return confidence, label


def native_array(name: str, value: Array) -> Array:
    """A numpy array in native byte order, or a tensor without its gradient."""
    check_array(name, value)
    return value.detach() if is_tensor(value) else to_numpy(value, widen_half=False)


def _is_batched(probs: Array, target: Array, num_classes: int, batched: bool | None) -> bool:
    """Whether `probs` is (B, K, *S), from the shapes; `batched` decides where both readings fit."""
    shape, target_shape = tuple(probs.shape), tuple(target.shape)
    fits = [
        layout
        for layout, axis in ((False, 0), (True, 1))
        if len(shape) >= 2 + axis
        and shape[axis] == num_classes
        and target_shape in (shape, shape[:axis] + shape[axis + 1 :])
    ]
    if batched is not None and batched in fits:
        return batched
    if batched is None and len(fits) == 1:
        return fits[0]
    shapes = f"`probs` {shape} with `target` {target_shape}"
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


def _check_kind(name: str, array: Array, kinds: str | tuple[str, ...], expected: str) -> None:
    dtype = str(array.dtype).removeprefix("torch.")
    if not dtype.startswith(kinds):
        raise TypeError(f"Expected argument `{name}` to {expected}, but got {dtype}.")


def _check_arrays(arrays: Block, space: tuple[int, ...], soft: bool) -> None:
    """Check the kinds of all arrays, and the shapes of those with one value per voxel."""
    _check_kind("probs", arrays["probs"], _FLOAT, "be floating point")
    if soft:
        where = "where it is soft (the shape of `probs`)"
        _check_kind("target", arrays["target"], _FLOAT, f"be floating point {where}")
    else:
        _check_kind("target", arrays["target"], ("int", "uint"), "hold integer labels")
    if "mask" in arrays:
        _check_kind("mask", arrays["mask"], "bool", "be boolean")
    for name in arrays.keys() & {"mask", "group", "label"}:
        if tuple(arrays[name].shape) != space:
            raise ValueError(
                f"Expected argument `{name}` to have shape {space}, one value per voxel, "
                f"but got {tuple(arrays[name].shape)}."
            )


def in_memory_order(probs: Array) -> list[int]:
    """The spatial axes of (K, *S) from the largest stride to the smallest.

    In this order an image in Fortran order, as nibabel loads it, is read contiguously.
    """
    strides = probs.stride() if is_tensor(probs) else probs.strides
    return sorted(range(probs.ndim - 1), key=lambda axis: -abs(strides[1 + axis]))


def permute(array: Array, order: list[int]) -> Array:
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

    `seen` is the history of earlier calls. With it, and without a mask, which may exclude all
    confident voxels, a second softmax is warned of after the last chunk.
    """
    probs, target = native_array("probs", probs), native_array("target", target)
    mask = None if mask is None else native_array("mask", mask)
    batch = _is_batched(probs, target, num_classes, batched)
    soft = target.ndim == probs.ndim
    arrays = {"probs": probs, "target": target, "mask": mask, "group": group, "label": label}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    space = tuple(probs.shape[:1] + probs.shape[2:]) if batch else tuple(probs.shape[1:])
    _check_arrays(arrays, space, soft)
    checked = Inspector(num_classes)
    on_gpu = is_tensor(probs) and probs.device.type != "cpu"
    step = max((_CHUNK_GPU if on_gpu else BLOCK_VALUES) // num_classes, 1)
    volumes = [arrays]
    if batch:
        volumes = [{n: array[i] for n, array in arrays.items()} for i in range(len(probs))]
    for volume in volumes:
        order = in_memory_order(volume["probs"])
        volume = {name: permute(array, order) for name, array in volume.items()}
        for cut in iter_blocks(tuple(volume["probs"].shape[1:]), step):
            block = {name: take_block(array, cut, len(order)) for name, array in volume.items()}
            block = (_on_gpu if on_gpu else _on_cpu)(block)
            block = _keep_counted(block, None if soft else ignore_index)
            if block["probs"].shape[1]:
                checked.check(block["probs"], block["target"])
                yield Chunk(**block)
    if seen is not None:
        seen.merge(checked)
        if mask is None:
            seen.warn_of_second_softmax()


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
