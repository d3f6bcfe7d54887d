"""Networks by name or import path: segcal's U-Net, any network of MONAI, any `nn.Module`."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.core.checks import did_you_mean
from segcal.models.norm_unet import NormUNet
from segcal.models.unet import UNet
from segcal.registry import Registry


def _is_module_class(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, nn.Module)


NETWORKS: Registry[type[nn.Module]] = Registry(
    "network", "segcal.networks", _is_module_class, "a subclass of torch.nn.Module"
)
NETWORKS.register("unet", UNet)
NETWORKS.register("norm_unet", NormUNet)
# Every network of MONAI is found as "monai.NAME"; these are listed.
for _name, _about in (
    ("BasicUNet", "MONAI: a U-Net with a fixed depth of five levels."),
    (
        "SegResNet",
        "MONAI: a residual encoder and decoder (Myronenko, 2018), without its autoencoder.",
    ),
    ("DynUNet", "MONAI: the U-Net of nnU-Net; kernel sizes and strides are arguments."),
):
    NETWORKS.register(f"monai.{_name}", f"monai.networks.nets:{_name}", _about)

# Constructor arguments that are filled in from the data, by any of these names.
_FROM_DATA = {
    "spatial_dims": ("spatial_dims", "dimensions"),
    "in_channels": ("in_channels", "in_chns"),
    "num_classes": ("out_channels", "num_classes"),
}


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again; a checkpoint stores it.

    Args:
        name: a name in `NETWORKS`, "monai.NAME" for a class of `monai.networks.nets`, or the import
            path `package.module:Class` of an `nn.Module`.
        spatial_dims: 2 for slices, 3 for volumes.
        in_channels: channels of the image.
        num_classes: K, background included.
        options: further arguments of the class.
        divisible_by: images are zero-padded at the end of each axis to a multiple of this, and the
            logits are cropped back. None uses the network's attribute `divisible_by` (an integer,
            or one per axis; 32 for the paper's U-Net), or 1 if it has none.
    """

    name: str
    spatial_dims: int
    in_channels: int
    num_classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    divisible_by: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options)}


class SegmentationNetwork(nn.Module):
    """A network for images of any size: (B, C, *S) → logits (B, K, *S).

    In training mode a network with deep supervision returns a tuple: the logits, then those of its
    coarser heads, all at full size.
    """

    def __init__(self, net: nn.Module, divisible_by: int | Sequence[int]) -> None:
        super().__init__()
        self.net = net
        self.divisible_by = divisible_by

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        size, divisors = image.shape[2:], self.divisible_by
        if isinstance(divisors, int):
            divisors = [divisors] * len(size)
        missing = [-side % divisor for side, divisor in zip(size, divisors, strict=True)]
        if any(missing):
            image = F.pad(image, [pad for side in missing[::-1] for pad in (0, side)])
        heads = self.net(image)
        if isinstance(heads, Tensor):  # MONAI may stack the heads of deep supervision on axis 1
            heads = heads.unbind(1) if heads.ndim == image.ndim + 1 else (heads,)
        if any(missing):
            inside = (slice(None), slice(None), *(slice(side) for side in size))
            heads = [head[inside].contiguous() for head in heads]
        return tuple(heads) if len(heads) > 1 else heads[0]


def make_model(spec: NetworkSpec) -> SegmentationNetwork:
    """Build the network with new weights.

    The constructor gets those of `spatial_dims`, `in_channels` and `out_channels` (or
    `num_classes`) that it has arguments for, and `spec.options`.

    Example:
        >>> model = make_model(NetworkSpec("unet", spatial_dims=2, in_channels=1, num_classes=4))
        >>> model(torch.zeros(1, 1, 40, 40)).shape  # padded to 64 × 64 and cropped
        torch.Size([1, 4, 40, 40])
    """
    network = network_class(spec.name)
    known = inspect.signature(network).parameters
    values = {name: getattr(spec, fact) for fact, names in _FROM_DATA.items() for name in names}
    arguments = {name: value for name, value in values.items() if name in known}
    try:
        net = network(**arguments | dict(spec.options))
    except TypeError as error:
        free = sorted(set(known) - set(arguments))
        raise ValueError(
            f"Expected `model.options` to be arguments of {spec.name} ({', '.join(free)}), "
            f"but got {dict(spec.options)}: {error}"
        ) from error
    own: Any = getattr(net, "divisible_by", 1)
    return SegmentationNetwork(net, spec.divisible_by or own)


def network_class(name: str) -> type[nn.Module]:
    """The class with this name or import path; a ValueError names the nearest name."""
    if name.startswith("monai.") and ":" not in name:
        nets = importlib.import_module("monai.networks.nets")
        if name.removeprefix("monai.") not in dir(nets):
            hint = did_you_mean(name, [f"monai.{known}" for known in dir(nets)])
            raise ValueError(f"MONAI has no network named {name!r}.{hint}")
        name = f"monai.networks.nets:{name.removeprefix('monai.')}"
    try:
        return NETWORKS.get(name)
    except ValueError as error:
        hint = " Any network of MONAI works as monai.NAME." * (":" not in name)
        raise ValueError(f"{error}{hint}") from error


def check_model(model: nn.Module, spec: NetworkSpec, size: tuple[int, ...]) -> None:
    """Raise a ValueError unless `model` returns logits of the size of its image."""
    device = next(model.parameters()).device
    image = torch.zeros(1, spec.in_channels, *size, device=device)
    sides = " × ".join(map(str, size))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            shape = tuple(model(image).shape)
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AttributeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"network {spec.name} failed on an image of {sides} ({reason}); "
            "set `model.divisible_by` (for example 32), or change the image size"
        ) from error
    finally:
        model.train(was_training)
    expected = (1, spec.num_classes, *size)
    if shape != expected:
        raise ValueError(
            f"Expected network {spec.name} to return logits {expected} for an image of {sides}, "
            f"but got {shape}; see `model.options`."
        )


def count_parameters(model: nn.Module) -> int:
    """The number of trainable weights."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
