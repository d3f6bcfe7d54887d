"""Commands in forks of one process, which has imported everything already."""

import contextlib
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    """How a fork ended: exit code (-9: killed), seconds, seconds of computing, peak memory."""

    code: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def fork(action: Callable[[], int], limit_s: float = 600.0) -> Ended:
    """Run `action` in a child, which is killed after `limit_s`."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 97
        try:
            code = action()
        finally:
            os._exit(code)
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        seconds = time.monotonic() - start
        if found:
            break
        if seconds > limit_s:
            os.kill(child, 9)
        time.sleep(0.005)
    cpu = usage.ru_utime + usage.ru_stime
    return Ended(os.waitstatus_to_exitcode(status), seconds, cpu, usage.ru_maxrss * 1024)


@contextmanager
def built_world() -> Iterator[Path]:
    """The folder of `world.build`.

    It is built in a child: the threads of torch must not exist when this process forks.
    """
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="segcal-trials-") as temporary:
        world, modules = Path(temporary, "world"), Path(temporary, "modules")
        world.mkdir()

        def build() -> int:
            import world as content

            content.build(world)
            content.call(world, "report", "study", "--out", "/dev/null/x")
            modules.write_text(json.dumps(list(sys.modules)))
            return 0

        assert fork(build).code == 0
        for name in json.loads(modules.read_text()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        import torch

        torch.set_num_threads(1)
        yield world


def limit_memory(size: int) -> None:
    """Limit the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
