"""Running one job per case, in this process, in worker processes or on Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, closing, contextmanager
from typing import Any, TypeVar

from segcal.core.errors import PathError, show_warnings_in_one_line
from segcal.core.memory import keep_freed_memory
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.ray_cluster import gpu_share, ray_cluster

R = TypeVar("R")
# One thread per process: the processes already use all cores.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLOSC_NTHREADS")


class RayJobs(int):
    """So many jobs at a time on Ray, wherever a number of processes is expected.

    Files must have the same path on every node. `address` is that of `ray_cluster`. With `gpus`,
    the jobs share the GPUs of the cluster, if it has some; else they see none.
    """

    address: str | None
    gpus: bool

    def __new__(cls, count: int, address: str | None = None, gpus: bool = False) -> RayJobs:
        new = super().__new__(cls, count)
        new.address, new.gpus = address, gpus
        return new


def run_jobs(
    jobs: Mapping[str, Callable[[], R]], workers: int
) -> Generator[tuple[str, R | PathError], None, None]:
    """Yield (name, result or PathError) as jobs finish; closing the iterator stops the rest."""
    if isinstance(workers, RayJobs):
        yield from _run_on_ray(jobs, workers)
        return
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


def _run_on_ray(
    jobs: Mapping[str, Callable[[], R]], workers: RayJobs
) -> Iterator[tuple[str, R | PathError]]:
    with ray_cluster(workers.address, workers) as ray:
        share = gpu_share(ray.cluster_resources(), workers) if workers.gpus else {}
        remote, folder = ray.remote(num_cpus=1, **share)(_attempt_in), os.getcwd()
        waiting, running = deque(jobs.items()), dict[Any, str]()
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name, job = waiting.popleft()
                    running[remote.remote(folder, job)] = name
                for done in ray.wait(list(running), num_returns=1)[0]:
                    try:
                        outcome = ray.get(done)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None  # without the traceback of the worker
                    yield running.pop(done), outcome
        except ray.exceptions.RayError as error:
            raise OSError(f"Ray gave up ({str(error).strip().splitlines()[0]})") from error
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


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
    keep_freed_memory()
    try:
        return job()
    except PathError as error:
        return error


def _attempt_in(folder: str, job: Callable[[], R]) -> R | PathError:
    """Do a job in the working folder of the command, in which its paths may be relative."""
    with chdir(folder):
        return _attempt(job)


def _follow_parent() -> None:
    """End this worker when its parent ends, however it ends.

    Ctrl-C reaches every process of a terminal; only the parent reacts to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_warnings_in_one_line()
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
