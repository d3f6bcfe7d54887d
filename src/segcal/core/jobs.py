"""Running one job per case, in this process or in worker processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from typing import TypeVar

from segcal.core.errors import PathError
from segcal.core.progress import ProgressCallback, no_progress

R = TypeVar("R")
# One thread per process: the processes already use all cores.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLOSC_NTHREADS")


def run_jobs(
    jobs: Mapping[str, Callable[[], R]], workers: int
) -> Generator[tuple[str, R | PathError], None, None]:
    """Yield (name, result or PathError) as jobs finish; closing the iterator stops the rest."""
    if workers == 1 or len(jobs) < 2:
        for name, job in jobs.items():
            yield name, _attempt(job)
        return
    # Spawned, not forked: a fork of a process with threads (progress bar, blosc2) can deadlock.
    context = multiprocessing.get_context("spawn")
    with _single_threaded():
        pool = ProcessPoolExecutor(min(workers, len(jobs)), context, _follow_parent)
        try:
            futures = {pool.submit(_attempt, job): name for name, job in jobs.items()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise OSError(
                "a worker process died (out of memory?); run again with fewer processes"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_all(
    jobs: Mapping[str, Callable[[], R]],
    workers: int,
    what: str = "",
    progress: ProgressCallback = no_progress,
) -> list[R]:
    """The results in the order of `jobs`, whatever the number of processes."""
    found: dict[str, R] = {}
    with closing(run_jobs(jobs, workers)) as outcomes:
        for name, outcome in outcomes:
            if isinstance(outcome, PathError):
                raise outcome
            found[name] = outcome
            progress(what, len(found), len(jobs))
    return [found[name] for name in jobs]


def _attempt(job: Callable[[], R]) -> R | PathError:
    try:
        return job()
    except PathError as error:
        return error


def _follow_parent() -> None:
    """End this worker when its parent ends, however it ends.

    Ctrl-C reaches every process of a terminal; only the parent reacts to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _single_threaded() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
