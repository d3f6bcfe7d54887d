"""One process at a time in a folder."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from segcal.core.errors import PathError
from segcal.core.locks import LOCK, folder_lock

HOLD = (
    "import sys, time; from pathlib import Path; from segcal.core.locks import folder_lock\n"
    "with folder_lock(Path(sys.argv[1])):\n"
    "    print('held', flush=True); time.sleep(60)\n"
)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(PathError, match=f"in use by process {holder.pid}"), folder_lock(folder):
            pass
    finally:
        holder.kill()  # the operating system releases the lock
        holder.wait()
    with folder_lock(folder):
        assert (folder / LOCK).exists()


def test_the_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with folder_lock(tmp_path / "run"):
            time.sleep(0)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(PathError) as found, folder_lock(path):
        pass
    assert found.value.path == path
