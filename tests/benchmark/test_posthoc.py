"""Runs of a study that are calibrated after their training."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from helpers.runs import phantom
from helpers.trees import run_cli
from segcal.benchmark import BenchmarkStudy, Plan, load_plan, run_benchmark
from segcal.benchmark.plan import to_yaml
from segcal.benchmark.run_status import is_done
from segcal.benchmark.task_matrix import plan_tasks
from segcal.benchmark.tasks import Task, run_task
from segcal.config import ConfigError
from segcal.data import open_dataset
from segcal.evaluation import evaluate_run, predict_case, read_evaluation
from segcal.evaluation.posthoc_choice import CANDIDATES
from segcal.models import load_model
from segcal.posthoc import load_calibrator
from segcal.report import Context
from segcal.report.findings.calibration import after_training
from segcal.report.sections.groups import group_table
from segcal.report.sections.main import main_table
from segcal.study import read_study

RUN, AFTER = "runs/toy/ce_dice/seed0", "runs/toy/ce_dice+temperature/seed0"


pytestmark = pytest.mark.usefixtures("as_in_processes")


def make_plan(data: Path, **changes: Any) -> Plan:
    return Plan.model_validate({
        "datasets": {"toy": {"path": str(data)}},
        "methods": {"ce_dice": {"loss": "ce_dice", "title": "CE+Dice", "paper": "CE+DSC"}},
        "train": {
            "epochs": 6, "batch_size": 4, "precision": "32", "optimizer": {"lr": 0.02},
            "model": {"options": {"filters": [4, 8], "pools": [2]}},
        },
        "region": "all",
        **changes,
    })  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes]:
    """The content of all files."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study without calibrators that kept its best weights."""
    folder = tmp_path_factory.mktemp("plain") / "study"
    folder.mkdir()
    plan = make_plan(data)
    (folder / "plan.yaml").write_text(to_yaml(plan))
    (task,) = plan_tasks(plan)
    assert run_task(task, folder).error == ""
    assert [path.name for path in folder.rglob("*.pt")] == ["best.pt"]
    return folder


@pytest.fixture(scope="module")
def study(plain: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkStudy:
    """The same study, resumed with calibrators."""
    folder = Path(shutil.copytree(plain, tmp_path_factory.mktemp("studies") / "study"))
    plan = make_plan(data, posthoc=["temperature", "vector"])
    return run_benchmark(plan, folder, resume=True, silent=True)


def test_auto_chooses_a_calibrator_for_each_run(tmp_path: Path) -> None:
    data = phantom(tmp_path / "data", dims=2, cases=20, size=32)  # two validation cases
    folder = tmp_path / "study"
    task = task_of(data, posthoc=["auto"])
    assert run_task(task, folder).posthoc == {"auto": ""}
    fitted = load_calibrator(folder / RUN / "calibrator_auto.json")
    found = read_evaluation(folder / "runs/toy/ce_dice+auto/seed0")
    assert found is not None
    assert found.info.calibrator is not None
    assert found.info.method == "ce_dice+auto"
    assert found.info.calibrator["params"] == fitted.params()
    assert fitted.about["auto"]["chosen"] in (*CANDIDATES, "none")
    assert is_done(task, folder)


def task_of(data: Path, **changes: Any) -> Task:
    (task,) = plan_tasks(make_plan(data, **changes))
    return task


def test_calibrators_are_added_without_training(study: BenchmarkStudy, plain: Path) -> None:
    before, after = snapshot(plain / RUN), snapshot(study.folder / RUN)
    assert set(after) - set(before) == {"calibrator_temperature.json", "calibrator_vector.json"}
    assert {name: after[name] for name in before} == before
    about = json.loads((study.folder / "study.json").read_text())
    assert [(m["name"], m["title"], m["group"], m["paper"]) for m in about["methods"]] == [
        ("ce_dice", "CE+Dice", "main", "CE+DSC"),
        ("ce_dice+temperature", "CE+Dice + temperature", "posthoc", None),
        ("ce_dice+vector", "CE+Dice + vector", "posthoc", None),
    ]
    assert [(run["run"], run["folder"], run["state"]) for run in about["runs"]] == [
        (f"toy/{name}/seed0", f"runs/toy/{name}/seed0", "done")
        for name in ("ce_dice", "ce_dice+temperature", "ce_dice+vector")
    ]
    assert about["runs"][0]["seconds"] > 0  # those of its training, before
    assert {p.name for p in (study.folder / AFTER).iterdir()} == {
        "cases.csv", "bins.npz", "slices.npz", "evaluation.json",
    }  # fmt: skip
    ranks = pd.read_csv(study.folder / "ranks.csv")
    assert set(ranks["method"]) == {"ce_dice", "ce_dice+temperature", "ce_dice+vector"}


def test_fitted_on_validation_cases(study: BenchmarkStudy, data: Path) -> None:
    """NLL before is that of an evaluation of the split; one parameter cannot make it worse."""
    found = evaluate_run(study.folder / RUN, split="val", data=data).table()
    pooled = found[(found["case"] == "pooled") & (found["metric"] == "nll")]
    nll = float(pooled[(pooled["region"] == "all") & (pooled["label"] == "all")]["value"].iloc[0])
    for name in ("temperature", "vector"):
        fitted = load_calibrator(study.folder / RUN / f"calibrator_{name}.json")
        assert fitted.report is not None
        assert fitted.report.cases == len(open_dataset(data).part("val", None))
        assert fitted.report.used == fitted.report.voxels
        assert fitted.report.nll_before == pytest.approx(nll, rel=1e-5)
        assert fitted.report.nll_after < fitted.report.nll_before
        assert (fitted.about["split"], fitted.about["region"]) == ("val", "all")
        after = read_evaluation(study.folder / f"runs/toy/ce_dice+{name}/seed0")
        assert after is not None
        assert after.info.calibrator is not None
        assert after.info.calibrator["params"] == fitted.params()


def test_rows_are_those_of_the_scaled_logits(study: BenchmarkStudy, data: Path) -> None:
    before, after = (read_evaluation(study.folder / folder) for folder in (RUN, AFTER))
    assert before is not None
    assert after is not None
    one, two = before.table(), after.table()
    assert set(two["run"]) == {"toy/ce_dice+temperature/seed0"}
    for metric in ("dsc", "hd95_mm", "assd_mm"):  # The labels stay.
        a, b = (t[t["metric"] == metric].reset_index(drop=True) for t in (one, two))
        assert len(a) > 0
        pd.testing.assert_series_equal(a["value"], b["value"])
    network = load_model(study.folder / RUN / "best.pt")
    assert after.info.calibrator is not None
    temperature = after.info.calibrator["params"]["temperature"]
    assert temperature != 1
    for case in open_dataset(data).part("test", None):
        logits = predict_case(network, torch.from_numpy(case.image())).logits
        assert logits is not None
        target = torch.from_numpy(case.label()).long()
        mine = torch.nn.functional.cross_entropy(logits[None] / temperature, target[None])
        row = two[(two["case"] == case.name) & (two["metric"] == "nll") & (two["region"] == "all")]
        assert float(row["value"].iloc[0]) == pytest.approx(float(mine), rel=1e-5)


def test_nothing_is_repeated_with_or_without_weights(
    study: BenchmarkStudy, data: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(study.folder, tmp_path / "study"))
    before = snapshot(copied / "runs")
    rows = (copied / "cases.csv").read_bytes()
    run_benchmark(study.plan, copied, resume=True, silent=True)
    assert snapshot(copied / "runs") == before
    plan = make_plan(data, posthoc=["temperature", "vector"], keep="none")
    again = run_benchmark(plan, copied, resume=True, silent=True)
    assert len(again.done()) == 3
    assert snapshot(copied / "runs") == {
        name: content for name, content in before.items() if not name.endswith(".pt")
    }
    assert (copied / "cases.csv").read_bytes() == rows


def test_weights_are_deleted_after_calibration(plain: Path, data: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(plain, tmp_path / "study"))
    first = task_of(data, posthoc=["temperature"], keep="none")
    assert run_task(first, copied).posthoc == {"temperature": ""}
    assert is_done(first, copied)
    assert not list(copied.rglob("*.pt"))
    before = snapshot(copied / "runs")
    more = task_of(data, posthoc=["temperature", "matrix"], keep="none")
    assert not is_done(more, copied)
    result = run_task(more, copied)
    # The run itself is still done; only the calibrated run failed.
    assert (result.state, result.unclean, result.posthoc["temperature"]) == ("done", False, "")
    assert result.posthoc["matrix"].startswith(f"{copied / RUN}: has no best.pt; ")
    assert snapshot(copied / "runs") == before


def test_other_weights_are_calibrated_again(
    study: BenchmarkStudy, data: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(study.folder, tmp_path / "study"))
    task = task_of(data, posthoc=["temperature"])
    assert is_done(task, copied)
    about = copied / AFTER / "evaluation.json"
    content = json.loads(about.read_text())
    (copied / RUN / "best.pt").unlink()
    about.write_text(json.dumps({**content, "checkpoint_sha256": "0" * 64}))
    assert not is_done(task, copied)
    about.write_text(json.dumps({**content, "epochs": 5}))
    assert not is_done(task, copied)
    about.write_text(json.dumps(content))
    assert is_done(task, copied)
    coarse = task.evaluation.model_copy(update={"num_bins": 3})
    assert not is_done(task.model_copy(update={"evaluation": coarse}), copied)


def test_the_report_shows_calibrated_methods(study: BenchmarkStudy) -> None:
    context = Context(read_study(study.folder))
    after = ["ce_dice+temperature", "ce_dice+vector"]
    assert context.study.compared == ["ce_dice", *after]
    for table in (
        main_table(context, "all"),
        group_table(context, "all", "posthoc", "posthoc"),
    ):
        assert table is not None
        assert len(table.rows) == 3
        assert "CE+Dice + temperature" in str(table.rows)
    (text,) = after_training(context)
    assert "ECE in region “all” " in text
    assert text.count("CE+Dice + temperature (") == text.count("CE+Dice + vector (") == 1


@pytest.mark.slow
def test_calibrated_runs_of_failed_and_searched_methods(data: Path, tmp_path: Path) -> None:
    methods = {
        "broken": {"loss": "ce", "train": {"optimizer": {"lr": 1e30}}},
        "mbls": {"loss": "mbls", "grid": {"margin": [3, 10]}},
    }
    plan = make_plan(data, methods=methods, posthoc=["temperature"], keep="none")
    study = run_benchmark(plan, tmp_path / "study", silent=True)
    assert list(study.results) == ["toy/broken/seed0", "toy/broken+temperature/seed0",
                                   "toy/mbls/seed0", "toy/mbls+temperature/seed0"]  # fmt: skip
    error = study.failed["toy/broken+temperature/seed0"]
    assert error == "the run to be calibrated failed: toy/broken/seed0"
    margin = study.options["mbls"]["margin"]
    (after,) = (t for t in study.done() if t.method == "mbls+temperature")
    assert after.folder == f"runs/toy/mbls@margin={margin}+temperature/seed0"
    assert {p.parent.parent.name for p in study.folder.rglob("*.pt")} == {"broken"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"posthoc": ["temprature"]}, "`temprature` in `posthoc`.*Did you mean 'temperature'"),
        ({"posthoc": ["other"]}, "Known: temperature"),
        ({"posthoc": ["vector", "vector"]}, "a calibrator twice"),
        ({"posthoc": ["vector"], "evaluation": {"flips": ["h"]}}, "needs logits"),
        (
            {"posthoc": ["vector"], "methods": {"a": {"loss": "ce"}, "a+vector": {"loss": "ce"}}},
            "a name that `posthoc` uses",
        ),
    ],
)
def test_invalid_plans_are_explained(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    import yaml

    content = {"datasets": {"a": {"path": "a"}}, "methods": {"ce": {"loss": "ce"}}, **changes}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=words) as caught:
        load_plan(tmp_path / "plan.yaml")
    assert "\n" not in str(caught.value)


def test_the_list_names_calibrated_runs(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(to_yaml(make_plan(data, posthoc=["temperature"])))
    assert run_cli(monkeypatch, "benchmark", file, "--out", tmp_path / "s", "--dry-run") == 0
    said = capfd.readouterr().out
    assert "toy/ce_dice+temperature/seed0\n" in said
    assert "each also calibrated by temperature" in said
