"""Pickles of plain values and numeric arrays, read without executing code from the file.

A pickle is a program. Here it can call only what `_CALLS` lists, and nothing of numpy: arrays and
dtypes are objects of this module until their type, shape and size have been checked.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from segcal.core.documents import check_plain
from segcal.core.errors import PathError, read_errors

_MAX_BYTES = 256 * 2**20
REMEDY = "predict again with --save_probabilities, or delete the .pkl"
_NUMERIC = re.compile(r"[<>|=]?([biufc])(1|2|4|8|16|32)")


class ForbiddenError(pickle.UnpicklingError):
    """The pickle contains more than plain values."""


def read_restricted_pickle(path: Path) -> Any:
    """The value of a pickle of plain containers, numbers, text and numeric arrays.

    Arrays are returned as objects that `np.asarray` accepts.
    """
    with read_errors(path):
        if path.stat().st_size > _MAX_BYTES:
            raise PathError(path, "is too large for a properties file", REMEDY)
        data = path.read_bytes()
    try:
        content = _RestrictedUnpickler(io.BytesIO(data)).load()
        check_plain(content)
        return content
    except ForbiddenError as error:
        raise PathError(path, f"contains more than plain values ({error})", REMEDY) from error
    except Exception as error:
        # A damaged pickle may raise any exception.
        raise PathError(path, f"is damaged ({type(error).__name__})", REMEDY) from error


class _DType:
    """A numeric dtype by its name; its state may set the byte order only."""

    __slots__ = ("found",)

    def __init__(self, name: Any, *_: Any) -> None:
        if not isinstance(name, str) or _NUMERIC.fullmatch(name) is None:
            raise ForbiddenError(f"an array of {str(name)[:20]!r}")
        self.found = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest[:3]):
            raise ForbiddenError("an array of records")
        if order in ("<", ">"):
            self.found = self.found.newbyteorder(order)


class PlainArray:
    """An array of numbers in a pickle, built from bytes once its state has been checked."""

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
        raise ForbiddenError("an array of objects")
    if math.prod(shape) * dtype.found.itemsize != len(data):
        raise ForbiddenError("an array whose size differs from its shape")
    values: NDArray[Any] = np.frombuffer(data, dtype.found)
    return values.reshape(shape, order="F" if order == "F" else "C")


def _array(kind: Any, shape: Any, code: Any) -> PlainArray:
    """What numpy calls first for an array: `_reconstruct(ndarray, (0,), b"b")`."""
    if kind is not _CALLS["numpy", "ndarray"] or shape != (0,) or code not in (b"b", "b"):
        raise ForbiddenError("an array of another kind")
    return PlainArray()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> PlainArray:
    out = PlainArray()
    out._array = _numbers(data, dtype, shape, str(order))
    return out


def _scalar(dtype: Any, data: Any) -> Any:
    return _numbers(data, dtype, (1,), "C")[0].item()


def _forbidden(*_: Any) -> Any:
    raise ForbiddenError("a call of ndarray")


def _encode(text: Any, encoding: Any) -> bytes:
    """What old pickle protocols call to create bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise ForbiddenError("_codecs.encode")
    return text.encode("latin1")


def _ordered(*pairs: Any) -> OrderedDict[Any, Any]:
    if pairs:
        raise ForbiddenError("an OrderedDict of another kind")
    return OrderedDict()


class _Call:
    """Something a pickle may call; unlike a function, its attributes cannot be changed."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ForbiddenError("a change of a function")


_CALLS: dict[tuple[str, str], _Call] = {
    ("collections", "OrderedDict"): _Call(_ordered),
    ("numpy", "ndarray"): _Call(_forbidden),
    ("numpy", "dtype"): _Call(_DType),
    ("_codecs", "encode"): _Call(_encode),
}
for _core in ("numpy.core", "numpy._core"):  # the name before and since numpy 2
    _CALLS[f"{_core}.multiarray", "_reconstruct"] = _Call(_array)
    _CALLS[f"{_core}.multiarray", "scalar"] = _Call(_scalar)
    _CALLS[f"{_core}.numeric", "_frombuffer"] = _Call(_from_buffer)


def _with_plain_keys(code: bytes, keys: slice) -> Callable[[Any], None]:
    """The instruction `code`, which fills a dict, for plain keys and tuples of these only.

    nnU-Net's keys are labels, and tuples of labels for regions. Hashing nested tuples that share
    their parts would take exponential time.
    """
    original = pickle._Unpickler.dispatch[code[0]]

    def load(unpickler: Any) -> None:
        for key in unpickler.stack[keys]:
            parts = key if isinstance(key, tuple) else (key,)
            if not all(isinstance(part, str | int | float | bytes | None) for part in parts):
                raise ForbiddenError(f"a {type(key).__name__} as key")
        original(unpickler)

    return load


def _refuse(unpickler: Any) -> None:
    raise ForbiddenError("a set, or an extension")


class _RestrictedUnpickler(pickle._Unpickler):  # in Python: keys are checked before hashing
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.SETITEM[0]: _with_plain_keys(pickle.SETITEM, slice(-2, -1)),
        pickle.SETITEMS[0]: _with_plain_keys(pickle.SETITEMS, slice(0, None, 2)),
        pickle.DICT[0]: _with_plain_keys(pickle.DICT, slice(0, None, 2)),
        **dict.fromkeys((c[0] for c in (pickle.FROZENSET, pickle.ADDITEMS)), _refuse),
        **dict.fromkeys((c[0] for c in (pickle.EXT1, pickle.EXT2, pickle.EXT4)), _refuse),
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _CALLS[module, name]
        except KeyError:
            raise ForbiddenError(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise ForbiddenError("a reference")
