"""What a resumed study refuses before it writes anything, and what it computes again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.runs import phantom
from helpers.trees import run_cli
from segcal.benchmark import Plan, run_benchmark
from segcal.benchmark.benchmark_study import named_late
from segcal.benchmark.plan import to_yaml
from segcal.benchmark.run_status import is_done
from segcal.benchmark.task_matrix import plan_tasks
from segcal.benchmark.tasks import Task, run_task
from segcal.core.errors import PathError
from segcal.evaluation import evaluate_run, read_evaluation

RUN = "runs/toy/ce/seed0"


pytestmark = pytest.mark.usefixtures("as_in_processes")


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one run, done in this process."""
    folder = tmp_path_factory.mktemp("studies") / "study"
    folder.mkdir()
    plan = make_plan(source)
    (folder / "plan.yaml").write_text(to_yaml(plan))
    (task,) = plan_tasks(plan)
    assert run_task(task, folder).error == ""
    run_benchmark(plan, folder, resume=True, silent=True)
    return folder


@pytest.fixture
def study(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "study"))


@pytest.fixture
def data(source: Path, tmp_path: Path) -> Path:
    """A copy of the set, whose splits may change."""
    return Path(shutil.copytree(source, tmp_path / "data"))


def make_plan(data: Path, **changes: Any) -> Plan:
    train = {
        "epochs": 1, "batch_size": 8, "precision": "32",
        "model": {"options": {"filters": [4, 8], "pools": [2]}}, **changes.pop("train", {}),
    }  # fmt: skip
    methods = changes.pop("methods", {"ce": {"loss": "ce"}})
    return Plan.model_validate(
        {"datasets": {"toy": {"path": str(data)}}, "methods": methods, "train": train, **changes}
    )


def task_of(data: Path) -> Task:
    (task,) = plan_tasks(make_plan(data))
    return task


def content(folder: Path) -> dict[str, bytes]:
    paths = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def change_splits(data: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = data / "splits.json"
    splits = json.loads(path.read_text())
    change(splits)
    path.write_text(json.dumps(splits))


def swap(splits: dict[str, Any]) -> None:
    for a, b in ((splits["train"], splits["test"]),):
        a[0], b[0] = b[0], a[0]


def shuffle_training(splits: dict[str, Any]) -> None:
    splits["train"][0], splits["val"][0] = splits["val"][0], splits["train"][0]


def fewer_tests(splits: dict[str, Any]) -> None:
    splits["test"].pop()


def refused(plan: Plan, study: Path, words: str) -> None:
    """By name, in one line, with nothing changed."""
    before = content(study)
    with pytest.raises(ValueError, match=words) as caught:
        run_benchmark(plan, study, resume=True, silent=True)
    assert RUN in str(caught.value)
    assert "\n" not in str(caught.value)
    assert content(study) == before


TWO: dict[str, Any] = {"ce": {"loss": "ce"}, "ls": {"loss": "ls"}}


def test_other_data_are_refused(study: Path, tmp_path: Path) -> None:
    other = phantom(tmp_path / "other", dims=2, cases=14, size=32, seed=3)
    refused(make_plan(other, methods=TWO), study, "was trained on other data than .*other")


def test_an_evaluation_of_other_data_is_not_reused(study: Path, source: Path) -> None:
    path = study / RUN / "evaluation.json"
    about = json.loads(path.read_text())
    assert is_done(task_of(source), study)
    path.write_text(json.dumps({**about, "data_fingerprint": "0"}))
    assert not is_done(task_of(source), study)


def test_data_may_move(study: Path, data: Path) -> None:
    before = content(study / "runs")
    again = run_benchmark(make_plan(data), study, resume=True, silent=True)
    assert [result.state for result in again.results.values()] == ["done"]
    assert content(study / "runs") == before


def test_a_reference_named_later_is_recorded_as_late(study: Path, source: Path) -> None:
    before = content(study / "runs")

    def named(reference: str | None) -> tuple[str | None, bool]:
        plan = make_plan(source, reference=reference)
        again = run_benchmark(plan, study, resume=True, silent=True)
        assert [result.state for result in again.results.values()] == ["done"]
        assert content(study / "runs") == before
        written = json.loads((study / "study.json").read_text())
        return written["reference"], written["reference_late"]

    assert named(None) == (None, False)
    assert named("ce") == ("ce", True)
    assert named("ce") == ("ce", True)  # a second resumption does not wash it clean
    # A reference that was named in time stays so; without that information it counts as late.
    written = json.loads((study / "study.json").read_text())
    (study / "study.json").write_text(json.dumps({**written, "reference_late": False}))
    assert named("ce") == ("ce", False)
    for key in ("reference", "reference_late"):
        del written[key]
    (study / "study.json").write_text(json.dumps(written))
    assert named("ce") == ("ce", True)


def test_a_reference_named_before_there_are_results(study: Path, source: Path) -> None:
    plan = make_plan(source, reference="ce")
    assert named_late(plan, study) == (True, ())
    (study / RUN / "cases.csv").unlink()
    assert named_late(plan, study) == (False, ())


def test_a_hypothesis_written_later_is_recorded_as_late(study: Path, source: Path) -> None:
    first = {"claim": "a", "method": "ce", "other": "ce+temperature", "metric": "hd95"}
    second = {**first, "claim": "b"}

    def late(*claims: dict[str, str]) -> list[tuple[str, str, bool]]:
        plan = make_plan(source, hypotheses=claims, posthoc=["temperature"])
        run_benchmark(plan, study, resume=True, silent=True)
        written = json.loads((study / "study.json").read_text())["hypotheses"]
        return [(each["claim"], each["metric"], each["late"]) for each in written]

    assert late(first) == [("a", "hd95_mm", True)]
    written = json.loads((study / "study.json").read_text())
    written["hypotheses"][0]["late"] = False
    (study / "study.json").write_text(json.dumps(written))
    assert late(first, second) == [("a", "hd95_mm", False), ("b", "hd95_mm", True)]
    changed = {**first, "margin": "0.5"}
    assert late(changed) == [("a", "hd95_mm", True)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swap, "other train cases than .* such as"),
        (shuffle_training, "other (train|val) cases than"),
    ],
)
def test_runs_of_another_split_are_refused(
    change: Callable[[dict[str, Any]], None], words: str, study: Path, data: Path
) -> None:
    change_splits(data, change)
    refused(make_plan(data, methods=TWO), study, words)


def test_changed_test_cases_are_evaluated_again(study: Path, data: Path) -> None:
    change_splits(data, fewer_tests)
    task = task_of(data)
    assert not is_done(task, study)
    result = run_task(task, study)
    assert result.error == ""
    found = read_evaluation(study / RUN)
    assert found is not None
    kept = json.loads((data / "splits.json").read_text())["test"]
    assert list(found.info.case_names) == kept
    assert set(found.table()["case"]) == {*kept, "pooled"}
    assert is_done(task, study)


def test_the_command_for_one_run_sees_a_new_split(study: Path, data: Path) -> None:
    said: list[str] = []
    before = read_evaluation(study / RUN)
    assert evaluate_run(study / RUN, data=data, say=said.append) == before
    change_splits(data, fewer_tests)
    after = evaluate_run(study / RUN, data=data, say=said.append)
    assert before is not None
    assert len(after.info.case_names) == len(before.info.case_names) - 1
    assert len(said) == 1
    assert "the splits have changed); evaluating again" in said[0]
    change_splits(data, swap)
    with pytest.raises(PathError, match="used test case"):
        evaluate_run(study / RUN, data=data)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"optimizer": {"lr": 0.5}}, "another `optimizer.lr`"),
        ({"batch_size": 4}, "another `batch_size`"),
        ({"epochs": 2}, "1 of 2 epochs but no last.pt"),
    ],
)
def test_other_settings_are_refused(
    train: dict[str, Any], words: str, study: Path, source: Path
) -> None:
    refused(make_plan(source, train=train, methods=TWO), study, words)


def test_settings_of_any_point_of_a_grid_are_compared(study: Path, source: Path) -> None:
    """Also those of seeds that are run once a point is chosen."""
    place = study / "runs/toy/mbls@margin=3/seed1"
    shutil.copytree(study / RUN, place)
    methods = {"mbls": {"loss": "mbls", "grid": {"margin": [3, 10]}}}
    plan = make_plan(source, methods=methods, seeds=[0, 1])
    before = content(study)
    with pytest.raises(ValueError, match=r"mbls@margin=3/seed1: was started with another `loss"):
        run_benchmark(plan, study, resume=True, silent=True)
    assert content(study) == before


def test_the_command_refuses_with_exit_code_2(
    study: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = study.parent / "other.yaml"
    file.write_text(to_yaml(make_plan(source)))
    before = content(study)
    command = ("benchmark", file, "--out", study, "--resume", "--set", "train.batch_size=4")
    assert run_cli(monkeypatch, *command) == 2
    said = capfd.readouterr().err
    assert "another `batch_size`" in said
    assert "--out" in said
    assert content(study) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("name", ["cases.csv", "bins.npz", "slices.npz"])
@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_damaged_files_are_computed_again(
    name: str, harm: Callable[[Path], None], study: Path, source: Path
) -> None:
    task, before = task_of(source), content(study / RUN)
    harm(study / RUN / name)
    assert not is_done(task, study)
    assert run_task(task, study).error == ""
    assert is_done(task, study)
    assert content(study / RUN)["cases.csv"] == before["cases.csv"]
    again = run_benchmark(make_plan(source), study, resume=True, silent=True)
    assert again.finished is not None
    assert len(again.finished.table) == before["cases.csv"].count(b"\n") - 1


def test_the_command_for_one_run_repairs(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (study / RUN / "cases.csv").read_bytes()
    for harm in (cut, Path.unlink):
        harm(study / RUN / "cases.csv")
        assert run_cli(monkeypatch, "evaluate", study / RUN) == 0
        said = capsys.readouterr()
        assert "cases.csv: is missing or was modified; evaluating again" in said.err
        assert "reused" not in said.out
        assert (study / RUN / "cases.csv").read_bytes() == before
    assert run_cli(monkeypatch, "evaluate", study / RUN) == 0
    assert "reused" in capsys.readouterr().out


def test_an_evaluation_has_checksums_of_its_files(study: Path) -> None:
    found = read_evaluation(study / RUN)
    assert found is not None
    assert set(found.info.files) == {"cases.csv", "bins.npz", "slices.npz"}
    assert found.info.files["cases.csv"]["rows"] == len(found.table())
    assert found.damaged() is None
    (study / RUN / "bins.npz").unlink()
    assert found.damaged() == study / RUN / "bins.npz"


def test_tasks_have_absolute_paths(
    study: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of a cluster have other working directories."""
    monkeypatch.chdir(data.parent)
    again = run_benchmark(make_plan(Path(data.name)), study, resume=True, silent=True)
    (task,) = again.tasks.values()
    assert task.config.data.path == str(data)
    written = yaml.safe_load((study / "plan.yaml").read_text())
    assert written["datasets"]["toy"]["path"] == str(data)
