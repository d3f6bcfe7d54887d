"""A worker process: tasks on standard input, a line of JSON for each on standard output."""

import ctypes
import os
import signal
import sys
from pathlib import Path

from segcal.benchmark.tasks import Task, run_task


def die_with_parent() -> None:
    """A launcher that is killed takes its workers along, so that a resumed one finds runs free."""
    parent = os.getppid()
    try:
        # PR_SET_PDEATHSIG; Linux only. Elsewhere a worker ends with its present task.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Until there are no more tasks, or one has failed badly: a new process is a clean one."""
    from segcal.training import Interrupted

    die_with_parent()
    study = Path(sys.argv[1])
    # Whatever libraries print must not come between the lines of results.
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
