import warnings

import pytest

import segcal
from segcal.core.errors import show_warnings_in_one_line


def test_only_warnings_of_segcal_have_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = warnings.formatwarning
    monkeypatch.setattr(warnings, "formatwarning", usual)
    monkeypatch.setenv("SEGCAL_DEBUG", "1")
    show_warnings_in_one_line()
    assert warnings.formatwarning is usual
    monkeypatch.delenv("SEGCAL_DEBUG")
    show_warnings_in_one_line()
    ours = warnings.formatwarning("few voxels", UserWarning, segcal.__file__, 3)
    assert ours == "segcal: few voxels\n"
    plugin = f"{segcal.__path__[0]}_plugin/loss.py"
    for path in (pytest.__file__, plugin):
        theirs = warnings.formatwarning("few voxels", UserWarning, path, 3)
        assert f"{path}:3: UserWarning: few voxels" in theirs
