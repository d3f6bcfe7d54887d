"""Count changes of files below a folder, and send SIGKILL at one of them.

Python imports this module at its start, so that worker processes are watched too. SEGCAL_KILL is
"folder:counter file:number:victim"; `number` 0 only counts. The victim is the process that makes
the change ("self"), or the process that started the command ("launcher").
"""

import fcntl
import os
import signal
import sys

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(folder: str, counter: str, number: int, victim: str, launcher: int) -> None:
    """Watch this process. `counter` holds the number of changes of all processes together."""
    handle = os.open(counter, os.O_RDWR | os.O_CREAT)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            flags = arguments[2]
            if not (isinstance(flags, int) and flags & WRITING) or not arguments[0]:
                return
        elif event not in CHANGES:
            return
        if not os.path.abspath(str(arguments[0])).startswith(folder):
            return
        fcntl.lockf(handle, fcntl.LOCK_EX)
        changes = int.from_bytes(os.pread(handle, 8, 0), "little") + 1
        os.pwrite(handle, changes.to_bytes(8, "little"), 0)
        fcntl.lockf(handle, fcntl.LOCK_UN)
        if changes == number:
            os.kill(os.getpid() if victim == "self" else launcher, signal.SIGKILL)

    sys.addaudithook(hook)


if "SEGCAL_KILL" in os.environ:
    _folder, _counter, _number, _victim, _launcher = os.environ["SEGCAL_KILL"].split(":")
    if os.getpid() != int(_launcher):
        watch(_folder, _counter, int(_number), _victim, int(_launcher))
