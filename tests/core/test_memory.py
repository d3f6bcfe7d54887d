import ctypes
import subprocess
import sys
from typing import NoReturn

import pytest

from segcal.core.memory import all_freed_memory_kept, keep_freed_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")

SCRIPT = """
import resource
import numpy as np
from segcal.core.memory import all_freed_memory_kept

def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20

def faults_of_a_step():
    before = page_faults()
    np.ones(100 << 20, np.uint8)
    return page_faults() - before

print(resident_mb())
with all_freed_memory_kept():
    print(faults_of_a_step(), faults_of_a_step(), resident_mb())
print(resident_mb())
"""


def test_freed_memory_is_used_again_and_returned_at_the_end():
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    ).stdout
    before, first, second, inside, after = map(int, found.split())
    assert first > 40  # 100 MB in pages of 4 KB, or of 2 MB
    assert second < 5
    assert inside >= before + 100
    assert after < before + 20


@pytest.mark.parametrize(
    ("platform", "error"),
    [("win32", TypeError), ("darwin", AttributeError), ("linux", AttributeError)],
)
def test_other_systems_and_c_libraries_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, platform: str, error: type[Exception]
) -> None:
    """What `ctypes.CDLL(None)` raises on Windows, and `mallopt` on macOS and with musl."""

    def unknown(_: None) -> NoReturn:
        raise error

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", unknown)
    keep_freed_memory.__wrapped__()
    with all_freed_memory_kept():
        pass
