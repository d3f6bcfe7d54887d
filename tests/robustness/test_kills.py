"""A sample of kills; kills.py tries every change of the file system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kills.py"
SRC = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def run(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        timeout=7200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_sample() -> None:
    run("--every", "9", "--offset", "2", "--only", "prepare", "train", "evaluate", "predict")


@pytest.mark.slow
def test_every_change() -> None:
    run()
