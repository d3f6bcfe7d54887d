"""A lock on a folder, held by one process at a time."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.core.errors import PathError, write_errors
from segcal.core.files import remove_drafts

LOCK = ".lock"
# A process that is being killed may hold its lock for a moment.
_PATIENCE_S = 2.0


@contextmanager
def folder_lock(
    folder: Path, remedy: str = "wait for it, or choose another --out"
) -> Iterator[None]:
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
            raise PathError(folder, f"is in use by {_holder(path)}", remedy) from error
    try:
        with suppress(OSError):  # Windows does not allow writing into a locked file
            path.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        remove_drafts(folder)
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"
