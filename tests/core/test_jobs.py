"""Jobs in several processes: results in order, and errors."""

from functools import partial
from pathlib import Path

import pytest

from segcal.core.errors import PathError
from segcal.core.jobs import run_all


def fail(name: str) -> int:
    raise PathError(Path(name), "is bad", "repair it")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_order_and_errors_are_raised(workers: int) -> None:
    seen: list[tuple[str, int, int]] = []
    jobs = {str(n): partial(divmod, n, 3) for n in range(5)}
    found = run_all(jobs, workers, "dividing", lambda *step: seen.append(step))
    assert found == [divmod(n, 3) for n in range(5)]
    assert seen == [("dividing", done, 5) for done in range(1, 6)]
    with pytest.raises(PathError, match="x: is bad; repair it"):
        run_all({"a": partial(divmod, 1, 1), "x": partial(fail, "x")}, workers)
