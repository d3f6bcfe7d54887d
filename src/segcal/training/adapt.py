"""Choose the settings that depend on the data: dimension, patch, network, batch, sampling.

The rules for patches, strides and kernels follow nnU-Net (Isensee et al., 2021).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segcal.config import TrainConfig
from segcal.core.text import count
from segcal.data import PreparedDataset
from segcal.training.batched_augment import ANISOTROPIC
from segcal.training.device import choose_accelerator

# A level is not pooled along axes shorter than twice this.
_COARSEST = 4
_MAX_LEVELS = 6
_FIRST_FILTERS, _MAX_FILTERS = 32, {2: 512, 3: 320}
# Volumes with fewer slices are trained as slices.
_MIN_SLICES = 8
_MAX_BATCH = 16
# Voxels of a batch: on a large GPU, and on the CPU.
_VOXELS = {"2d": 1 << 22, "3d": 5 << 19}
_VOXELS_ON_CPU = 1 << 20
# Memory of a training step for each voxel of the batch in bytes, estimated from the sizes of the
# features in fp32, not measured.
_BYTES_PER_VOXEL = 3000
# The longest warm-up, as a share of the epochs.
_WARMUP = 0.1


def adapt(
    config: TrainConfig, dataset: PreparedDataset, given: Mapping[str, Any], processes: int
) -> tuple[dict[str, Any], list[str]]:
    """Settings for this data set, as nested content, and one sentence for each choice.

    `given` holds the user's own settings; those are respected by the choices that depend on them.
    """
    cases = dataset.part("train", config.data.fold)
    shapes = np.array([case.shape for case in cases])
    spacing = np.median([case.spacing_mm for case in cases], axis=0)
    own = given.get("data", {})
    mode, why = _choose_mode(config, own, shapes, spacing)
    data: dict[str, Any] = {"mode": mode}
    reasons = [f"{mode[0]}-D, {why}"]
    budget = _voxel_budget(config, mode)

    if mode == "3d":
        patch = own.get("patch_size") or choose_patch(
            np.median(shapes, axis=0).tolist(), spacing.tolist(), budget
        )
        size, steps_mm = tuple(patch), tuple(spacing)
        data |= {"patch_size": list(size), **_sampling(cases, dataset.classes, reasons)}
        if choose_accelerator(config.device) == "cuda":
            data["workers"] = min(4, os.cpu_count() or 1)  # patches are read from disk
    else:
        same = len(np.unique(shapes[:, 1:], axis=0)) == 1
        median = [int(-(-side // 16) * 16) for side in np.median(shapes[:, 1:], axis=0)]
        size = own.get("size") or (tuple(shapes[0, 1:].tolist()) if same else tuple(median))
        steps_mm = tuple(spacing[1:])
        if not same:
            data["size"] = list(size)
    items = len(cases) * config.data.per_case if mode == "3d" else int(shapes[:, 0].sum())
    # At least four steps in an epoch, if there are enough items.
    limit = min(_MAX_BATCH, budget // math.prod(size), max(items // 4, 2))
    batch = max(limit // processes, 1) * processes
    sides = " × ".join(map(str, size))
    unit = "patches" if mode == "3d" else "slices"
    reasons.append(f"batches of {given.get('batch_size', batch)} {unit} of {sides}")

    chosen: dict[str, Any] = {"data": data, "batch_size": batch}
    if config.model.name == "norm_unet" and not config.model.options:
        chosen["model"] = {"options": choose_levels(size, steps_mm)}
        filters = chosen["model"]["options"]["filters"]
        reasons.append(f"network of {len(filters)} levels, {filters[0]} to {filters[-1]} channels")
    # A short training would otherwise end before its learning rate has risen.
    warmup = min(config.optimizer.warmup, round(_WARMUP * config.epochs))
    if warmup < config.optimizer.warmup and "warmup" not in given.get("optimizer", {}):
        chosen["optimizer"] = {"warmup": warmup}
        reasons.append(f"warm-up of {count(warmup, 'epoch')}, a tenth of all")
    if mode == "3d" and "augment" not in given:
        relative = [round(float(step / spacing.min()), 2) for step in spacing]
        chosen["augment"] = [
            one.model_dump() | ({"options": {**one.options, "spacing": relative}})
            if one.name == "batched" else one.model_dump()
            for one in config.augment
        ]  # fmt: skip
    return chosen, reasons


def _choose_mode(
    config: TrainConfig,
    own: Mapping[str, Any],
    shapes: NDArray[np.integer],
    spacing: NDArray[np.floating],
) -> tuple[str, str]:
    """Slices or volumes, and why."""
    if own.keys() & {"mode", "size"}:
        return config.data.mode, "as requested"
    if int(np.median(shapes[:, 0])) < _MIN_SLICES:
        return "2d", f"because volumes have fewer than {_MIN_SLICES} slices"
    ratio = spacing[0] / spacing[1:].min()
    why = f"because slices are {ratio:.1f} times as thick as pixels"
    return ("2d" if ratio >= ANISOTROPIC else "3d"), why


def choose_patch(shape: Sequence[float], spacing: Sequence[float], budget: int) -> tuple[int, ...]:
    """The largest patch that fits into half the budget: a cube in millimeters, cut to the shape.

    Sides are multiples of 8, or the whole axis rounded up.
    """
    limits = [int(-(-side // 8) * 8) for side in shape]
    for length in np.geomspace(max(s * p for s, p in zip(limits, spacing, strict=True)), 1, 200):
        sides = [
            min(limit, max(8, int(length / step / 8) * 8))
            for limit, step in zip(limits, spacing, strict=True)
        ]
        if 2 * math.prod(sides) <= budget:
            break
    return tuple(sides)


def choose_levels(size: Sequence[int], spacing: Sequence[float]) -> dict[str, Any]:
    """`filters`, `strides` and `kernels` of the network for images of this size.

    An axis is halved while at least 4 voxels remain, but not before finer axes have come near its
    spacing; until then, kernels do not extend along it.

    Example:
        >>> choose_levels((16, 64, 64), (4.0, 1.0, 1.0))["strides"]
        [[1, 2, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]]
    """
    sides, steps = list(size), list(spacing)
    strides: list[list[int]] = []
    kernels = [[3 if step < 2 * min(steps) else 1 for step in steps]]
    while len(strides) < _MAX_LEVELS - 1:
        free = [axis for axis, side in enumerate(sides) if side >= 2 * _COARSEST]
        if not free:
            break
        finest = min(steps[axis] for axis in free)
        stride = [
            2 if axis in free and steps[axis] < 2 * finest else 1 for axis in range(len(sides))
        ]
        sides = [-(-side // factor) for side, factor in zip(sides, stride, strict=True)]
        steps = [step * factor for step, factor in zip(steps, stride, strict=True)]
        strides.append(stride)
        kernels.append([
            3 if before == 3 or step < 2 * min(steps) else 1
            for before, step in zip(kernels[-1], steps, strict=True)
        ])  # fmt: skip
    top = _MAX_FILTERS[len(size)]
    filters = [min(_FIRST_FILTERS * 2**level, top) for level in range(len(kernels))]
    return {"filters": filters, "strides": strides, "kernels": kernels}


def _voxel_budget(config: TrainConfig, mode: str) -> int:
    """Voxels of a batch. By the total memory, which is equal for all processes of a run."""
    if choose_accelerator(config.device) != "cuda":
        return _VOXELS_ON_CPU
    memory = torch.cuda.get_device_properties(0).total_memory
    return min(_VOXELS[mode], memory // 2 // _BYTES_PER_VOXEL)


def _sampling(
    cases: Sequence[Any], classes: Mapping[int, str], reasons: list[str]
) -> dict[str, float]:
    """The share of patches centered on a structure: larger if a class is rare."""
    total = sum(math.prod(case.shape) for case in cases)
    counts = {
        label: sum(case.properties.voxels.get(label, 0) for case in cases)
        for label in classes if label > 0
    }  # fmt: skip
    rarest = min(counts, key=lambda label: counts[label])
    share = counts[rarest] / total
    foreground = 0.33 if share >= 0.01 else 0.5 if share >= 0.001 else 0.67
    reasons.append(
        f"{foreground:.0%} of patches centered on a structure, because the rarest one "
        f"({classes[rarest]}) has {share:.2%} of the voxels"
    )
    return {"foreground": foreground}
