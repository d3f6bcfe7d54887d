"""The working example that the trials copy, built once for all samples."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
BUILD = "import sys; from trials import keep_world; keep_world(sys.argv[1])"


def run_script(*command: str) -> None:
    """Run Python with the sources and the tests on its path; it must succeed."""
    paths = os.pathsep.join(map(str, (SRC, HERE, HERE.parent)))
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        timeout=14400,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of world.py."""
    if sys.platform != "linux":
        pytest.skip("forks, and reads /proc")
    folder = tmp_path_factory.mktemp("trials")
    run_script("-c", BUILD, str(folder))
    return folder / "world"


@pytest.fixture
def trials(world: Path) -> Callable[..., None]:
    """Run a script of this folder with options; it must find no problem."""
    return lambda script, *options: run_script(
        str(HERE / script), "--world", str(world), *map(str, options)
    )
