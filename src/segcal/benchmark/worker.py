"""A worker process: reads tasks from standard input, writes one line of JSON for each.

Its argument is the folder of the study.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from segcal.benchmark.tasks import Task, run_task
from segcal.core.errors import show_warnings_in_one_line


def main() -> None:
    """Do tasks until there are no more."""
    from segcal.training import Interrupted  # slow: torch

    show_warnings_in_one_line()
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
