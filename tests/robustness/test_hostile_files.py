"""A sample of hostile and damaged files; hostile.py runs thousands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "hostile.py"
SRC = Path(__file__).parents[2] / "src"


def run(trials: int, first: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--trials", str(trials), "--first", str(first)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_sample() -> None:
    run(36, first=0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_many() -> None:
    run(2000, first=1000)
