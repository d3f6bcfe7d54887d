"""A network by name: the paper's U-Net, or any of MONAI's."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.core.checks import check_choice, check_int
from segcal.models.unet import UNet

# Names of segcal's own networks; "monai.<Class>" is any network of monai.networks.nets.
MODELS: dict[str, Callable[..., nn.Module]] = {"unet": UNet}
_MONAI = "monai."
# Those listed to someone who does not ask for MONAI; there are dozens.
_FROM_MONAI = ("monai.BasicUNet", "monai.SegResNet", "monai.DynUNet")
# What MONAI's classes call the three numbers that come with the data.
_ALIASES = {
    "spatial_dims": ("spatial_dims", "dimensions"),
    "in_channels": ("in_channels", "in_chns"),
    "out_channels": ("out_channels", "num_classes"),
}


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again; a checkpoint carries it.

    Args:
        name: a key of `MODELS`, or "monai." and the name of a class of `monai.networks.nets`.
        spatial_dims: 2 for slices, 3 for volumes.
        in_channels: channels of the image.
        num_classes: K, background included.
        options: further arguments of the network's class.
        divisible_by: images are padded with 0 at their far ends to sides divisible by this, and
            the logits cropped back. None asks the network (32 for the paper's U-Net) and is 1 for
            MONAI's, which do not say.
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
    """A network that takes images of any size: (B, C, *S) → logits (B, K, *S).

    In training mode a network with deep supervision gives a tuple: the logits first, then those
    of its coarser heads, all at full size.
    """

    def __init__(self, net: nn.Module, divisible_by: int) -> None:
        super().__init__()
        self.net = net
        self.divisible_by = check_int("divisible_by", divisible_by, low=1)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, ...]:
        space = image.shape[2:]
        missing = [-side % self.divisible_by for side in space]
        if any(missing):
            image = F.pad(image, [pad for side in missing[::-1] for pad in (0, side)])
        out = self.net(image)
        heads = _heads(out, image.ndim)
        if any(missing):
            inside = (slice(None), slice(None), *(slice(side) for side in space))
            heads = tuple(head[inside].contiguous() for head in heads)
        return heads if len(heads) > 1 else heads[0]


def _heads(out: Any, ndim: int) -> tuple[Tensor, ...]:
    """MONAI stacks the heads of deep supervision on axis 1, or gives a list of them."""
    if isinstance(out, Tensor):
        return tuple(out.unbind(1)) if out.ndim == ndim + 1 else (out,)
    return tuple(out)


def make_model(spec: NetworkSpec) -> SegmentationNetwork:
    """The network of that description, with fresh weights.

    Example:
        >>> model = make_model(NetworkSpec("unet", spatial_dims=2, in_channels=1, num_classes=4))
        >>> model(torch.zeros(1, 1, 40, 40)).shape  # padded to 64 × 64 and cropped
        torch.Size([1, 4, 40, 40])
    """
    make, arguments = _find(spec)
    try:
        net = make(**arguments, **spec.options)
    except TypeError as error:
        taken = sorted(set(inspect.signature(make).parameters) - set(arguments))
        raise ValueError(
            f"Expected `model.options` to be arguments of {spec.name} ({', '.join(taken)}), "
            f"but got {dict(spec.options)}: {error}"
        ) from error
    divisible_by = spec.divisible_by or int(getattr(net, "divisible_by", 1))
    return SegmentationNetwork(net, divisible_by)


def check_model(model: nn.Module, spec: NetworkSpec, size: tuple[int, ...]) -> None:
    """Raise a ValueError unless `model` gives logits (1, K, *size) for an image of that size."""
    device = next(model.parameters()).device
    image = torch.zeros(1, spec.in_channels, *size, device=device)
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
            f"Expected network {spec.name} to take images of {_sides(size)}, but it failed "
            f"({reason}); set `model.divisible_by` (for example 32), or change the image size."
        ) from error
    finally:
        model.train(was_training)
    wanted = (1, spec.num_classes, *size)
    if shape != wanted:
        raise ValueError(
            f"Expected network {spec.name} to give logits {wanted} for images of {_sides(size)}, "
            f"but got {shape}; see `model.options`."
        )


def _sides(size: tuple[int, ...]) -> str:
    return " × ".join(map(str, size))


def _find(spec: NetworkSpec) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """The class of that name, and those of its arguments that come with the data."""
    told = {
        "spatial_dims": spec.spatial_dims,
        "in_channels": spec.in_channels,
        "out_channels": spec.num_classes,
    }
    if not spec.name.startswith(_MONAI):
        check_choice("model.name", spec.name, [*MODELS, *_FROM_MONAI])
        if spec.name in MODELS:
            return MODELS[spec.name], told
    nets = importlib.import_module("monai.networks.nets")
    names = [f"{_MONAI}{name}" for name in dir(nets) if _segments(getattr(nets, name))]
    check_choice("model.name", spec.name, [*MODELS, *names])
    make: Callable[..., nn.Module] = getattr(nets, spec.name.removeprefix(_MONAI))
    taken = inspect.signature(make).parameters
    arguments = {
        alias: value
        for meaning, value in told.items()
        for alias in _ALIASES[meaning]
        if alias in taken and alias not in spec.options
    }
    return make, arguments


def _segments(found: object) -> bool:
    """Whether this is a network class that can be told how many channels come in and go out."""
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        return False
    taken = inspect.signature(found).parameters
    return all(
        any(alias in taken for alias in _ALIASES[meaning])
        for meaning in ("in_channels", "out_channels")
    )


def count_parameters(model: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
