"""Checkpoint files: written whole or not at all, the one before kept, refused by name if bad."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from segcal.models import CheckpointError, read_checkpoint
from segcal.models.saved import FORMAT, VERSION

LAST, PREVIOUS, BEST = "last.pt", "last.prev.pt", "best.pt"


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write under another name, flush to the disk, then rename: a kill leaves the old file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with draft.open("wb") as stream:
            torch.save({"format": FORMAT, "version": VERSION, **content}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
        _flush_folder(path.parent)
    except OSError as error:
        raise CheckpointError(path, f"cannot be written ({error.strerror or error})") from error
    finally:
        draft.unlink(missing_ok=True)


def write_last(folder: Path, content: dict[str, Any]) -> None:
    """Write last.pt; what was there becomes last.prev.pt. At no moment is there neither."""
    last, previous = folder / LAST, folder / PREVIOUS
    if last.exists():
        spare = folder / f".{PREVIOUS}.partial"
        spare.unlink(missing_ok=True)
        try:
            os.link(last, spare)
        except OSError:  # a file system without hard links: a moment without last.pt remains
            os.replace(last, spare)
        os.replace(spare, previous)
    write_checkpoint(last, content)


def read_last(
    folder: Path, run_id: str, warn: Callable[[str], None]
) -> tuple[Path, dict[str, Any]] | None:
    """The newest good state of the run, or None where none was ever written.

    A damaged file, or one from another run, is named to `warn` and the one before it is taken.
    With files but no good one, the first problem is raised.
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
            warn(f"{problem}; going on from {name}")
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
