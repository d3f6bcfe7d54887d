"""Children end with their parent from the first moment and ignore the working folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from segcal.core.processes import child_command

pytestmark = pytest.mark.skipif(os.name != "posix", reason="uses POSIX signals")


def alive(process: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path, delay: float) -> None:
    code = (
        "import subprocess, sys, time\nfrom segcal.core.processes import child_command\n"
        "child = subprocess.Popen(child_command('slow_module'), start_new_session=True)\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    # Stands for a module with slow imports; on PYTHONPATH, since the working folder is not used.
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(delay)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_a_stray_file_in_the_working_folder_is_not_executed(tmp_path: Path) -> None:
    for name in ("html.py", "yaml.py", "runpy.py", "ctypes.py"):
        (tmp_path / name).write_text("open('executed', 'w').close()\n")
    done = subprocess.run(child_command("json.tool", "--help"), cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
