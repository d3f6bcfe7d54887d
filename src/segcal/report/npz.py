"""Arrays in the .npz files of a run."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segcal.core.errors import PathError

# What numpy and zipfile raise for files that are truncated, overwritten or of another format.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error,
            NotImplementedError)  # fmt: skip


@contextmanager
def open_npz(path: Path, content: str) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """The arrays of a file; a damaged file raises a PathError, here or while the block reads."""
    try:
        # numpy's own message about other files recommends pickles, which are never loaded here.
        if not zipfile.is_zipfile(path):
            raise ValueError("truncated, or not an .npz file")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PathError(
            path,
            f"cannot be read as {content} ({reason})",
            "copy it again, evaluate the run again, or remove it to report without it",
        ) from error
