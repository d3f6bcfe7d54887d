"""Calibrators need numpy and scipy only: torch is optional, all other packages are not loaded."""

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
for name in ("torch", "pydantic", "pandas", "yaml", "nibabel", "typer", "rich", "filelock",
             "matplotlib", "monai", "safetensors"):
    sys.modules[name] = None  # import fails

import numpy as np
from segcal.posthoc import CALIBRATORS, HeldOut, load_calibrator, make_calibrator, to_probs

rng = np.random.default_rng(0)
logits, target = rng.normal(size=(3, 500)), rng.integers(0, 3, 500)
for name in CALIBRATORS:
    options = {"alpha": 0.1} if name == "inverse" else {}
    fitted = make_calibrator(name, **options).fit([HeldOut(logits, target, spacing_mm=1.0)])
    fitted.save(sys.argv[1])
    again = load_calibrator(sys.argv[1])
    one, two = (each.transform(logits, spacing_mm=1.0) for each in (again, fitted))
    np.testing.assert_allclose(one, two)
to_probs(logits)
"""


def test_fit_save_and_load_without_other_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "c.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
