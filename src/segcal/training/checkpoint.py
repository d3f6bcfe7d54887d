"""Checkpoint files: written whole or not at all, the one before kept, refused by name if bad."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from segcal.core.errors import PathError
from segcal.core.files import atomic_path
from segcal.models import read_checkpoint
from segcal.models.checkpoint import FORMAT, VERSION

LAST, PREVIOUS, BEST, REFUSED = "last.pt", "last.prev.pt", "best.pt", "last.refused.pt"


def write_checkpoint(path: Path, content: dict[str, Any], keep: Path | None = None) -> None:
    """Write a checkpoint atomically; the file it replaces becomes `keep`, if that is given."""
    try:
        with atomic_path(path, keep=keep) as draft:
            # By its name: through a Python stream, writing takes twice as long.
            torch.save({"format": FORMAT, "version": VERSION, **content}, draft)
    except RuntimeError as error:  # torch turns some failed writes into RuntimeError
        free = shutil.disk_usage(path.parent).free / 2**20
        reason = f"{str(error).splitlines()[0]}; {free:,.0f} MiB are free there"
        raise PathError(path, f"cannot be written ({reason})") from error


def write_last(folder: Path, content: dict[str, Any]) -> None:
    """Write last.pt; what was there becomes last.prev.pt. At no moment is there neither."""
    write_checkpoint(folder / LAST, content, keep=folder / PREVIOUS)


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
                raise PathError(path, "belongs to another run")
        except PathError as error:
            problems.append(error)
            continue
        for problem in problems:
            os.replace(problem.path, folder / REFUSED)
            warn(f"{problem}; kept as {REFUSED}, going on from {name}")
        return path, content
    if problems:
        raise problems[0]
    return None
