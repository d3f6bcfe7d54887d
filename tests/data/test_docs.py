"""The Python code in docs/how-to/data.md runs."""

import re
from pathlib import Path

import pytest

from helpers.trees import blob, save, scan
from segcal.data import prepare

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"


def test_code_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    for patient in ("anna", "ben"):
        scan_folder = tmp_path / "knees" / patient / "second"
        save(scan_folder / "t2.nii.gz", scan((20, 24, 6), len(patient)))
        save(scan_folder / "mask.nii.gz", blob((20, 24, 6), (1,)))
    source = names["KneeSource"](tmp_path / "knees", visit="second")  # type: ignore[operator]
    dataset = prepare(source, tmp_path / "prepared" / "knees").dataset
    assert {case.name: case.patient for case in dataset} == {
        "anna_second": "anna",
        "ben_second": "ben",
    }


def test_torch_is_loaded_only_for_torch_datasets() -> None:
    import subprocess
    import sys

    code = (
        "import sys, segcal.data as d\n"
        "assert 'torch' not in sys.modules\n"
        "d.SliceDataset\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
