"""Commands in forks of one process, which has imported everything already."""

import contextlib
import gc
import importlib
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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


def run_command(
    folder: Path,
    arguments: Sequence[str],
    begin: Callable[[], None] | None = None,
    limit_s: float = 600.0,
    beside: Path | None = None,
) -> tuple[Ended, str]:
    """`segcal ARGUMENTS` in a fork, in `folder`; what it printed ("Traceback …" if it crashed).

    Temporary files go to `tmp` in `beside`, by default the parent of `folder`. `begin` is called
    in the fork first.
    """
    printed, temporary = ((beside or folder.parent) / name for name in ("printed", "tmp"))
    temporary.mkdir(exist_ok=True)
    printed.unlink(missing_ok=True)

    def action() -> int:
        import segcal.cli

        handle = os.open(printed, os.O_WRONLY | os.O_CREAT)
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        text, code = io.StringIO(), 0
        sys.argv = ["segcal", *arguments]
        if begin is not None:
            begin()
        try:
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                segcal.cli.run()
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            text.write(traceback.format_exc())
            code = 98
        os.write(handle, text.getvalue().encode("utf-8", "replace"))
        return code

    ended = fork(action, limit_s)
    return ended, printed.read_text(encoding="utf-8") if printed.exists() else ""


@contextmanager
def built_world(existing: Path | None = None) -> Iterator[Path]:
    """The folder of `world.build`, or an existing one.

    It is built in a child: the threads of torch must not exist when this process forks.
    """
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="segcal-trials-") as temporary:
        world = existing or Path(temporary, "world")
        modules = world.parent / "modules"
        if existing is None:
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
        gc.collect()
        gc.freeze()  # collections in forks would copy all memory
        yield world


def check_commands(
    existing: Path | None, names: Sequence[str], check: Callable[[Path, str], tuple[int, list[str]]]
) -> NoReturn:
    """Call `check(world, name)`, which gives (trials, problems); exit with 1 if there are any."""
    failed = False
    with built_world(existing) as world:
        for name in names:
            start = time.monotonic()
            trials, problems = check(world, name)
            seconds = time.monotonic() - start
            print(f"{name}: {trials} trials, {len(problems)} problems, {seconds:.0f} s", flush=True)
            for problem in problems:
                print(f"  {problem}", flush=True)
            failed |= bool(problems)
    sys.exit(failed)


def keep_world(folder: str) -> None:
    """Build the world below `folder`, for `built_world(folder / "world")`."""
    with built_world() as world:
        shutil.copytree(world, Path(folder, "world"))
        shutil.copy2(world.parent / "modules", folder)


def limit_memory(size: int) -> None:
    """Limit the address space of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
