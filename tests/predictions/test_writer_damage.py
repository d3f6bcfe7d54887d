"""A file whose header is copied but which is no NIfTI file."""

from pathlib import Path

import numpy as np
import pytest

from segcal.core.errors import PathError
from segcal.predictions import write_nifti_like


def test_a_damaged_source_is_named(tmp_path: Path) -> None:
    source = tmp_path / "case.nii.gz"
    source.write_bytes(b"<html>")
    with pytest.raises(PathError, match=r"case\.nii\.gz: is damaged"):
        write_nifti_like(source, np.zeros((2, 3, 4), np.uint8), tmp_path)
