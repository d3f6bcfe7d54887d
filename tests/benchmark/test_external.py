"""Plans with external sets: evaluated with every run, kept on resume, reported."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.runs import phantom
from segcal.benchmark import BenchmarkStudy, Plan, run_benchmark
from segcal.benchmark.plan import to_yaml
from segcal.benchmark.run_status import is_done
from segcal.benchmark.task_matrix import plan_tasks
from segcal.benchmark.tasks import run_task
from segcal.core.errors import PathError
from segcal.data import open_dataset
from segcal.evaluation import evaluate_run, read_evaluation
from segcal.metrics import REGIONS
from segcal.report import Context
from segcal.report.sections.external import build, build_groups, external_table, group_table
from segcal.report.table_model import Table, interval_text
from segcal.stats import clustered_interval, unpaired_difference
from segcal.study import read_study

RUN, AFTER = "runs/toy/ce/seed0", "runs/toy/ce+temperature/seed0"

pytestmark = pytest.mark.usefixtures("as_in_processes")


def make_plan(data: Path, other: Path, **changes: Any) -> Plan:
    return Plan.model_validate({
        "datasets": {"toy": {"path": str(data), "external": {"far": str(other)}}},
        "methods": {"ce": {"loss": "ce", "title": "CE"}},
        "train": {
            "epochs": 4, "batch_size": 4, "precision": "32", "optimizer": {"lr": 0.02},
            "model": {"options": {"filters": [4, 8], "pools": [2]}},
        },
        "posthoc": ["temperature"],
        "region": "all",
        **changes,
    })  # fmt: skip


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another phantom set, of two patients with two cases each and three groups."""
    folder = phantom(tmp_path_factory.mktemp("far") / "far", dims=2, cases=6, size=40, seed=9)
    for number, path in enumerate(sorted((folder / "cases").glob("*/case.json"))):
        content = json.loads(path.read_text())
        content["group"] = ("site A", "site B", "")[number % 3]
        content["patient"] = f"p{max(number, 2)}" if number < 3 else content["patient"]
        path.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def study(data: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchmarkStudy:
    folder = tmp_path_factory.mktemp("studies") / "study"
    folder.mkdir()
    plan = make_plan(data, other)
    (folder / "plan.yaml").write_text(to_yaml(plan))
    do_tasks(plan, folder)
    return run_benchmark(plan, folder, resume=True, silent=True)


def do_tasks(plan: Plan, folder: Path) -> None:
    """All tasks, in this process."""
    for task in plan_tasks(plan):
        result = run_task(task, folder)
        assert (result.error, result.posthoc) == ("", {"temperature": ""})


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_every_run_is_evaluated_apart(study: BenchmarkStudy, other: Path) -> None:
    table = read_study(study.folder).table
    assert set(table["dataset"]) == {"toy"}
    for folder, method in ((RUN, "ce"), (AFTER, "ce+temperature")):
        found = read_evaluation(study.folder / folder / "external" / "far")
        assert found is not None
        assert (found.info.external, found.info.method, found.info.dataset) == (True, method, "far")
        assert set(found.info.case_names) == set(open_dataset(other).info.cases)
        again = evaluate_run(
            study.folder / RUN, data=other, dataset="far", name=f"toy/{method}/seed0",
            method=method, out=study.folder / folder,
            calibrator="temperature" if folder == AFTER else None,
        )  # fmt: skip
        assert again.reused
    external = read_study(study.folder).external["toy"]
    assert set(external["dataset"]) == {"far"}
    assert set(external["method"]) == {"ce", "ce+temperature"}


def test_resume_repeats_nothing_that_is_finished(
    study: BenchmarkStudy, data: Path, other: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(study.folder, tmp_path / "study"))
    before = snapshot(copied / "runs")
    run_benchmark(study.plan, copied, resume=True, silent=True)
    assert snapshot(copied / "runs") == before
    # A missing evaluation, or an added set, is made without training.
    shutil.rmtree(copied / AFTER / "external")
    more = phantom(tmp_path / "more", dims=2, cases=2, size=32, seed=4)
    external = {"far": str(other), "more": str(more)}
    plan = make_plan(data, other, datasets={"toy": {"path": str(data), "external": external}})
    assert not any(is_done(task, copied) for task in plan_tasks(plan))
    do_tasks(plan, copied)
    run_benchmark(plan, copied, resume=True, silent=True)
    after = snapshot(copied / "runs")
    assert {name: after[name] for name in before if "+temp" not in name} == {
        name: content for name, content in before.items() if "+temp" not in name
    }
    for folder in (RUN, AFTER):
        assert read_evaluation(copied / folder / "external" / "more") is not None
        assert read_evaluation(copied / folder / "external" / "far") is not None
    assert len(read_study(copied).info.datasets[0].external) == 2


def test_the_report_shows_the_change(study: BenchmarkStudy) -> None:
    context = Context(read_study(study.folder))
    (dataset,) = context.datasets
    (far,) = dataset.external
    table = external_table(context, dataset, far, "all")
    assert table is not None
    assert [row.method for row in table.rows] == ["ce", "ce+temperature"]
    ece = [column.key for column in table.columns].index("ece internal")
    own = context.aggregates.cases("toy", "ece", "all")["ce"]
    external = context.external["toy"].cases("far", "ece", "all")["ce"]
    inside, outside, change = table.rows[0].cells[ece : ece + 3]
    assert inside.number.mean == pytest.approx(own.mean())
    assert outside.number.mean == pytest.approx(external.mean())
    assert change.number.mean == pytest.approx(external.mean() - own.mean())
    units = dataset.patients_of(own.index), far.patients_of(external.index)
    of_external = clustered_interval(external, units[1]).within((0, 1))
    assert interval_text(of_external) == outside.after
    low, high = unpaired_difference(own, external, units)[1:]
    assert f"{low:+.3f}".replace("-", "−") in change.after
    assert (change.mark == "significant") == (low > 0 or high < 0)
    assert set(far.patients.values()) == {"p2", "phantom_0003", "phantom_0004", "phantom_0005"}
    assert "grid of the prepared set" in table.caption
    section = build(context)
    assert section is not None
    shown = [block.region for block in section.walk() if isinstance(block, Table)]
    assert sorted(shown) == sorted(REGIONS)


def test_the_change_is_the_difference_of_the_printed_means(study: BenchmarkStudy) -> None:
    """Also where a metric is undefined in a case of one of several seeds."""
    read = read_study(study.folder)
    rows = read.external["toy"]
    second = rows.assign(seed=1, value=rows["value"] * 0.5)
    second.loc[second["case"] == "phantom_0000", "value"] = np.nan
    read.external["toy"] = pd.concat([rows, second], ignore_index=True)
    context = Context(read)
    (dataset,) = context.datasets
    table = external_table(context, dataset, dataset.external[0], "all")
    assert table is not None
    for row in table.rows:
        numbers = [cell.number.mean for cell in row.cells]
        changes = np.subtract(numbers[1::3], numbers[::3])
        np.testing.assert_allclose(numbers[2::3], changes, atol=1e-12)


def test_groups(study: BenchmarkStudy) -> None:
    context = Context(read_study(study.folder))
    (dataset,) = context.datasets
    (far,) = dataset.external
    assert group_table(context, dataset, dataset, "all") is None  # its cases have no groups
    table = group_table(context, dataset, far, "all")
    assert table is not None
    assert [c.key for c in table.columns] == ["dsc", "ece", "signed_gap"] * 2
    assert [c.group for c in table.columns] == ["site A (2 cases)"] * 3 + ["site B (2 cases)"] * 3
    values = context.external["toy"].cases("far", "dsc")["ce"]
    first = values[["phantom_0000", "phantom_0003"]].mean()
    np.testing.assert_allclose(table.rows[0].cells[0].number.mean, first)
    assert build_groups(context) is not None


def test_sets_that_do_not_fit_are_refused_before_training(
    data: Path, other: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(other, tmp_path / "other"))
    text = (copied / "dataset.yaml").read_text()
    (copied / "dataset.yaml").write_text(text.replace("spleen", "stomach"))
    with pytest.raises(PathError, match=r"liver, stomach, .* but .*liver, spleen"):
        run_benchmark(make_plan(data, copied), tmp_path / "study", silent=True)
    with pytest.raises(PathError, match=r"`datasets\.toy\.external\.far` is the dataset itself"):
        run_benchmark(make_plan(data, data), tmp_path / "study", silent=True)
    assert not (tmp_path / "study").exists()
    with pytest.raises(ValueError, match=r"`a/b` in `datasets\.toy\.external`"):
        make_plan(data, other, datasets={"toy": {"path": "x", "external": {"a/b": "y"}}})
