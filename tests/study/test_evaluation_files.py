"""The files of an evaluation: what was written is read, and damage is detected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segcal.core.errors import PathError
from segcal.metrics import Row
from segcal.study import (
    Evaluation,
    EvaluationInfo,
    open_arrays,
    read_evaluation,
    write_evaluation_files,
)

ROWS = [
    Row("r", "m", 0, "d", case, label, region, metric, value)
    for case, shift in (("001", 0.0), ("NA", 0.2), ("pooled", 9.0))
    for label, region, metric, value in (
        ("organ", "all", "dsc", 0.5 + shift),
        ("organ", "all", "hd95_mm", float("nan")),
        ("all", "foreground", "ece", 0.1 + shift),
        ("all", "all", "ece", 0.3 + shift),
        ("1", "all", "class_ece", 7.0),
    )
]


def write(folder: Path, split: str = "test", **changes: Any) -> Evaluation:
    content: dict[str, Any] = {
        "run": "r", "method": "m", "seed": 0, "dataset": "d", "split": split,
        "regions": ("foreground", "all"), "options": {"units": "mm"}, "labels": ("bg", "organ"),
        "structures": ("organ",), "case_names": ("001", "NA"), "undefined": {"hd95_mm": 2},
        "seconds": 1.0, "versions": {}, "commit": None, **changes,
    }  # fmt: skip
    arrays = {"cases": np.array(["001", "NA"])}
    return write_evaluation_files(folder, EvaluationInfo(**content), ROWS, arrays, arrays)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written = write(tmp_path, "val", calibrator={"method": "temperature"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bins_val.npz", "cases_val.csv", "evaluation_val.json", "slices_val.npz",
    ]  # fmt: skip
    found = read_evaluation(tmp_path, "val")
    assert found == written
    assert found is not None
    assert read_evaluation(tmp_path) is None
    assert found.info.files["cases.csv"]["rows"] == len(ROWS)
    assert list(found.table()["case"].unique()) == ["001", "NA", "pooled"]
    # From memory and from the file.
    for region, ece in (("foreground", 0.2), ("all", 0.4)):
        for each in (written, found):
            means = each.means(region)
            assert means["dsc"] == pytest.approx(0.6)
            assert means["ece"] == pytest.approx(ece)
            assert np.isnan(means["hd95_mm"])
            assert "class_ece" not in means


def test_the_table_is_parsed_once(tmp_path: Path) -> None:
    written = write(tmp_path)
    found = read_evaluation(tmp_path)
    assert found is not None
    table = found.table()
    (tmp_path / "cases.csv").unlink()
    assert found.table() is table
    assert len(written.table()) == len(table)  # never read from the file


@pytest.mark.parametrize("name", ["cases.csv", "bins.npz", "slices.npz"])
def test_damage_is_detected(tmp_path: Path, name: str) -> None:
    found = write(tmp_path)
    assert found.damaged() is None
    path = tmp_path / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert found.damaged() == path
    path.unlink()
    assert found.damaged() == path


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "segcal-study"}'])
def test_another_file_in_its_place(tmp_path: Path, content: str) -> None:
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(PathError, match=r"evaluation\.json: is .*--overwrite"):
        read_evaluation(tmp_path)


def test_damaged_arrays_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "bins.npz"
    with open_arrays(path, "bins") as arrays:
        assert list(arrays["cases"]) == ["001", "NA"]
    for content in (b"", path.read_bytes()[:40], b"text"):
        path.write_bytes(content)
        with (
            pytest.raises(PathError, match=r"bins\.npz: does not hold calibration bins"),
            open_arrays(path, "calibration bins") as arrays,
        ):
            arrays["cases"]
