import warnings

import pytest

import segcal
from segcal.core.errors import show_warnings_in_one_line


def test_only_warnings_of_segcal_have_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    show_warnings_in_one_line()
    ours = warnings.formatwarning("few voxels", UserWarning, segcal.__file__, 3)
    assert ours == "segcal: few voxels\n"
    theirs = warnings.formatwarning("few voxels", UserWarning, pytest.__file__, 3)
    assert f"{pytest.__file__}:3: UserWarning: few voxels" in theirs
