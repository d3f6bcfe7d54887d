"""Argument checks shared by every room. Knows nobody."""

import importlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

# Modules that a plain installation may lack, and the extra that brings each.
_EXTRA_OF = {"nnunetv2": "nnunet", "ray": "ray", "tensorboard": "tensorboard"}


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError that lists the choices, and names the nearest one, if `value` is none."""
    allowed = list(choices)
    if isinstance(value, str) and value in allowed:
        return
    near = get_close_matches(str(value), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(
        f"Expected argument `{name}` to be one of {', '.join(map(repr, allowed))}, "
        f"but got {value!r}.{hint}"
    )


def check_number(
    name: str,
    value: object,
    *,
    low: float | None = None,
    high: float | None = None,
    open_low: bool = False,
) -> float:
    """Return `value` as a float if it is a finite number in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"Expected argument `{name}` to be a number, but got {value!r}.")
    number = float(value)
    bounds = f"{'above' if open_low else 'at least'} {low}" if low is not None else ""
    if high is not None:
        bounds += f"{' and ' if bounds else ''}at most {high}"
    finite = number not in (float("inf"), float("-inf")) and number == number
    too_low = low is not None and (number <= low if open_low else number < low)
    too_high = high is not None and number > high
    if not finite or too_low or too_high:
        raise ValueError(
            f"Expected argument `{name}` to be a finite number{' ' if bounds else ''}{bounds}, "
            f"but got {value!r}."
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
    """Import an optional module, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.split(".")[0]
        extra = _EXTRA_OF.get(top)
        package = f"'segcal[{extra}]'" if extra else top
        raise ImportError(f"This needs the package {top!r}: pip install {package}") from error
