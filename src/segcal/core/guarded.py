"""Calls into libraries that crash on damaged files, in a child process with limited memory.

The child loads a Python file without its package, whose imports take seconds, and answers requests
for its functions. There is one child per process and file; it is started by the first call.
"""

import os
import pickle
import runpy
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from segcal.core.processes import child_command

_SPARE_BYTES = 2**30
_LEAKED_BYTES = 2**29
_READY = b"+"


class CallFailed(Exception):
    """The function failed, needed too much memory, or ended its process."""


def guarded_call(file: Path, function: str, *arguments: object, memory: int) -> Any:
    """Call a function of `file` in the child; on Linux with `memory` bytes and 1 GiB at most.

    A child that died is replaced and asked again: it also dies with the thread that started it.
    """
    # By process: a fork has no child of its own, and the lock may be held by a thread it lacks.
    child = _CHILDREN.setdefault((os.getpid(), file), _Child(file))
    with child.lock:
        with suppress(_Died):
            return child.call(function, arguments, memory)
        return child.call(function, arguments, memory)


class _Died(CallFailed):
    pass


class _Child:
    def __init__(self, file: Path) -> None:
        self.lock = threading.Lock()
        self._command = ("segcal.core.guarded", str(file))
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: str, arguments: tuple[object, ...], memory: int) -> Any:
        self._process = self._process or self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        keep = False
        try:
            pickle.dump((function, arguments, memory), self._process.stdin)
            self._process.stdin.flush()
            result, error, keep = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as broken:
            raise _Died from broken
        finally:
            if not keep:
                self._stop(self._process)
        if isinstance(error, RuntimeError | MemoryError):
            raise CallFailed(str(error)) from error
        if error is not None:
            raise error
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        # A new session keeps Ctrl-C away; what libraries print is not for the user.
        process = subprocess.Popen(
            child_command(*self._command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pipesize=2**20,
        )
        assert process.stdout is not None
        if process.stdout.read(1) != _READY:
            raise OSError(f"the process that runs {self._command[1]} does not start")
        return process

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        process.kill()
        with suppress(OSError):  # It cannot receive the rest of a request.
            process.communicate()


_CHILDREN: dict[tuple[int, Path], _Child] = {}


def _address_space() -> int:
    """Bytes that this process has reserved; 0 where that is unknown."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(more: int) -> None:
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = _address_space() + more
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _serve(file: str) -> None:
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Libraries print there, too.
    functions = runpy.run_path(file)
    allowed = _address_space() + _LEAKED_BYTES
    replies.write(_READY)
    with suppress(EOFError):  # The parent closed the pipe.
        while True:
            replies.flush()
            function, arguments, memory = pickle.load(requests)
            result: Any = None
            error: Exception | None = None
            try:
                _limit_memory(memory + _SPARE_BYTES)
                result = functions[function](*arguments)
            except Exception as problem:
                error = problem
            # Libraries lose memory on damaged files.
            keep = _address_space() - getattr(result, "nbytes", 0) < allowed
            pickle.dump((result, error, keep), replies, protocol=5)


if __name__ == "__main__":
    _serve(sys.argv[1])
