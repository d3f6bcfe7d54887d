"""Study files that are cut off, blank, damaged or contradict each other."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.plain_studies import write_plain
from segcal.report import write_report
from segcal.report.context import Context
from segcal.report.pictures import case_slices
from segcal.study import read_study

VALUES = {(m, 0, c): {"dsc": 0.5, "ece": 0.25} for m in ("a", "b") for c in ("x", "y")}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "rows", VALUES) / "cases.csv"


def change(study: Path, **keys: Any) -> None:
    path = study / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_table_that_is_cut_off(rows: Path) -> None:
    whole = rows.read_bytes()
    lines = whole.splitlines(True)
    for lost in (1, 3, 6, 12, 25):  # behind the value, in it, in the names
        rows.write_bytes(whole[: -lost - 1])
        with pytest.raises(ValueError, match=r"cases.csv: .*cut off"):
            read_study(rows.parent)
    rows.write_bytes(b"".join(lines[:-1]))  # the run still has rows
    read_study(rows.parent)
    rows.write_bytes(b"".join(lines[:5]))
    with pytest.raises(ValueError, match=r"cases.csv: .*'d/b/seed0'"):
        read_study(rows.parent)
    for empty in (lines[0], b""):
        rows.write_bytes(empty)
        with pytest.raises(ValueError, match=r"cases.csv: .*no rows.*resume"):
            read_study(rows.parent)


@pytest.mark.parametrize("column", ["method", "dataset", "case", "label", "region", "metric"])
def test_a_blank_name_is_reported_with_its_row(rows: Path, column: str) -> None:
    lines = [line.split(",") for line in rows.read_text().splitlines()]
    lines[3][lines[0].index(column)] = " "
    rows.write_text("".join(",".join(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=rf"cases.csv: .*`{column}`.* row 3"):
        read_study(rows.parent)


def test_a_run_that_failed_needs_no_rows(rows: Path) -> None:
    study = json.loads((rows.parent / "study.json").read_text())
    more = {"run": "d/c/seed0", "method": "c", "dataset": "d", "seed": 0, "state": "failed"}
    change(rows.parent, runs=[*study["runs"], more])
    read_study(rows.parent)
    change(rows.parent, runs=[*study["runs"], more | {"state": "done"}])
    with pytest.raises(ValueError, match="'d/c/seed0'"):
        read_study(rows.parent)


@pytest.mark.parametrize("region", ["nonsense", "boundary"])
def test_a_region_of_the_study_that_was_not_measured(rows: Path, region: str) -> None:
    change(rows.parent, region=region)
    with pytest.raises(ValueError, match=rf"study.json: .*'{region}'.*measured in all"):
        read_study(rows.parent)
    assert read_study(rows.parent, "all").region == "all"


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut off":
        path.write_bytes(content[:900])
    elif how == "text":
        path.write_bytes(b"hello\n")
    elif how == "encrypted":  # by the flags of the first member, in the directory at the end
        at = content.index(b"PK\x01\x02") + 8
        path.write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    else:  # the directory at the end is whole, the numbers are not
        start, stop = len(content) // 8, 3 * len(content) // 4
        path.write_bytes(content[:start] + bytes(stop - start) + content[stop:])


def read_arrays(folder: Path) -> None:
    context = Context(read_study(folder))
    assert context.bins
    case_slices(context, "acdc")


@pytest.mark.parametrize("how", ["empty", "cut off", "text", "encrypted", "overwritten"])
@pytest.mark.parametrize(
    ("name", "what"), [("bins.npz", "calibration bins"), ("slices.npz", "slices")]
)
def test_damaged_arrays(tiny: Path, name: str, what: str, how: str) -> None:
    damage(tiny / "runs" / "acdc" / "ce_dice" / "seed0" / name, how)
    with pytest.raises(ValueError, match=rf"{name}: .*{what}.*remove it") as raised:
        read_arrays(tiny)
    assert "pickle" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_command_at_an_empty_file_is_one_line(tiny: Path) -> None:
    damage(tiny / "runs" / "acdc" / "ce_dice" / "seed0" / "bins.npz", "empty")
    done = subprocess.run(
        [sys.executable, "-m", "segcal", "report", str(tiny)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "bins.npz" in done.stderr
    assert not (tiny / "report").exists()


# Tables that a study selects.

GROUPED = {(m, 0, "x"): {"dsc": 0.5, "ece": 0.25, "class_ece": 0.1} for m in ("nacl", "abl", "pri")}
METHODS = [
    {"name": "nacl"},
    {"name": "abl", "group": "ablation"},
    {"name": "pri", "group": "prior"},
]


@pytest.mark.parametrize(
    ("tables", "shown"),
    [(None, {"main", "classes", "ablation", "priors"}), (["main", "priors"], {"main", "priors"}),
     (["ablation", "classes"], {"ablation", "classes"})],
)  # fmt: skip
def test_only_the_tables_that_the_study_names(
    tmp_path: Path, tables: list[str] | None, shown: set[str]
) -> None:
    extra = {} if tables is None else {"tables": tables}
    page = write_report(write_plain(tmp_path, GROUPED, methods=METHODS, **extra))
    known = {"main", "classes", "ablation", "priors"}
    assert (
        set(re.findall(r'<section id="(\w+)"', page.read_text(encoding="utf-8"))) & known == shown
    )
    files = {path.stem.removesuffix("_d") for path in (page.parent / "tables").glob("*.md")}
    assert files & known == shown


def test_an_unknown_table(rows: Path) -> None:
    change(rows.parent, tables=["mein"])
    with pytest.raises(ValueError, match=r"study.json: .*`tables.0`"):
        read_study(rows.parent)


def test_a_dataset_without_case_metrics(rows: Path) -> None:
    lines = [line.split(",") for line in rows.read_text().splitlines()]
    dataset, metric = lines[0].index("dataset"), lines[0].index("metric")
    own = next(line for line in lines[1:] if line[metric] == "ece")
    own[dataset], own[metric] = "other", "nll"
    rows.write_text("".join(",".join(line) + "\n" for line in lines))
    assert Context(read_study(rows.parent)).worst_cases("other", "a") == []
