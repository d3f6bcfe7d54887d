"""Argument checks that all packages share."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from segcal.core.text import first_few

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

# Packages that are not in the base installation, and the extra that installs each.
_APP = (
    "blosc2", "filelock", "jinja2", "lightning_fabric", "matplotlib", "monai", "nibabel", "pandas",
    "pydantic", "rich", "typer", "yaml",
)  # fmt: skip
_EXTRA_OF = {
    **dict.fromkeys(_APP, "app"),
    "SimpleITK": "dicom",
    "h5py": "h5",
    "nnunetv2": "nnunet",
    "ray": "ray",
    "tensorboard": "tensorboard",
}


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError that lists the choices and the nearest one unless `value` is a choice."""
    allowed = list(choices)
    if isinstance(value, str) and value in allowed:
        return
    raise ValueError(
        f"Expected argument `{name}` to be one of {', '.join(map(repr, allowed))}, "
        f"but got {value!r}.{did_you_mean(value, allowed)}"
    )


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """The end of a message that proposes the nearest known name; empty if none is near.

    Example:
        >>> did_you_mean("nalc", ["nacl", "ce"])
        " Did you mean 'nacl'?"
        >>> did_you_mean("temp", ["temperature"])
        " Did you mean 'temperature'?"
    """
    names, text = list(known), str(value)
    near = get_close_matches(text, names, n=1) or [n for n in names if text and n.startswith(text)]
    return f" Did you mean {near[0]!r}?" if near else ""


def check_options(owner: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise a ValueError for the first option that `owner`, such as "loss 'ce'", does not have."""
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            names = ", ".join(known) or "none"
            raise ValueError(f"{owner} has no option {option!r}.{hint} Options: {names}.")


def check_number(
    name: str,
    value: object,
    *,
    low: float | None = None,
    high: float | None = None,
    open_low: bool = False,
) -> float:
    """Return `value` as a float if it is a finite number in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"Expected argument `{name}` to be a number, but got {value!r}.")
    number = float(value)
    too_low = low is not None and (number <= low if open_low else number < low)
    too_high = high is not None and number > high
    finite = -math.inf < number < math.inf  # math.isfinite would stop torch.compile
    if not finite or too_low or too_high:
        bounds = [f"{'above' if open_low else 'at least'} {low}"] if low is not None else []
        bounds += [f"at most {high}"] if high is not None else []
        raise ValueError(
            f"Expected argument `{name}` to be a finite number {' and '.join(bounds)}".rstrip()
            + f", but got {value!r}."
        )
    return number


def check_int(name: str, value: object, *, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int if it is a whole number (numpy's too) in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"Expected argument `{name}` to be an integer, but got {value!r}.")
    number = int(value)
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = [f"at least {low}"] if low is not None else []
        bounds += [f"at most {high}"] if high is not None else []
        raise ValueError(
            f"Expected argument `{name}` to be an integer {' and '.join(bounds)}, "
            f"but got {value!r}."
        )
    return number


def per_axis(name: str, value: T | Sequence[T], axes: int) -> tuple[T, ...]:
    """One value for every axis, or a sequence with one per axis, as a tuple of length `axes`."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != axes:
            raise ValueError(
                f"Expected argument `{name}` to be one value or {axes} (one per spatial axis), "
                f"but got {tuple(value)}."
            )
        return tuple(value)
    return (value,) * axes


def require(module: str) -> ModuleType:
    """Import an optional module; an ImportError names the pip command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_package(module) from error


def require_app(package: str) -> None:
    """Raise an ImportError with the pip command unless the packages of the extra `app` exist."""
    for module in _APP:
        if importlib.util.find_spec(module) is None:
            raise missing_package(module, package)


def missing_package(module: str, needed_by: str = "this") -> ImportError:
    """The error for a package that is not installed, with the pip command that installs it."""
    top = module.split(".")[0]
    extra = _EXTRA_OF.get(top)
    package = f"'segcal[{extra}]'" if extra else top
    return ImportError(f"{needed_by} needs the package {top!r}: pip install {package}", name=top)


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether reading the values of `tensor` is cheap.

    On a GPU reading waits for all queued work, so it happens only if SEGCAL_CHECK_LABELS is 1.
    While torch.compile traces there are no values.
    """
    import torch

    if torch.compiler.is_compiling():
        return False
    return tensor.device.type == "cpu" or os.environ.get("SEGCAL_CHECK_LABELS", "0") != "0"


def check_labels(name: str, labels: Tensor, num_classes: int, ignore_index: int | None) -> bool:
    """Raise if a label is neither in 0..K−1 nor `ignore_index`; return whether any is ignored.

    If the values are not read (see `values_can_be_read`), nothing is raised, and the answer is
    whether a label could be ignored.
    """
    if not values_can_be_read(labels):
        return ignore_index is not None
    labels = labels.long()  # so that a negative `ignore_index` does not wrap in an unsigned type
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= num_classes:
        invalid = labels[(labels < 0) | (labels >= num_classes)]
        invalid = invalid[invalid != ignore_index] if ignore_index is not None else invalid
        if invalid.numel():
            found = invalid.unique().tolist()  # type: ignore[no-untyped-call]
            ignored = f" or {ignore_index} (ignored)" if ignore_index is not None else ""
            raise ValueError(
                f"Expected argument `{name}` to hold labels 0 to {num_classes - 1}{ignored}, "
                f"but got {first_few(found, 5)}."
            )
    return ignore_index is not None and low <= ignore_index <= high


def check_soft_labels(name: str, soft: Tensor, num_classes: int) -> Tensor | None:
    """Raise if soft labels (B, K, *S) lack a class, are negative, or do not sum to 1 over K.

    A pixel whose K values are all 0 is ignored. Returns where pixels count, (B, *S), or None if
    all do. If the values are not read (see `values_can_be_read`), nothing is raised.
    """
    if soft.shape[1] != num_classes:
        raise ValueError(
            f"Expected argument `{name}` to be soft labels with {num_classes} classes on axis 1, "
            f"but got shape {tuple(soft.shape)}."
        )
    counted = (soft != 0).any(1)  # NaN counts: it must not be ignored
    if not values_can_be_read(soft):
        return counted
    half = soft.is_floating_point() and soft.element_size() == 2
    soft = soft.detach().float()
    off = float((soft.sum(1) - counted.float()).abs().max())
    low = float(soft.min())
    # Rounding to half precision alone moves a sum by about 1 %. Written so that NaN raises too.
    if not (off <= (2e-2 if half else 1e-3) and low >= -1e-6):
        raise ValueError(
            f"Expected argument `{name}` to be soft labels: not negative, summing to 1 over the "
            f"classes (or all 0 if ignored); but the smallest value is {low:.4g} and a sum is off "
            f"by {off:.4g}."
        )
    return None if counted.all() else counted
