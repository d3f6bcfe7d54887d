"""Finding the NIfTI files of a source."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from segcal.core.errors import PathError, list_folder
from segcal.data.sources.base import SourceCase

T = TypeVar("T")

_ENDINGS = (".nii.gz", ".nii")
_SPELLINGS = (".nii.gz", ".nii", ".NII.GZ", ".NII", ".nii.GZ")


def nifti_name(path: Path) -> str | None:
    """File name without .nii or .nii.gz (in any case); None if it is not a NIfTI file."""
    for ending in _ENDINGS:
        if path.name.lower().endswith(ending) and len(path.name) > len(ending):
            return path.name[: -len(ending)]
    return None


def require_nifti_name(path: Path) -> str:
    """`nifti_name`, or a PathError if the file is not a NIfTI file."""
    name = nifti_name(path)
    if name is None:
        raise PathError(path, "is not a .nii or .nii.gz file", "convert it or remove it")
    return name


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


def labels_without_image(folder: Path, names: Iterable[str]) -> Iterator[PathError]:
    """A PathError for each label map whose name is not one of the images' `names`."""
    known = set(names)
    for path in list_folder(folder):
        if (name := nifti_name(path)) and name not in known:
            yield PathError(path, "has no image of that name", "complete the download or remove it")
