"""A worker process: reads tasks from standard input, writes one line of JSON for each.

python -m segcal.benchmark.worker STUDY PARENT
"""

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from segcal.benchmark.tasks import Task, run_task


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
    """Do tasks until there are no more."""
    die_with_parent(int(sys.argv[2]))
    from segcal.training import Interrupted  # slow: torch

    # Output of libraries must not mix with the lines of results.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            result = run_task(Task.model_validate(json.loads(line)), Path(sys.argv[1]))
        except Interrupted as stop:
            sys.exit(128 + stop.number)
        answers.write(json.dumps(asdict(result)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
