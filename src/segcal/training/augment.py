"""Augmentation: MONAI's dictionary transforms by name, applied on the device of the batch.

The random numbers of an item depend only on seed, epoch, step and its position in the global batch.
So a resumed run, or one on several processes, draws the same numbers, and no state is saved.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.config import Named
from segcal.core.checks import check_choice
from segcal.data import Batch

_MODULES = ("spatial", "intensity")


class Augmentation:
    """Applies the transforms to every item of a batch.

    Spatial transforms change image and label, other transforms only the image. If a transform
    has an interpolation `mode`, images are interpolated linearly, labels by nearest neighbor.
    """

    def __init__(self, transforms: Sequence[Named], seed: int) -> None:
        self.seed = seed
        self.names = [named.name for named in transforms]
        self.transforms = [_make(named) for named in transforms]

    def __call__(self, batch: Batch, epoch: int, step: int, first: int) -> Batch:
        """`first` is the position of the batch's first item in the global batch."""
        images, targets = [], []
        for index, (image, target) in enumerate(zip(batch.image, batch.target, strict=True)):
            image, target = self._apply(image, target, [self.seed, epoch, step, first + index])
            images.append(image)
            targets.append(target)
        return Batch(torch.stack(images), torch.stack(targets), batch.case)

    def _apply(self, image: Tensor, target: Tensor, key: list[int]) -> tuple[Tensor, Tensor]:
        soft = target.is_floating_point()  # (K, *S)
        item: dict[str, Any] = {"image": image, "label": target if soft else target[None]}
        for number, (name, transform) in enumerate(zip(self.names, self.transforms, strict=True)):
            if hasattr(transform, "set_random_state"):
                seed = int(np.random.SeedSequence([*key, number]).generate_state(1)[0])
                transform.set_random_state(seed=seed)
            item = transform(item)
            if tuple(item["image"].shape) != tuple(image.shape):
                raise ValueError(
                    f"Expected transform {name} to keep the image's shape {tuple(image.shape)}, "
                    f"but got {tuple(item['image'].shape)}."
                )
        label = _plain(item["label"]).to(target.dtype)
        return _plain(item["image"]).to(image.dtype), label if soft else label[0]


def _plain(tensor: Any) -> Tensor:
    """MONAI returns its own subclass of tensors, which is slower."""
    result: Tensor = tensor.as_tensor() if hasattr(tensor, "as_tensor") else tensor
    return result


def _make(named: Named) -> Callable[[dict[str, Any]], dict[str, Any]]:
    modules = [importlib.import_module(f"monai.transforms.{m}.dictionary") for m in _MODULES]
    known = {name: module for module in modules for name in module.__all__ if name.endswith("d")}
    check_choice("augment", named.name, sorted(known))
    make = getattr(known[named.name], named.name)
    arguments = inspect.signature(make).parameters
    spatial = known[named.name].__name__.split(".")[-2] == "spatial"
    options: dict[str, Any] = {"keys": ["image", "label"] if spatial else ["image"]}
    if spatial and "mode" in arguments:
        options["mode"] = ["bilinear", "nearest"]
    try:
        transform: Callable[[dict[str, Any]], dict[str, Any]] = make(**options | named.options)
    except TypeError as error:
        raise ValueError(
            f"Expected options of {named.name} to be among {', '.join(arguments)}, "
            f"but got {named.options}: {error}"
        ) from error
    return transform
