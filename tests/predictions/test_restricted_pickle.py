"""Properties files of nnU-Net, and pickles that try to execute code."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.softmax_files import (
    AFFINE,
    nnunet_properties,
)
from segcal.core.errors import PathError
from segcal.predictions.nnunet_geometry import (
    read_geometry,
)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(nnunet_properties(), protocol))
    found = read_geometry(path, (10, 16, 14))
    assert found.affine is not None
    np.testing.assert_allclose(found.affine, AFFINE, atol=1e-9)


class _Attack:
    def __reduce__(self) -> Any:
        return os.system, ("touch {}",)


@pytest.mark.parametrize(
    "content",
    [
        _Attack(),
        {"spacing": [1, 1, 1], "more": _Attack()},
        {"spacing": np.array([_Attack()], dtype=object)},
        {"spacing": Path("x")},
        {"spacing": [1, 1, 1], "f": eval},
    ],
    ids=["call", "nested", "object array", "a class", "a builtin"],
)
def test_pickles_that_execute_code_are_rejected(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(PathError, match="contains more than plain values"):
        read_geometry(path, (10, 16, 14))
    assert not ran


class _Call:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> Any:
        return self.call


class _State:
    """An object constructed by a call, with a state."""

    def __init__(self, call: Any, arguments: Any, state: Any) -> None:
        self.parts = call, arguments, state

    def __reduce__(self) -> Any:
        return self.parts


_RECONSTRUCT = np.zeros(1).__reduce__()[0]


_BUFFER = np.zeros(1).__reduce_ex__(5)[0]


@pytest.mark.parametrize(
    "content",
    [
        _Call(np.ndarray, (3,), "O", b"A" * 24),
        _Call(np.ndarray, (10**12,)),
        _Call(_RECONSTRUCT, np.ndarray, (10**12,), b"d"),
        _Call(_RECONSTRUCT, np.ndarray, (3,), b"O"),
        _Call(_BUFFER, b"A" * 24, np.dtype("O"), (3,), "C"),
        _Call(_BUFFER, b"A" * 24, np.dtype("f8"), (4,), "C"),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), np.dtype("O"), False, b"A" * 24)),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), np.dtype("f8"), False, [1, 2, 3])),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (9,), np.dtype("f8"), False, b"A" * 24)),
        # A float with the flags of a pointer.
        _State(np.dtype, ("f8", False, True), (3, "<", None, ("a",), {}, 8, 8, 63)),
        _State(np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 63)),
    ],
)
def test_forged_arrays_are_rejected(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps({"spacing": content}))
    with pytest.raises(PathError, match=r"contains more than plain values|is damaged"):
        read_geometry(path, (10, 16, 14))


def test_a_pickle_cannot_change_functions(tmp_path: Path) -> None:
    path = tmp_path / "case.pkl"
    # The global _codecs.encode, given a state.
    path.write_bytes(b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.")
    with pytest.raises(PathError, match="contains more than plain values"):
        read_geometry(path, (10, 16, 14))


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04]", pickle.dumps([1, 2])])
def test_damaged_pickles_are_rejected(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "case.pkl"
    path.write_bytes(data)
    with pytest.raises(PathError, match=r"is damaged|is not a properties file"):
        read_geometry(path, (10, 16, 14))
