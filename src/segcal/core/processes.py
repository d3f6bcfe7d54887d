"""Child processes that end with their parent and import nothing from the working folder.

python -P -m segcal.core.processes PARENT MODULE ARGUMENTS runs a module. The parent is watched
from the first moment, before the module's imports, which take seconds.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time


def child_command(module: str, *arguments: str) -> list[str]:
    """The command line of a child process that runs `module`."""
    own = str(os.getpid())
    return [sys.executable, "-P", "-m", "segcal.core.processes", own, module, *arguments]


def die_with_parent(parent: int) -> None:
    """End this process when its parent dies, so that its locks are released.

    Nothing on Windows: there a child ends with its present task.
    """
    if os.name != "posix":
        return
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)  # It died before this call.


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    module = sys.argv[2]
    del sys.argv[:2]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
