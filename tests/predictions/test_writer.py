"""Writing probabilities in the format they were read from."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.softmax_files import (
    FORMS,
    write_labels,
    write_predictions,
)
from segcal.core.errors import PathError
from segcal.predictions import find_pairs, write_like, write_nifti_like


@pytest.mark.parametrize("form", FORMS)
def test_written_files_are_read_again(tmp_path: Path, form: str) -> None:
    write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", form, 2)
    pairs = find_pairs(folder, tmp_path / "labels")
    for pair in pairs:
        write_like(pair.softmax, np.asarray(pair.load().values), tmp_path / "out")
    again = find_pairs(tmp_path / "out", tmp_path / "labels")
    for one, two in zip(pairs, again, strict=True):
        np.testing.assert_array_equal(one.load().values, two.load().values)
        assert [p.name for p in one.softmax.paths] == [p.name for p in two.softmax.paths]
        if form in ("nifti", "classes"):
            old, new = (nib.load(pair.softmax.path) for pair in (one, two))
            np.testing.assert_array_equal(old.affine, new.affine)
            assert old.shape == new.shape
    if form == "nnunet":
        assert (tmp_path / "out" / "case_000.pkl").is_file()
    assert not list((tmp_path / "out").glob(".*"))


def test_a_damaged_source_is_named(tmp_path: Path) -> None:
    source = tmp_path / "case.nii.gz"
    source.write_bytes(b"<html>")
    with pytest.raises(PathError, match=r"case\.nii\.gz: is damaged"):
        write_nifti_like(source, np.zeros((2, 3, 4), np.uint8), tmp_path)
