"""What is wrong with a file, in one line that names it and says what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(ValueError):
    """A file or folder that cannot be used: "PATH: what is wrong; what to do"."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        # Three plain arguments survive pickling, so a worker's error arrives whole.
        super().__init__(path, problem, remedy)
        self.path, self.problem, self.remedy = Path(path), problem, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.remedy}"


class DiskFullError(DataError):
    """No space left where a prepared set is written. Skipping cases cannot help."""


_FULL = (errno.ENOSPC, errno.EDQUOT)


class LeakError(DataError):
    """Splits in which two parts share a patient or a scan."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write below `folder` into one line that names the folder."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DiskFullError(
                folder,
                f"the disk is full ({reason})",
                "free some space and run the same command again, or choose another --out",
            ) from error
        raise DataError(
            folder, f"cannot be written ({reason})", "check that the folder exists and is yours"
        ) from error


def list_folder(folder: Path, option: str = "--source") -> list[Path]:
    """Visible entries of `folder` in name order, or a DataError that names it and the option."""
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except FileNotFoundError as error:
        raise DataError(folder, "does not exist", f"check the path given to {option}") from error
    except NotADirectoryError as error:
        raise DataError(
            folder, "is a file, not a folder", "give the folder that holds the set"
        ) from error
    except OSError as error:
        raise DataError(
            folder,
            f"cannot be read ({error.strerror})",
            "check the folder's permissions or its disk",
        ) from error
