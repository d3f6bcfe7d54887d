"""The run folder: what is read of it, and what is refused."""

import json
from pathlib import Path

import pytest

from segcal.config import check_config
from segcal.core.errors import PathError
from segcal.study import RunFolder, epochs_done, read_run, training_seconds

ABOUT = {
    "dataset": "toy", "data_fingerprint": "f", "data": {},
    "space": {"orientations": {"RAS": 1}, "spacing_mm": [[1, 1], [1, 1], [1, 1]]},
    "cases": {"train": ["a"], "val": ["b"]}, "device": "CPU", "parameters": 3,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run", resume=False)
    with folder.hold():
        folder.describe(check_config({"epochs": 3, "seed": 4}), ABOUT)
        for epoch in range(3):
            folder.log({"epoch": epoch, "seconds": 1.5})
    return tmp_path / "run"


def test_what_was_written_is_read(run: Path) -> None:
    found = read_run(run)
    assert (found.config.seed, found.info.data_fingerprint) == (4, "f")
    assert found.info.cases == {"train": ("a",), "val": ("b",)}
    assert json.loads((run / "run.json").read_text())["parameters"] == 3
    assert (epochs_done(run), training_seconds(run)) == (3, 4.5)


def test_a_resumed_run_keeps_its_identity_and_its_log(run: Path) -> None:
    before = read_run(run).info
    with (run / "log.jsonl").open("a") as log:
        log.write('{"epoch": 3, "sec')  # cut off by a kill
    folder = RunFolder(run, resume=True)
    folder.check(check_config({"epochs": 5, "seed": 4}), "f", ABOUT["cases"])  # type: ignore[arg-type]
    with folder.hold():
        folder.describe(check_config({"epochs": 5, "seed": 4}), ABOUT)
        assert [row["epoch"] for row in folder.trim_log(2)] == [0, 1]
    after = read_run(run).info
    assert (after.run_id, after.started) == (before.run_id, before.started)
    assert epochs_done(run) == 2


def test_other_settings_data_and_cases_are_refused(run: Path) -> None:
    config, cases = check_config({"epochs": 3, "seed": 4}), {"train": ["a"], "val": ["b"]}

    def refused(problem: str, folder: RunFolder, *arguments: object) -> None:
        with pytest.raises(PathError, match=problem):
            folder.check(*arguments)  # type: ignore[arg-type]

    resumed = RunFolder(run, resume=True)
    resumed.check(config, "f", cases)
    refused("--resume", RunFolder(run, resume=False), config, "f", cases)
    refused("another `seed`", resumed, check_config({"epochs": 3, "seed": 5}), "f", cases)
    refused(r"`epochs` \(3, not 2\)", resumed, check_config({"epochs": 2, "seed": 4}), "f", cases)
    both = check_config({"epochs": 2, "seed": 5, "loss": {"name": "ls"}, "batch_size": 7})
    old = check_config({"epochs": 3})
    refused(
        rf"`batch_size` \({old.batch_size}, not 7\).*`loss\.name` \(\"{old.loss.name}\", not "
        r"\"ls\"\).*`seed` \(4, not 5\).*`epochs` \(3, not 2\)",
        resumed, both, "f", cases,
    )  # fmt: skip
    refused("other data", resumed, config, "g", cases)
    refused("val cases .*such as c", resumed, config, "f", {"train": ["a"], "val": ["b", "c"]})
    (run / "run.json").unlink()
    refused("no run", resumed, config, "f", cases)


@pytest.mark.parametrize("content", ["{", "[]", '{"run_id": 3}'])
def test_a_damaged_description_is_named(run: Path, content: str) -> None:
    (run / "run.json").write_text(content)
    with pytest.raises(PathError, match=r"run\.json: is not the description"):
        read_run(run)


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"does not exist; .*segcal train"):
        read_run(tmp_path / "none")
    with pytest.raises(PathError, match=r"is not a run; .*segcal train"):
        read_run(tmp_path)


def test_a_key_that_is_missing_is_named_without_the_content(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    del content["space"]
    (run / "run.json").write_text(json.dumps(content))
    with pytest.raises(PathError, match=r"`space` is missing") as caught:
        read_run(run)
    assert content["run_id"] not in str(caught.value)
    assert "train the run again" in str(caught.value)


@pytest.mark.parametrize("place", [".", "fold_0"])
def test_results_of_nnunet_are_recognized(tmp_path: Path, place: str) -> None:
    (tmp_path / "fold_0").mkdir()
    for name in ("plans.json", "dataset.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(PathError, match=r"nnU-Net.*segcal nnunet.*segcal audit"):
        read_run(tmp_path / place)


@pytest.mark.parametrize("early", [[], ["run.json"], [".partial-host-1-config.yaml", "run.json"]])
def test_a_folder_that_was_killed_before_its_config_is_begun_anew(
    tmp_path: Path, early: list[str]
) -> None:
    for name in (".lock", *early):
        (tmp_path / name).write_text("{")
    RunFolder(tmp_path, resume=True).check(check_config({}), "", {})
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PathError, match="no run"):
        RunFolder(tmp_path, resume=True).check(check_config({}), "", {})
