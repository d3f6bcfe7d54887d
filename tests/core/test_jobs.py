"""Jobs in several processes: results in order, and errors."""

from functools import partial
from pathlib import Path

import pytest

from segcal.core.errors import PathError
from segcal.core.jobs import RayJobs, run_all
from segcal.core.ray_cluster import ray_cluster
from segcal.posthoc import load_calibrator


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


@pytest.mark.slow
def test_ray_gives_the_same_results_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    jobs = {str(n): partial(divmod, n, 3) for n in range(5)}
    monkeypatch.chdir(tmp_path)
    Path("number").write_text("7")
    with ray_cluster("local", 2):
        assert run_all({"file": Path("number").read_text}, RayJobs(2)) == ["7"]
        assert run_all(jobs, RayJobs(2)) == run_all(jobs, 1)
        with pytest.raises(PathError, match=r"absent\.json"):
            run_all({"x": partial(load_calibrator, "absent.json")}, RayJobs(2))
        with pytest.raises(ZeroDivisionError, match="zero"):
            run_all({"a": partial(divmod, 1, 0)}, RayJobs(2))
    assert not ray.is_initialized()
