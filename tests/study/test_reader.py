"""Study folders that are cut off, damaged or contradict themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.plain_studies import write_plain
from segcal.core.errors import PathError
from segcal.study import read_study

VALUES = {(m, 0, c): {"dsc": 0.5, "ece": 0.25} for m in ("a", "b") for c in ("x", "y")}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "study", VALUES)


def change(study: Path, **keys: Any) -> None:
    path = study / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_study(study: Path) -> None:
    found = read_study(study)
    assert list(found.methods) == ["a", "b"]
    assert (found.datasets["d"].title, found.methods["a"].title) == ("Set D", "a")
    assert found.present == {("d", "a"), ("d", "b")}
    assert (found.region, found.regions, found.metrics) == ("all", ("all",), ("dsc", "ece"))
    assert found.compared == ["a", "b"]
    assert [path.name for _, path in found.files("cases.csv")] == ["cases.csv"] * 2
    assert list(found.files("bins.npz")) == []


def test_folders_that_are_not_studies(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="does not exist"):
        read_study(tmp_path / "nothing")
    with pytest.raises(PathError, match=r"study\.json.*segcal benchmark"):
        read_study(tmp_path)


def test_a_table_that_is_cut_off(study: Path) -> None:
    path = study / "cases.csv"
    content = path.read_bytes()
    lines = content.splitlines(True)
    for lost in (1, 3, 6, 12, 25):
        path.write_bytes(content[: -lost - 1])
        with pytest.raises(PathError, match=r"cases\.csv: is cut off"):
            read_study(study)
    path.write_bytes(b"".join(lines[:-1]))  # the run still has rows
    read_study(study)
    path.write_bytes(b"".join(lines[:5]))
    with pytest.raises(PathError, match=r"cases\.csv: has no rows of run 'd/b/seed0'.*--resume"):
        read_study(study)
    for empty in (lines[0], b""):
        path.write_bytes(empty)
        with pytest.raises(PathError, match=r"has no rows.*--resume"):
            read_study(study)


def test_a_failed_run_needs_no_rows(study: Path) -> None:
    runs = json.loads((study / "study.json").read_text())["runs"]
    more = {"run": "d/c/seed0", "method": "c", "dataset": "d", "state": "failed"}
    change(study, runs=[*runs, more])
    assert [run.run for run in read_study(study).failed] == ["d/c/seed0"]
    change(study, runs=[*runs, more | {"state": "done"}])
    with pytest.raises(PathError, match=r"has no rows of run 'd/c/seed0'"):
        read_study(study)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"format": "other"}, "`format`"),
        ({"version": 2}, "`version`"),
        ({"datasets": 1}, "`datasets`"),
        ({"tables": ["mein"]}, r"`tables\.0`.*'mein'"),
        ({"datasets": [{"name": "d", "patients": {"x": ["y"]}}]}, r"`datasets\.0\.patients\.x`"),
    ],
)
def test_invalid_keys_are_named(study: Path, keys: dict[str, Any], place: str) -> None:
    change(study, **keys)
    with pytest.raises(PathError, match=rf"study\.json: is not .*{place}"):
        read_study(study)


def test_a_file_that_is_not_json(study: Path) -> None:
    (study / "study.json").write_text("{")
    with pytest.raises(PathError, match=r"study\.json: is not the description"):
        read_study(study)


@pytest.mark.parametrize("region", ["nonsense", "boundary"])
def test_a_region_that_was_not_measured(study: Path, region: str) -> None:
    change(study, region=region)
    with pytest.raises(PathError, match=rf"study\.json: .*'{region}'.*all.*--region"):
        read_study(study)
    assert read_study(study, "all").region == "all"
    with pytest.raises(ValueError, match=rf"--region.*'all'.*'{region}'"):
        read_study(study, region)


@pytest.mark.parametrize("folder", ["../elsewhere", "/tmp"])
def test_a_run_outside_the_study(study: Path, folder: str) -> None:
    runs = json.loads((study / "study.json").read_text())["runs"]
    change(study, runs=[runs[0] | {"folder": folder}, runs[1]])
    with pytest.raises(PathError, match=rf"'d/a/seed0' is outside the study \({folder}\)"):
        list(read_study(study).files("bins.npz"))


def test_metrics_as_the_rows_name_them(tmp_path: Path) -> None:
    values = {("a", 0, "x"): {"dsc": 0.5, "hd95_voxel": 2.0, "ece": 0.1}}
    study = write_plain(tmp_path / "s", values, metrics=["dsc", "hd95_mm", "nsd_2mm"])
    assert read_study(study).metrics == ("dsc", "hd95_voxel")
