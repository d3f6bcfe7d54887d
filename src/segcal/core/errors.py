"""Errors about files: one line that names the path, the problem and the remedy."""

import errno
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".partial-"
_DRAFT = re.compile(re.escape(PARTIAL) + r"\w+-\d+-")
_format_warning = warnings.formatwarning


class PathError(ValueError):
    """A file or folder that cannot be used: "PATH: problem; remedy".

    A draft has the path that it becomes.
    """

    def __init__(self, path: Path | str, problem: str, remedy: str = "") -> None:
        # Plain arguments survive pickling, so an error in a worker process arrives complete.
        super().__init__(path, problem, remedy)
        self.path = Path(*(_DRAFT.sub("", part) for part in Path(path).parts))
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" + (f"; {self.remedy}" if self.remedy else "")


def name_beside(path: Path, other: Path) -> str:
    """The name of a file in a message about `other`: its whole path if both have the same name."""
    return str(path) if path.name == other.name else path.name


def show_warnings_in_one_line() -> None:
    """Print a warning of segcal as "segcal: MESSAGE", without the code that issued it.

    With SEGCAL_DEBUG, warnings keep their location.
    """
    if os.environ.get("SEGCAL_DEBUG"):
        return
    package = f"{Path(__file__).parents[1]}{os.sep}"

    def one_line(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category is UserWarning and filename.startswith(package):
            return f"segcal: {message}\n"
        return _format_warning(message, category, filename, lineno, line)

    warnings.formatwarning = one_line


class DiskFullError(PathError):
    """No space left on the disk. Skipping cases does not help."""


class LeakError(PathError):
    """Splits in which two parts share a patient or a scan."""


def version_error(path: Path, version: object, known: int, again: str) -> PathError:
    """For a file of another format version than `known`; `again` is the remedy for an older one."""
    newer = isinstance(version, int) and version > known
    remedy = "it was written by a newer segcal: update segcal" if newer else again
    problem = f"has format version {version!r}, but this segcal reads {known}"
    return PathError(path, problem, remedy)


@contextmanager
def read_errors(path: Path, remedy: str = "check the path") -> Iterator[None]:
    """Turn an OSError inside the block into a PathError that names `path`."""
    try:
        yield
    except OSError as error:
        raise PathError(path, f"cannot be read ({error.strerror or error})", remedy) from error


_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a PathError that names `path`."""
    try:
        yield
    except PathError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DiskFullError(
                path,
                f"the disk is full ({reason})",
                "free some space and run the same command again, or choose another --out",
            ) from error
        raise PathError(
            path, f"cannot be written ({reason})", "check that the folder exists and is writable"
        ) from error


def list_folder(folder: Path, option: str = "--source") -> list[Path]:
    """Visible entries of `folder` in name order, or a PathError that names it and the option."""
    with read_errors(folder, "check the permissions of the folder"):
        if folder.is_file():
            remedy = f"give the folder that holds it to {option}"
            raise PathError(folder, "is a file, not a folder", remedy)
        if not folder.is_dir():
            raise PathError(folder, "does not exist", f"check the path given to {option}")
        return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
