"""Checkpoint files: written whole or not at all, the one before kept, refused by name if bad."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from segcal.models import CheckpointError, read_checkpoint
from segcal.models.saved import FORMAT, VERSION

LAST, PREVIOUS, BEST, REFUSED = "last.pt", "last.prev.pt", "best.pt", "last.refused.pt"


def write_checkpoint(path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
    """Write under another name, flush to the disk, then rename: a kill leaves the old file.

    The old file becomes `keep`, if that is given.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        # By its name: through a stream of Python's, writing takes twice as long.
        torch.save({"format": FORMAT, "version": VERSION, **content}, draft)
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
        if keep is not None and path.exists():
            _keep(path, keep)
        os.replace(draft, path)
        _flush_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch turns some failed writes into RuntimeError
        reason = getattr(error, "strerror", None)
        if reason is None:  # torch's own words tell nobody that a disk is full
            free = shutil.disk_usage(path.parent).free / 2**20
            reason = f"{str(error).splitlines()[0]}; {free:,.0f} MiB are free there"
        raise CheckpointError(path, f"cannot be written ({reason})") from error
    finally:
        draft.unlink(missing_ok=True)


def write_last(folder: Path, content: dict[str, Any]) -> None:
    """Write last.pt; what was there becomes last.prev.pt. At no moment is there neither."""
    write_checkpoint(folder / LAST, content, keep=folder / PREVIOUS)


def _keep(path: Path, name: Path) -> None:
    """Give the file a second name, which replaces whatever had that name."""
    spare = name.with_name(f".{name.name}.partial")
    spare.unlink(missing_ok=True)
    try:
        os.link(path, spare)
    except OSError:  # a file system without hard links: for a moment only `name` is there
        os.replace(path, spare)
    os.replace(spare, name)


def read_last(
    folder: Path, run_id: str, warn: Callable[[str], None]
) -> tuple[Path, dict[str, Any]] | None:
    """The newest good state of the run, or None where none was ever written.

    A damaged file, or one from another run, is named to `warn` and the one before it is taken;
    the bad one is put aside, lest it replace the good one at the next save. With files but no good
    one, the first problem is raised.
    """
    problems = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            content = read_checkpoint(path)
            if content.get("run_id") != run_id:
                raise CheckpointError(path, "belongs to another run")
        except CheckpointError as error:
            problems.append(error)
            continue
        for problem in problems:
            os.replace(problem.path, folder / REFUSED)
            warn(f"{problem}; kept as {REFUSED}, going on from {name}")
        return path, content
    if problems:
        raise problems[0]
    return None


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
