"""Finding and reading softmax files; invalid files."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.softmax_files import (
    write_nifti,
    write_predictions,
)
from segcal.core.errors import PathError
from segcal.predictions import find_softmax


def test_one_file_per_class_needs_every_class(tmp_path: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "classes", 1)
    (folder / "case_000_class1.nii.gz").unlink()
    with pytest.raises(PathError, match="files of class 0, 2 only"):
        find_softmax(folder)


@pytest.mark.parametrize("separator", ["_class", "_", "_prob_", ".c"])
def test_names_of_files_per_class(tmp_path: Path, separator: str) -> None:
    for k in range(3):
        write_nifti(tmp_path / f"patient_01{separator}{k}.nii.gz", np.zeros((2, 3, 4), np.float32))
    assert list(find_softmax(tmp_path)) == ["patient_01"]
    assert find_softmax(tmp_path)["patient_01"].shape == (3, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.npz", b"PK\x03\x04 broken", "is damaged or not an .npz"),
        ("a.npy", b"\x93NUMPY broken", "is damaged or not an array"),
        ("a.npy", np.zeros((3, 4, 5), int), "array of int64"),
        ("a.npy", np.zeros((4, 5)), r"of shape \(4, 5\)"),
        ("a.npy", np.array([{}], dtype=object), "is damaged or not an array"),
        ("a.npz", {"x": np.zeros((2, 3, 4)), "y": np.zeros(2)}, "contains x, y"),
        ("a.nii.gz", b"nothing", "NIfTI|gzip"),
        ("a.txt", b"", "contains no probabilities"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, name: str, content: Any, problem: str) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(PathError, match=problem) as caught:
        find_softmax(tmp_path)
    assert re.search(re.escape(str(tmp_path)), str(caught.value))


@pytest.mark.parametrize("names", [["hippocampus_001", "hippocampus_098"], ["case_001"], ["ann"]])
def test_numbers_of_cases_are_no_classes(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write_nifti(tmp_path / f"{name}.nii.gz", np.zeros((2, 3, 4), np.float32))
    found = find_softmax(tmp_path)
    assert list(found) == names
    assert {file.shape for file in found.values()} == {(1, 2, 3, 4)}


def test_a_file_with_a_label_map_of_its_own_is_a_case(tmp_path: Path) -> None:
    names = ["case_000", "case_001", "case_002"]
    for name in names:
        write_nifti(tmp_path / f"{name}.nii.gz", np.zeros((2, 3, 4), np.float32))
    assert list(find_softmax(tmp_path)) == ["case"]
    assert list(find_softmax(tmp_path, {"case_002_gt": tmp_path})) == names
