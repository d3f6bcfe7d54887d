"""Finding the files of a source."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from segcal.core.errors import PathError
from segcal.data.formats import SUPPORTED
from segcal.data.sources.base import SourceCase

T = TypeVar("T")

_SPELLINGS = (".nii.gz", ".nii", ".NII.GZ", ".NII", ".nii.GZ")
UNSUPPORTED = ("is not an image of a supported format", f"supported are {SUPPORTED}")


def require_nifti(folder: Path, name: str, what: str) -> Path:
    """The one file NAME.nii.gz or NAME.nii in `folder`; a PathError if there is none or several."""
    found = [p for ending in _SPELLINGS if (p := folder / f"{name}{ending}").is_file()]
    for other in found[1:]:
        # On a case-insensitive file system two spellings are one file.
        if not found[0].samefile(other):
            raise PathError(other, f"is a second file named {name}", "keep one file per case")
    if found:
        return found[0]
    remedy = "complete the download or remove the case"
    raise PathError(folder / f"{name}.nii.gz", f"is missing ({what})", remedy)


def collect(
    items: Iterable[T], find: Callable[[T], list[SourceCase]]
) -> Iterator[SourceCase | PathError]:
    """The cases that `find` returns for each item, or the PathError that it raises."""
    for item in items:
        try:
            yield from find(item)
        except PathError as problem:
            yield problem
