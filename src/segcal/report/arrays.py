"""Arrays of a run's .npz files; a damaged file is one clear line that says what to do."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# All that numpy and zipfile raise at files that are cut off, overwritten or of another kind.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error,
            NotImplementedError)  # fmt: skip


@contextmanager
def open_arrays(path: Path, what: str) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """The arrays of a file; reading a damaged one, here or in the block, is a ValueError."""
    try:
        # Asked first: what numpy says of other files is advice on pickles, which are never loaded.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is cut off or no .npz file")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"Expected {path} to hold {what}, but got: {reason}; copy it again, evaluate its run "
            "again, or remove it to report without."
        ) from error
