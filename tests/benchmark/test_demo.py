"""`segcal demo`: generated data, five losses, a ranking."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.runs import finish, start
from segcal.benchmark.demo import METHODS, demo_plan, prepare_demo
from segcal.benchmark.task_matrix import plan_tasks
from segcal.core.errors import PathError
from segcal.data import open_dataset


def test_the_plan(tmp_path: Path) -> None:
    tasks = plan_tasks(demo_plan(tmp_path))
    assert [task.method for task in tasks] == list(METHODS) == [
        "ce_dice", "ls", "svls", "mbls", "nacl",
    ]  # fmt: skip
    quick = plan_tasks(demo_plan(tmp_path, quick=True))
    assert quick[0].config.epochs < tasks[0].config.epochs
    said = []
    data = prepare_demo(tmp_path, quick=True, progress=lambda what, done, total: said.append(total))
    assert set(said) == {14}
    assert open_dataset(data).info.has_truth


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scan.nii.gz").touch()
    with pytest.raises(PathError, match="holds other files; choose another --out"):
        prepare_demo(tmp_path, quick=True)
    assert [path.name for path in tmp_path.iterdir()] == ["scan.nii.gz"]


@pytest.mark.slow
def test_quick_demo_in_a_process(tmp_path: Path) -> None:
    flag = () if find_spec("segcal.report") else ("--no-report",)
    code, said = finish(start("demo", "--out", tmp_path / "demo", "--quick", *flag), 600)
    assert code == 0, said
    assert "5/5" in said
    assert "sum rank" in said
    about = json.loads((tmp_path / "demo/study/study.json").read_text())
    assert about["kind"] == "demo"
    assert [run["state"] for run in about["runs"]] == ["done"] * 5
    if not flag:
        assert (tmp_path / "demo/study/report/index.html").is_file()
    # Once more: nothing is trained again.
    code, said = finish(start("demo", "--out", tmp_path / "demo", "--quick", *flag), 600)
    assert code == 0, said
    assert "5 finished runs are kept" in said
