"""Provenance of a result: versions of the software and the commit of the sources."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import segcal

_PACKAGES = ("torch", "lightning-fabric", "monai", "numpy", "triton")


def versions() -> dict[str, str]:
    """Versions of segcal, Python and the packages that influence a result."""
    found = {"segcal": segcal.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def git_commit() -> str | None:
    """The commit of segcal's sources, "+changes" if they differ from it; None outside git.

    $SEGCAL_COMMIT overrides it, for sources that were copied without their git history.
    """
    if commit := os.environ.get("SEGCAL_COMMIT"):
        return commit
    sources = Path(segcal.__file__).parent
    git = ["git", "-C", str(sources)]
    try:
        head, changed = (
            subprocess.run([*git, *arguments], capture_output=True, text=True, timeout=20)
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "."])
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
