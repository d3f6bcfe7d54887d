"""The working example that the trials copy, built once for all samples."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
BUILD = "import sys; from trials import keep_world; keep_world(sys.argv[1])"


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Run a script of this folder with options; it must find no problem."""
    if sys.platform != "linux":
        pytest.skip("forks, and reads /proc")
    folder = tmp_path_factory.mktemp("trials")
    paths = os.pathsep.join(map(str, (SRC, HERE, HERE.parent)))
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env=env, timeout=14400
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    run("-c", BUILD, str(folder))
    assert json.loads((folder / "modules").read_text())
    return lambda script, *options: run(
        str(HERE / script), "--world", str(folder / "world"), *map(str, options)
    )
