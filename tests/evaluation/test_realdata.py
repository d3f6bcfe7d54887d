"""Real data: a CE+Dice network on the Hippocampus, too sure, and repaired on cases it never saw;
and nnU-Net's array order on real geometry."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.runs import finish, start
from segcal.evaluation import apply_folder, fit_pairs
from segcal.metrics import CalibrationBins
from segcal.predictions import find_pairs

pytestmark = [pytest.mark.realdata, pytest.mark.filterwarnings("ignore")]


def names(data_root: Path) -> list[str]:
    files = sorted((data_root / "hippocampus" / "labelsTr").glob("[!.]*.nii.gz"))
    return [file.name for file in files]


def test_nnunet_arrays_meet_real_labels(data_root: Path, tmp_path: Path) -> None:
    """Arrays and properties as nnU-Net's SimpleITK reader makes them, beside the label files."""
    import SimpleITK

    acdc = sorted((data_root / "acdc" / "training").glob("patient*/*_gt.nii.gz"))[:40:20]
    labels, probs = tmp_path / "labels", tmp_path / "probs"
    labels.mkdir()
    probs.mkdir()
    files = [data_root / "hippocampus" / "labelsTr" / name for name in names(data_root)[:3]]
    for path in files + acdc:
        shutil.copy(path, labels)
        image = SimpleITK.ReadImage(str(path))
        array = SimpleITK.GetArrayFromImage(image).astype(int)
        stem = path.name.removesuffix(".nii.gz")
        np.savez_compressed(
            probs / f"{stem}.npz",
            probabilities=np.moveaxis(np.eye(4, dtype=np.float32)[array], -1, 0),
        )
        properties = {
            "sitk_stuff": {
                "spacing": image.GetSpacing(),
                "origin": image.GetOrigin(),
                "direction": image.GetDirection(),
            },
            "spacing": list(image.GetSpacing())[::-1],
        }
        (probs / f"{stem}.pkl").write_bytes(pickle.dumps(properties))
    found = find_pairs(probs, labels)
    assert len(found) == len(files) + len(acdc)
    for pair in found:
        loaded = pair.load()
        np.testing.assert_array_equal(loaded.values.argmax(0), loaded.target)


@pytest.mark.slow
def test_a_network_that_is_too_sure_is_repaired(data_root: Path, tmp_path: Path) -> None:
    """Trained on a third of 60 crops for 40 epochs; fitted on 20 others, judged on 20 more."""
    chosen = names(data_root)[:60]
    for part, keep in (("train", chosen[:20]), ("fit", chosen[20:40]), ("test", chosen[40:])):
        for kind in ("imagesTr", "labelsTr"):
            (tmp_path / part / kind).mkdir(parents=True)
            for name in keep:
                source = data_root / "hippocampus" / kind / name
                (tmp_path / part / kind / name).symlink_to(source)
    segcal(
        "prepare", "msd", "--source", tmp_path / "train", "--out", tmp_path / "set",
        "--dtype", "uint8", "--classes", "anterior,posterior", "--workers", 1,
    )  # fmt: skip
    segcal(
        "train", "--data", tmp_path / "set", "--loss", "ce_dice", "--out", tmp_path / "run",
        "--recipe", "paper", "--epochs", 40,
        "--set", "data.size=[48,64]", "--set", "validate_every=40",
        "--set", "model.options={filters: [8, 16, 32], pools: [2, 2]}",
    )  # fmt: skip
    for part in ("fit", "test"):
        segcal(
            "predict", tmp_path / "run", "--input", tmp_path / part / "imagesTr",
            "--out", tmp_path / part / "probs", "--output", "probs", "--checkpoint", "last",
        )  # fmt: skip
    fit = find_pairs(tmp_path / "fit" / "probs", tmp_path / "fit" / "labelsTr")
    fitted = fit_pairs(fit, "temperature", from_probs=True)
    assert fitted.verdict is not None
    print(fitted.verdict.summary())
    assert fitted.verdict.helped == "yes"
    assert fitted.calibrator.temperature > 1.2  # type: ignore[attr-defined]

    apply_folder(fitted.calibrator, tmp_path / "test" / "probs", tmp_path / "out", from_probs=True)
    before = measure(tmp_path / "test" / "probs", tmp_path / "test" / "labelsTr")
    after = measure(tmp_path / "out", tmp_path / "test" / "labelsTr")
    print(before, after)
    for region in ("all", "foreground"):
        assert after[region] < before[region], region


def segcal(*arguments: object) -> None:
    code, said = finish(start(*arguments), timeout_s=3000)
    assert code == 0, said


def measure(folder: Path, labels: Path) -> dict[str, float]:
    """Mean ECE over cases, over all voxels and where the truth is foreground."""
    found: dict[str, list[float]] = {"all": [], "foreground": []}
    for pair in find_pairs(folder, labels):
        loaded: Any = pair.load()
        for region, mask in (("all", None), ("foreground", loaded.target > 0)):
            bins = CalibrationBins(3).update(loaded.values, loaded.target, mask, batched=False)
            found[region].append(bins.ece())
    return {region: float(np.mean(values)) for region, values in found.items()}
