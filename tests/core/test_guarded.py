"""Calls in a guarded child: crashes and missing memory are errors, and the next call works."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segcal.core.guarded import CallFailed, guarded_call

FUNCTIONS = """
import os, sys, time
import numpy as np
LOST = []
def process(): return os.getpid()
def noisy(array):
    print("to the standard output", flush=True)
    os.system("echo and from a library; echo to the errors >&2")
    return array * 2
def crash(): os.kill(os.getpid(), 11)
def crash_once(file):
    if not os.path.exists(file):
        open(file, "w").close()
        crash()
    return "alive"
def fail(): raise RuntimeError("an error of the library")
def allocate(size): return len(np.empty(size, np.uint8))
def lose(size): LOST.append(np.empty(size, np.uint8))
def wait(seconds): time.sleep(seconds)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of its own for each test, so that no child is that of an ended thread."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def call(file: Path, function: str, *arguments: Any, memory: int = 0) -> Any:
    return guarded_call(file, function, *arguments, memory=memory)


def test_results_come_back_unchanged(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = call(file, "process")
    array = np.random.default_rng(0).normal(size=(300, 1000))
    doubled = call(file, "noisy", array)
    np.testing.assert_array_equal(doubled, array * 2)
    doubled[0] = 0  # can be written to, as that of the library
    assert call(file, "process") == child != os.getpid()
    assert capfd.readouterr() == ("", "")


def test_crashes_and_errors(file: Path, tmp_path: Path) -> None:
    child = call(file, "process")
    with pytest.raises(CallFailed):
        call(file, "crash")
    new = call(file, "process")
    assert new != child
    with pytest.raises(CallFailed, match="an error of the library"):
        call(file, "fail")
    assert call(file, "process") == new
    os.kill(new, signal.SIGKILL)
    assert call(file, "process") not in (child, new)
    assert call(file, "crash_once", str(tmp_path / "crashed")) == "alive"
    with pytest.raises(KeyError):
        call(file, "no such function")


def test_a_file_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "invalid.py").write_text("import no_such_module")
    with pytest.raises(OSError, match=r"invalid\.py does not start"):
        call(tmp_path / "invalid.py", "process")


@linux
def test_memory_is_limited(file: Path) -> None:
    child, size = call(file, "process"), 5 * 2**28
    with pytest.raises(CallFailed):
        call(file, "allocate", size)
    assert call(file, "allocate", size, memory=2**29) == size
    with pytest.raises(CallFailed):
        call(file, "allocate", size)
    assert call(file, "process") == child
    call(file, "lose", 2**29 + 2**24)
    assert call(file, "process") != child


def test_threads_share_a_child_and_outlive_its_starter(file: Path) -> None:
    starter = threading.Thread(target=call, args=(file, "process"))
    starter.start()
    starter.join()  # On Linux the child ends with this thread.
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: call(file, "noisy", i), range(24)))
    assert results == [2 * i for i in range(24)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_starts_its_own_child(file: Path) -> None:
    child = call(file, "process")
    fork = os.fork()
    if fork == 0:
        code = 1
        try:
            code = 0 if call(file, "process") != child else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 0
    assert call(file, "process") == child


@pytest.mark.skipif(os.name != "posix", reason="uses POSIX signals")
def test_an_interrupted_call_leaves_no_reply(file: Path) -> None:
    call(file, "process")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            call(file, "wait", 20)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert call(file, "noisy", 21) == 42


@linux
@pytest.mark.parametrize("ends", ["", "os.kill(os.getpid(), 9)"])
def test_the_child_ends_with_its_parent(file: Path, ends: str) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom segcal.core.guarded import guarded_call\n"
        f"print(guarded_call(Path(sys.argv[1]), 'process', memory=0), flush=True)\n{ends}\n"
    )
    done = subprocess.run([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True)
    child, deadline = Path("/proc", done.stdout.strip()), time.monotonic() + 20
    while child.exists() and "zombie" not in (child / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
