"""A worker process: reads tasks from standard input, writes one line of JSON for each.

python -m segcal.benchmark.worker STUDY PARENT
"""

import ctypes
import os
import signal
import sys
from pathlib import Path


def die_with_parent(parent: int) -> None:
    """End this process when its parent dies, so that a resumed study finds its runs unlocked.

    Elsewhere than on Linux, a worker whose parent died ends with its present task.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.name == "posix" and os.getppid() != parent:
        os._exit(1)  # It died before this call.


def main() -> None:
    """Do tasks until there are no more, or until one failed in a way that needs a new process."""
    die_with_parent(int(sys.argv[2]))  # before the slow imports
    from segcal.benchmark.tasks import Task, run_task
    from segcal.training import Interrupted

    study = Path(sys.argv[1])
    # Output of libraries must not mix with the lines of results.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            result = run_task(Task.from_json(line), study)
        except Interrupted as stop:
            sys.exit(128 + stop.number)
        answers.write(result.to_json() + "\n")
        answers.flush()
        if result.unclean:
            break


if __name__ == "__main__":
    main()
