"""Files and folders that are written completely or not at all, and hashes of files."""

import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.core.errors import PARTIAL, PathError, write_errors

_OLD = "old-"
_HOST = re.sub(r"\W", "", platform.node()) or "host"


def _draft_of(name: str) -> str:
    """The name of a draft tells who writes it."""
    return f"{PARTIAL}{_HOST}-{os.getpid()}-{name}"


@contextmanager
def atomic_path(path: Path, *, keep: Path | None = None, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path; it replaces `path` when the block succeeds and is removed otherwise.

    The caller writes a file or makes a folder there. A kill at any moment leaves the old content
    or the new one, never a mixture.

    Args:
        path: the final name.
        keep: if given, the file that `path` replaces is kept under this name.
        replace: whether a folder may replace an existing one that is not empty; if not, of two
            processes only the first succeeds.
    """
    partial = path.with_name(_draft_of(path.name))
    try:
        with write_errors(path):
            yield partial
            if partial.is_dir():
                _replace_folder(partial, path, replace)
            else:
                _flush(partial)
                if keep is not None and path.exists():
                    _link(path, keep)
                os.replace(partial, path)
            _flush(path.parent)
    finally:
        remove(partial)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_path(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with these files; it replaces an existing folder of that name."""
    with atomic_path(folder) as partial:
        partial.mkdir()
        for name, data in files.items():
            (partial / name).write_bytes(data)
            _flush(partial / name)


@contextmanager
def staged_files(folder: Path, *, last: str | None = None) -> Iterator[Path]:
    """Yield a folder to write into; its files move into `folder` when the block succeeds.

    The file named `last` describes the others: its old version is removed before they move, and
    the new one moves last.
    """
    new = not folder.exists()
    draft = folder / _draft_of("")
    try:
        with write_errors(folder):
            if not new:
                remove_drafts(folder)
            draft.mkdir(parents=True)
            yield draft
            if last is not None:
                (folder / last).unlink(missing_ok=True)
            for path in sorted(draft.iterdir(), key=lambda path: (path.name == last, path.name)):
                os.replace(path, folder / path.name)
            new = False
    finally:
        remove(draft)
        if new and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes of this machine left in `folder`.

    A folder that was moved aside to be replaced, and was not, gets its name back.
    """
    for path in folder.glob(f"{PARTIAL}{_HOST}-*"):
        number, _, name = path.name.removeprefix(f"{PARTIAL}{_HOST}-").partition("-")
        if not number.isdecimal() or _runs(int(number)):
            continue
        original = folder / name.removeprefix(_OLD)
        if name.startswith(_OLD) and not original.exists():
            os.rename(path, original)
        else:
            remove(path)


def make_parent(path: Path) -> None:
    """Make the folder of an output file, and remove drafts of killed processes from it."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(path.parent)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that only this user can read.

    It is removed at the end; what killed processes left is removed by the next call.
    """
    root, name = Path(tempfile.gettempdir()), "scratch-"
    for path in root.glob(f"{PARTIAL}{_HOST}-*-{name}*"):
        number = path.name.removeprefix(f"{PARTIAL}{_HOST}-").partition("-")[0]
        if number.isdecimal() and not _runs(int(number)):
            remove(path)
    with (
        write_errors(root),
        tempfile.TemporaryDirectory(prefix=_draft_of(name), ignore_cleanup_errors=True) as folder,
    ):
        yield Path(folder)


def _runs(process: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end it there
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or folder if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # on a read-only disk it would hide the first error
            path.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _replace_folder(new: Path, path: Path, replace: bool) -> None:
    """Two renames: an existing folder is moved aside, and restored if the second rename fails."""
    old = path.with_name(_draft_of(f"{_OLD}{path.name}"))
    existed = path.is_dir()
    if not replace:
        if existed:
            with suppress(OSError):
                path.rmdir()  # only if it is empty
        try:
            os.rename(new, path)  # refuses to replace a folder with content
        except OSError as error:
            if not path.is_dir():
                raise
            problem = "was written by another process in the meantime"
            raise PathError(path, problem, "pass --overwrite, or choose another --out") from error
        return
    if existed:
        os.rename(path, old)
    try:
        os.rename(new, path)
    except OSError:
        if existed:
            os.rename(old, path)
        raise
    if existed:
        remove(old)


def _link(path: Path, name: Path) -> None:
    """Give the file a second name, replacing whatever had that name."""
    spare = name.with_name(_draft_of(name.name))
    try:
        os.link(path, spare)
    except OSError:  # a file system without hard links: for a moment only `name` exists
        os.replace(path, spare)
    os.replace(spare, name)
    remove(spare)  # it stays if `name` is the same file already: a kill came before the next step


def _flush(path: Path) -> None:
    """Flush to the disk, so that the content survives a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    with suppress(PermissionError):  # a file written with a read-only mode
        handle = os.open(path, os.O_RDONLY if path.is_dir() or os.name != "nt" else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
