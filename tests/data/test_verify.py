"""Stored voxels are compared with their hashes once."""

import os
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import phantom, settings
from segcal.core.errors import PathError
from segcal.data import open_dataset, verify_cases
from segcal.data.store import _frame
from segcal.training import train


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return phantom(tmp_path / "set", cases=8, slices=4, size=32)


def change_voxel(path: Path, array: np.ndarray) -> None:
    changed = array.copy()
    changed.flat[7] ^= 1
    path.write_bytes(_frame(changed))


def test_a_file_is_read_once(data: Path) -> None:
    cases = open_dataset(data).part("train")
    arrays = sum(len(case.properties.sha256) for case in cases)
    assert verify_cases(cases) == arrays
    assert verify_cases(cases) == 0
    os.utime(cases[0].folder / "label.b2nd", ns=(1, 1))
    assert verify_cases(cases) == 1


@pytest.mark.parametrize("part", ["train", "val"])
def test_training_refuses_changed_voxels(data: Path, tmp_path: Path, part: str) -> None:
    case = open_dataset(data).part(part)[0]
    change_voxel(case.folder / "label.b2nd", case.label())
    with pytest.raises(PathError, match="other voxels") as caught:
        train(settings(data), tmp_path / "run")
    assert caught.value.path == case.folder / "label.b2nd"
    assert not (tmp_path / "run").exists()
