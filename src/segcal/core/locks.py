"""A lock on a folder, held by one process at a time."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.core.errors import PARTIAL, PathError, write_errors
from segcal.core.files import remove_drafts

LOCK = ".lock"
# A process that is being killed may hold its lock for a moment.
_PATIENCE_S = 2.0


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Make `folder` if needed and hold its lock; a PathError names the process that holds it.

    The operating system releases the lock when the process ends, however it ends.
    """
    from filelock import FileLock, Timeout

    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    lock = FileLock(path, timeout=_PATIENCE_S)
    with write_errors(folder):
        try:
            lock.acquire()
        except Timeout as error:  # an OSError too
            remedy = "wait for it, or choose another --out"
            raise PathError(folder, f"is in use by {_holder(path)}", remedy) from error
    try:
        with suppress(OSError):  # Windows does not allow writing into a locked file
            path.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        remove_drafts(folder)
        yield
    finally:
        lock.release()


def holds_work(folder: Path, marks: Sequence[str], what: str, *, resume: bool) -> bool:
    """Whether a command continues the work in `folder`; a PathError if it must not write there.

    Args:
        folder: the output folder.
        marks: files that every folder with such work has. The last one is written first of all
            and alone is no work yet.
        what: the work, for messages: "run".
        resume: whether the command may continue existing work.
    """
    if folder.is_file():
        raise PathError(folder, "is a file, not a folder", "choose another --out")
    paths = folder.iterdir() if folder.is_dir() else ()
    if all(p.name in (LOCK, marks[-1]) or p.name.startswith(PARTIAL) for p in paths):
        return False
    if not all((folder / name).is_file() for name in marks):
        raise PathError(folder, f"holds files but no {what}", "choose another --out")
    if not resume:
        remedy = "continue it with --resume, or choose another --out"
        raise PathError(folder, "is not empty", remedy)
    return True


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"
