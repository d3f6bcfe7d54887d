"""Studies that grow run by run, and that are killed while they are written."""

import json
from pathlib import Path

import pandas as pd
import pytest

from segcal.metrics import Row
from segcal.study import (
    Dataset,
    Method,
    Run,
    StudyFile,
    StudyWriter,
    rank_study,
    read_study,
    write_cases_table,
)


def make_run(folder: Path, method: str, state: str = "done") -> Run:
    name = f"d/{method}/seed0"
    if state == "done":
        rows = [
            Row(name, method, 0, "d", case, "all", "all", metric, value)
            for case, value in (("x", 0.1), ("y", 0.7), ("z", 0.4 + 0.1 * (method == "b")))
            for metric in ("dsc", "ece")
        ]
        (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
        write_cases_table(folder / "runs" / name / "cases.csv", rows)
    return Run(run=name, method=method, dataset="d", folder=f"runs/{name}", state=state)


def content(*runs: Run) -> StudyFile:
    return StudyFile(
        format="segcal-study",
        version=1,
        datasets=(Dataset(name="d"),),
        methods=tuple(Method(name=name) for name in "abc"),
        runs=runs,
    )


def methods_of(folder: Path) -> list[str]:
    return list(dict.fromkeys(map(str, read_study(folder).table["method"])))


def test_rows_are_appended_in_the_order_in_which_runs_finish(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path)
    missing = [make_run(tmp_path, name, "missing") for name in "abc"]
    writer.write(content(*missing))
    assert read_study(tmp_path).table.empty
    a, b, c = (make_run(tmp_path, name) for name in "abc")
    writer.write(content(missing[0], missing[1], c))
    first = (tmp_path / "cases.csv").stat()
    start = (tmp_path / "cases.csv").read_bytes()
    writer.write(content(a, missing[1], c))
    assert methods_of(tmp_path) == ["c", "a"]
    # Appended to the same file: what was there is not written again.
    assert (tmp_path / "cases.csv").stat().st_ino == first.st_ino
    assert (tmp_path / "cases.csv").read_bytes().startswith(start)
    writer.write(content(a, b, c), complete=True)
    assert methods_of(tmp_path) == ["a", "b", "c"]
    info = read_study(tmp_path).info
    assert info.table_bytes is None
    expected = [pd.read_csv(tmp_path / run.folder / "cases.csv") for run in (a, b, c)]
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "cases.csv"), pd.concat(expected, ignore_index=True)
    )


def test_a_complete_study_in_order_is_not_written_twice(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path)
    a, b = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    writer.write(content(a))
    writer.write(content(a, b))
    before = (tmp_path / "cases.csv").stat()
    writer.write(content(a, b), complete=True)
    after = (tmp_path / "cases.csv").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("length", [1, 30, 10_000])
def test_a_kill_during_an_append(tmp_path: Path, length: int) -> None:
    """study.json is still the old one: rows after its length do not count, whole or not."""
    a, b = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    missing = make_run(tmp_path, "b", "missing")
    StudyWriter(tmp_path).write(content(a, missing))
    rows = (tmp_path / b.folder / "cases.csv").read_bytes().split(b"\n", 1)[1]
    with (tmp_path / "cases.csv").open("ab") as table:
        table.write(rows[:length])
    assert methods_of(tmp_path) == ["a"]
    # A resumed study writes the table again.
    resumed = StudyWriter(tmp_path)
    resumed.write(content(a, b))
    assert methods_of(tmp_path) == ["a", "b"]
    resumed.write(content(a, b), complete=True)
    assert len(read_study(tmp_path).table) == 12


def test_a_kill_between_the_table_and_study_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a table is replaced, study.json does not keep the length of the old one."""
    a, b = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    StudyWriter(tmp_path).write(content(a, make_run(tmp_path, "b", "missing")))
    assert json.loads((tmp_path / "study.json").read_text())["table_bytes"] > 0

    def kill(content: StudyFile, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StudyFile, "model_dump", kill)
    with pytest.raises(KeyboardInterrupt):
        StudyWriter(tmp_path).write(content(b, a))
    assert methods_of(tmp_path) == ["b", "a"]


def test_a_table_shorter_than_its_length_is_refused(tmp_path: Path) -> None:
    StudyWriter(tmp_path).write(content(make_run(tmp_path, "a")))
    table = tmp_path / "cases.csv"
    table.write_bytes(table.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"cases\.csv: .*bytes; copy"):
        read_study(tmp_path)


def test_ranks(tmp_path: Path) -> None:
    a, b = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    StudyWriter(tmp_path).write(content(a, b), complete=True)
    table = read_study(tmp_path).table
    ranks = rank_study(tmp_path, table, ["a", "b"], ["dsc", "hd95_mm"], "all")
    assert list(ranks["method"]) == ["b", "a"]
    assert set(ranks["metrics"]) == {"dsc"}  # distances were not measured
    assert list(pd.read_csv(tmp_path / "ranks.csv")["method"]) == ["b", "a"]
    with pytest.raises(ValueError, match="no metric"):
        rank_study(tmp_path, table, ["a", "b"], ["hd95_mm"], "all")
    assert not (tmp_path / "ranks.csv").exists()
    with pytest.raises(ValueError, match="fewer than two methods"):
        rank_study(tmp_path, table, ["a", "none"], ["dsc"], "all")
