"""The checkpoints of a run: the last state, the state before it, and the best weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segcal.core.errors import PathError
from segcal.models import read_checkpoint, write_checkpoint

LAST, PREVIOUS, BEST, REFUSED = "last.pt", "last.prev.pt", "best.pt", "last.refused.pt"


def write_last(folder: Path, content: dict[str, Any]) -> None:
    """Write last.pt; the old one becomes last.prev.pt. One of them exists at every moment."""
    write_checkpoint(folder / LAST, content, keep=folder / PREVIOUS)


def read_last(
    folder: Path, run_id: str, warn: Callable[[str], None]
) -> tuple[Path, dict[str, Any]] | None:
    """The path and content of the newest valid state, or None if none was ever written.

    If last.pt is damaged or belongs to another run, last.prev.pt is used with a warning, and
    last.pt is renamed, so that the next save does not replace the valid file by it. If neither is
    valid, the first problem is raised.
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
            warn(f"{problem}; renamed to {REFUSED}, resuming from {name}")
        return path, content
    if problems:
        raise problems[0]
    return None
