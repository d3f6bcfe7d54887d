"""Commands on a full disk, a read-only disk and without permissions; disk.py tries all."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def _mounts(tmp_path: Path) -> None:
    """Skip unless this process may mount a disk in memory."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk ({done.stderr.strip()})")
    subprocess.run(["umount", tmp_path], check=True)
    if os.getuid() != 0:
        pytest.skip("only root can become another user")


@pytest.mark.usefixtures("_mounts")
def test_a_sample(trials: Callable[..., None]) -> None:
    trials("disk.py", "--only", "evaluate")


@pytest.mark.slow
@pytest.mark.usefixtures("_mounts")
def test_every_command(trials: Callable[..., None]) -> None:
    trials("disk.py")
