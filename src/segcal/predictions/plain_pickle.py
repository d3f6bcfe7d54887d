"""Pickles of plain values and numeric arrays, read without giving the file a say in anything.

A pickle is a program. Here it can call what is listed below and nothing else, and nothing of numpy:
arrays and dtypes are inert objects of this module until all that they claim was checked.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError

_MAX_BYTES = 256 * 2**20
_RERUN = "predict again with --save_probabilities, or delete the .pkl"
_NUMERIC = re.compile(r"[<>|=]?([biufc])(1|2|4|8|16|32)")


class NotPlainError(pickle.UnpicklingError):
    """The pickle asks for more than plain values."""


def read_plain_pickle(path: Path) -> Any:
    """The value of a pickle made of plain containers, numbers, text and numeric arrays.

    Arrays come as objects that `np.asarray` takes.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise PathError(path, "is too large for a properties file", _RERUN)
        data = path.read_bytes()
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror})", "check the path") from error
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except NotPlainError as error:
        raise PathError(path, f"holds more than plain values ({error})", _RERUN) from error
    except Exception as error:
        # A damaged pickle may raise anything; all of it means the same to the user.
        raise PathError(path, f"is damaged ({type(error).__name__})", _RERUN) from error


class _DType:
    """A number type by its name; the state may say the byte order and nothing else."""

    __slots__ = ("found",)

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or _NUMERIC.fullmatch(name) is None:
            raise NotPlainError(f"an array of {str(name)[:20]!r}")
        self.found = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
            raise NotPlainError("an array of records")
        if order in ("<", ">"):
            self.found = self.found.newbyteorder(order)


class PlainArray:
    """An array of numbers in a pickle: bytes, and what they mean once it was checked."""

    __slots__ = ("_array",)

    def __init__(self) -> None:
        self._array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self._array = _numbers(data, dtype, shape, "F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._array, dtype=dtype)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array.tolist())


def _numbers(data: Any, dtype: Any, shape: Any, order: str) -> NDArray[Any]:
    plain = isinstance(data, bytes | bytearray) and isinstance(dtype, _DType)
    sides = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not plain or not sides or order not in ("C", "F") or len(shape) > 8:
        raise NotPlainError("an array of objects")
    if math.prod(shape) * dtype.found.itemsize != len(data):
        raise NotPlainError("an array of another size than it says")
    values: NDArray[Any] = np.frombuffer(data, dtype.found)
    return values.reshape(shape, order="F" if order == "F" else "C")


def _array(kind: Any, shape: Any, code: Any) -> PlainArray:
    """numpy's way to begin an array: `_reconstruct(ndarray, (0,), b"b")`."""
    if kind is not _CALLS["numpy", "ndarray"] or shape != (0,) or code not in (b"b", "b"):
        raise NotPlainError("an array that is not plain")
    return PlainArray()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> PlainArray:
    out = PlainArray()
    out._array = _numbers(data, dtype, shape, str(order))
    return out


def _scalar(dtype: Any, data: Any) -> Any:
    return _numbers(data, dtype, (1,), "C")[0].item()


def _refuse(*_: Any) -> Any:
    raise NotPlainError("a call of ndarray")


def _encode(text: Any, encoding: Any) -> bytes:
    """What old pickles call to make bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise NotPlainError("_codecs.encode")
    return text.encode("latin1")


class _Call:
    """Something a pickle may call; unlike a function it cannot be given other attributes."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise NotPlainError("a change of what it calls")


_CALLS: dict[tuple[str, str], _Call] = {
    ("collections", "OrderedDict"): _Call(OrderedDict),
    ("numpy", "ndarray"): _Call(_refuse),
    ("numpy", "dtype"): _Call(_DType),
    ("_codecs", "encode"): _Call(_encode),
}
for _core in ("numpy.core", "numpy._core"):  # numpy moved it; files of both kinds are about
    _CALLS[f"{_core}.multiarray", "_reconstruct"] = _Call(_array)
    _CALLS[f"{_core}.multiarray", "scalar"] = _Call(_scalar)
    _CALLS[f"{_core}.numeric", "_frombuffer"] = _Call(_from_buffer)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CALLS[module, name]
        except KeyError:
            raise NotPlainError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainError("a reference")
