"""A real nnU-Net in a separate environment: the trainers, and the example from start to end.

$SEGCAL_NNUNET_PYTHON names a Python with nnU-Net, segcal (of this checkout) and pytest. Without it
an environment is created, which takes minutes and needs a package index.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

# A CPU build of torch cannot load the operators of a CUDA build of torchvision, whose import then
# fails. nnU-Net imports it through timm and uses none of them, so declaring them is enough.
NAMES_OF_OPERATORS = """
if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
"""


def run(*command: object, timeout: int = 3600, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="session")
def nnunet_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("SEGCAL_NNUNET_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("nnunet") / "venv"
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    install = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*install, "torch")  # first, so that no other package selects its build
    run(*install, "pytest", "--editable", f"{ROOT}[nnunet]")
    probe = subprocess.run([python, "-c", "import torchvision"], capture_output=True, text=True)
    if "operator torchvision::nms does not exist" in probe.stderr:
        (extension,) = folder.glob("lib/python*/site-packages/torchvision/extension.py")
        extension.write_text(extension.read_text() + NAMES_OF_OPERATORS)
    return python


def test_trainers_inside_nnunet(nnunet_python: Path) -> None:
    output = run(
        nnunet_python, "-m", "pytest", "-q", ROOT / "tests" / "helpers" / "nnunet_inside.py"
    )
    assert "62 passed" in output


@pytest.mark.realdata
@pytest.mark.parametrize("regions", [False, True])
def test_the_example(nnunet_python: Path, data_root: Path, tmp_path: Path, regions: bool) -> None:
    out = tmp_path / "out"
    example = ROOT / "examples" / "nnunet_hippocampus.py"
    # No -I or -S: the package installed there is this checkout, and no PYTHONPATH hides it.
    options = ["--regions"] if regions else []
    output = run(nnunet_python, example, data_root / "hippocampus", out, *options, PYTHONPATH="")
    trainer = "nnUNetTrainerNACLShort__nnUNetPlans__2d"
    results = out / "nnUNet_results" / "Dataset004_Hippocampus" / trainer
    logs = [p.read_text() for p in results.glob("fold_*/training_log_*.txt")]
    assert len(logs) == 2
    assert all("segcal: nacl + 1 · Dice, NACLLoss(" in log for log in logs)
    summaries = [json.loads(p.read_text()) for p in results.glob("fold_*/validation/summary.json")]
    # nnU-Net is not seeded: after 160 steps one fold may not have learned both classes.
    assert np.mean([summary["foreground_mean"]["Dice"] for summary in summaries]) > 0.3
    found = json.loads((results / "segcal_temperature.json").read_text())
    assert len(found["about"]["cases"]) == 10  # two of five folds of 24
    assert found["fit"]["nll_after"] <= found["fit"]["nll_before"]
    assert found["about"]["cross_validation"]["summary"] in output
    predicted = sorted((out / "predicted_fold_0").glob("*.npz"))
    assert len(predicted) == 6
    for path in predicted:
        before = np.load(path)["probabilities"]
        after = np.load(out / "calibrated" / path.name)["probabilities"]
        assert after.shape == before.shape
        assert (np.abs(after.sum(0) - 1).max() < 1e-3) == (not regions)
        assert not np.allclose(after, before)
    assert (out / "audit" / "report" / "index.html").is_file()
    names = {line.split(",")[5] for line in (out / "audit" / "cases.csv").read_text().splitlines()}
    assert ("hippocampus" in names) == regions
