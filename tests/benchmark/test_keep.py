"""The weights that a study keeps, and runs whose weights were deleted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.trees import run_cli
from segcal.benchmark import BenchmarkStudy, Plan, load_plan, run_benchmark
from segcal.benchmark.plan import to_yaml
from segcal.benchmark.run_status import is_done
from segcal.benchmark.task_matrix import plan_tasks
from segcal.benchmark.tasks import Task, run_task
from segcal.config import ConfigError, change_config
from segcal.evaluation import evaluate_run

pytestmark = pytest.mark.usefixtures("as_in_processes")


def make_plan(data: Path, **changes: Any) -> Plan:
    train = {
        "epochs": 2, "batch_size": 4, "precision": "32", "optimizer": {"lr": 0.02},
        "model": {"options": {"filters": [4, 8], "pools": [2]}}, **changes.pop("train", {}),
    }  # fmt: skip
    return Plan.model_validate(
        {
            "datasets": {"toy": {"path": str(data)}},
            "methods": {"ce": {"loss": "ce"}},
            "train": train,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkStudy:
    """A finished study with all its weights."""
    out = tmp_path_factory.mktemp("studies") / "study"
    out.mkdir()
    plan = make_plan(data, keep="all")
    (out / "plan.yaml").write_text(to_yaml(plan))
    (task,) = plan_tasks(plan)
    assert run_task(task, out).error == ""  # in this process: no worker has to start
    return run_benchmark(plan, out, resume=True, silent=True)


@pytest.fixture
def copied(first: BenchmarkStudy, tmp_path: Path) -> Path:
    """A copy of the study."""
    return Path(shutil.copytree(first.folder, tmp_path / "study"))


def weights(study: Path) -> list[str]:
    return sorted(path.name for path in study.rglob("*.pt"))


def files(study: Path) -> dict[str, bytes]:
    """The results and logs of all runs."""
    kept = ("cases.csv", "evaluation.json", "log.jsonl", "config.yaml", "bins.npz")
    return {
        str(path.relative_to(study)): path.read_bytes()
        for path in study.rglob("*")
        if path.name in kept or path.suffix == ".log"
    }


def only_task(first: BenchmarkStudy, **changes: Any) -> Task:
    (task,) = first.tasks.values()
    config = change_config(task.config, changes.pop("config", {}))
    return task.model_copy(update={"config": config, **changes})


@pytest.mark.parametrize(
    ("keep", "left"), [("all", 3), ("best", ["best.pt"]), ("none", [])]
)  # fmt: skip
def test_the_kept_weights_and_nothing_is_repeated(
    keep: str, left: Any, first: BenchmarkStudy, copied: Path, data: Path
) -> None:
    before = files(copied)
    plan = make_plan(data, keep=keep)
    for _ in range(2):  # The second time finds what the first has left.
        again = run_benchmark(plan, copied, resume=True, silent=True)
        assert [run.state for run in again.results.values()] == ["done"]
        found = weights(copied)
        assert found == left if keep != "all" else len(found) == left
        assert files(copied) == before
    # The command that evaluates one run knows it too.
    task = only_task(first)
    evaluate_run(copied / task.folder, name=task.run, method=task.method, dataset=task.dataset)
    assert files(copied) == before


def test_last_weights_stay_if_they_were_evaluated(first: BenchmarkStudy, copied: Path) -> None:
    task = only_task(first, keep="best")
    last = task.evaluation.model_copy(update={"checkpoint": "last"})
    task = task.model_copy(update={"evaluation": last})
    assert not is_done(task, copied)
    assert run_task(task, copied).state == "done"
    assert weights(copied) == ["best.pt", "last.pt"]
    assert is_done(task, copied)


def test_other_weights_are_evaluated(first: BenchmarkStudy, copied: Path) -> None:
    task = only_task(first)
    run = copied / task.folder
    shutil.copyfile(run / "last.prev.pt", run / "last.pt")
    assert is_done(task, copied)  # The best one is what counts.
    with (run / "best.pt").open("ab") as stream:
        stream.write(b"0")
    assert not is_done(task, copied)


def test_without_weights_other_settings_fail_with_one_line(
    first: BenchmarkStudy, copied: Path
) -> None:
    task = only_task(first, keep="none")
    for path in copied.rglob("*.pt"):
        path.unlink()
    assert is_done(task, copied)
    before = files(copied)

    def fails(**changes: Any) -> str:
        task = only_task(first, **changes)
        assert not is_done(task, copied)
        result = run_task(task, copied)
        assert (result.state, result.unclean) == ("failed", False)
        assert "\n" not in result.error
        return result.error

    assert "2 of 3 epochs but no last.pt" in fails(config={"epochs": 3})
    assert "`epochs` (2, not 1)" in fails(config={"epochs": 1})
    assert "another `batch_size`" in fails(config={"batch_size": 2})
    coarse = task.evaluation.model_copy(update={"num_bins": 7})
    assert "has no best.pt; " in fails(evaluation=coarse)
    # Nothing was trained, deleted or measured.
    after = files(copied)
    assert {name: after[name] for name in before if not name.endswith(".log")} == {
        name: text for name, text in before.items() if not name.endswith(".log")
    }
    assert is_done(task, copied)
    # Evaluated before it had all its epochs; weights that would tell are gone.
    about = copied / task.folder / "evaluation.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "epochs": 1}))
    assert not is_done(task, copied)


def test_best_weights_suffice_for_another_evaluation(first: BenchmarkStudy, copied: Path) -> None:
    task = only_task(first)
    log = (copied / task.folder / "log.jsonl").read_bytes()
    for name in ("last.pt", "last.prev.pt"):
        (copied / task.folder / name).unlink()
    coarse = task.evaluation.model_copy(update={"num_bins": 7})
    wish = task.model_copy(update={"evaluation": coarse})
    result = run_task(wish, copied)
    assert (result.state, result.error) == ("done", "")
    assert set(result.scores) == {"dsc", "ece"}
    assert is_done(wish, copied)
    assert (copied / task.folder / "log.jsonl").read_bytes() == log


def test_unfinished_runs_keep_their_state(first: BenchmarkStudy, copied: Path) -> None:
    """Stopped after an epoch with more to come: it goes on, and only then are weights deleted."""
    wish = only_task(first, config={"epochs": 4}, keep="best")
    assert not is_done(wish, copied)
    assert run_task(wish, copied).state == "done"
    assert weights(copied) == ["best.pt"]
    log = [json.loads(line) for line in (copied / wish.folder / "log.jsonl").open()]
    assert [row["epoch"] for row in log] == [0, 1, 2, 3]
    assert "after 2 epochs" in (copied / "logs" / "toy_ce_seed0.log").read_text()
    # A run that fails keeps all it has.
    broken = only_task(
        first,
        folder="runs/toy/broken/seed0",
        run="toy/broken/seed0",
        config={"optimizer": {"lr": 1e30}},
    )
    assert "NaN" in run_task(broken, copied).error
    assert (copied / broken.folder / "last.pt").exists()


@pytest.mark.slow
def test_candidates_are_kept_until_one_is_chosen(data: Path, tmp_path: Path) -> None:
    methods = {"mbls": {"loss": "mbls", "grid": {"margin": [3, 10]}}}
    plan = make_plan(data, methods=methods, keep="none", seeds=[0, 1])
    study = run_benchmark(plan, tmp_path / "study", silent=True)
    assert not study.failed
    assert weights(study.folder) == []
    before = files(study.folder)
    again = run_benchmark(plan, study.folder, resume=True, silent=True)
    assert len(again.done()) == 2
    assert files(study.folder) == before


def test_the_plan_and_the_command_set_keep(
    data: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert make_plan(data).keep == "best"
    file = copied / "plan.yaml"
    file.write_text(to_yaml(make_plan(data, keep="all")))
    with pytest.raises(ConfigError, match=r"`keep`.*'all', 'best' or 'none'"):
        load_plan(file, overrides=["keep=some"])
    command = ("benchmark", file, "--out", copied, "--resume", "--no-report", "--keep")
    assert run_cli(monkeypatch, *command, "some") == 2
    assert "'all', 'best' or 'none'" in capfd.readouterr().err
    assert len(weights(copied)) == 3
    assert run_cli(monkeypatch, *command, "none") == 0
    assert weights(copied) == []
    assert load_plan(file).keep == "none"
