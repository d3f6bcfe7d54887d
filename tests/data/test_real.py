"""Real volumes, where available: ACDC and Hippocampus of the Decathlon."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from segcal.data import AcdcSource, MsdSource, check_dataset, prepare, write_nifti

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def acdc(data_root: Path) -> Path:
    folder = data_root / "acdc" / "training"
    if not folder.is_dir():
        pytest.skip(f"no ACDC below {data_root}")
    return folder


@pytest.fixture(scope="module")
def hippocampus(data_root: Path) -> Path:
    folder = data_root / "hippocampus"
    if not folder.is_dir():
        pytest.skip(f"no Hippocampus below {data_root}")
    return folder


def test_some_acdc_patients_with_the_duplicate_pair(acdc: Path, tmp_path: Path) -> None:
    source = tmp_path / "acdc"
    source.mkdir()
    for number in (1, 30, 74, 76, 99):
        (source / f"patient{number:03d}").symlink_to(acdc / f"patient{number:03d}")
    dataset = prepare(AcdcSource(source), tmp_path / "out", dtype="uint8").dataset
    assert dataset.splits.duplicates == (("patient074", "patient076"),)
    assert check_dataset(tmp_path / "out").problems == ()
    # Spacing by hand: patient 1 is 216 × 256 × 10 at 1.5625 mm, resized to 224 × 224.
    case = dataset["patient001_frame01"]
    expected = (10.0, 1.5625 * 256 / 224, 1.5625 * 216 / 224)
    np.testing.assert_allclose(case.spacing_mm, expected, rtol=1e-5)
    # The hearts lie within the crop, so the labels return to their grid nearly unchanged.
    original = nib.load(acdc / "patient001" / "patient001_frame01_gt.nii.gz")
    truth = np.asanyarray(original.dataobj).T
    back = case.grid.restore_labels(case.label())
    for value in (1, 2, 3):
        both = ((back == value) & (truth == value)).sum()
        assert 2 * both / ((back == value).sum() + (truth == value).sum()) > 0.97
    write_nifti(tmp_path / "back.nii.gz", back, case.grid)
    written = nib.load(tmp_path / "back.nii.gz")
    assert written.shape == original.shape
    assert written.header.get_zooms() == original.header.get_zooms()
    np.testing.assert_array_equal(written.affine, original.affine)


def test_some_hippocampus_cases(hippocampus: Path, tmp_path: Path) -> None:
    source = tmp_path / "hippocampus"
    for folder in ("imagesTr", "labelsTr"):
        (source / folder).mkdir(parents=True)
        for path in sorted((hippocampus / folder).glob("*.nii.gz"))[:12]:
            shutil.copy(path, source / folder)
    dataset = prepare(MsdSource(source), tmp_path / "out").dataset
    assert check_dataset(tmp_path / "out").problems == ()
    assert dataset.num_classes == 3
    for case in dataset:
        # Padded, not resampled: labels return exactly.
        assert case.shape[1:] == (64, 64)
        path = hippocampus / "labelsTr" / f"{case.name}.nii.gz"
        truth = np.asanyarray(nib.load(path).dataobj).T
        np.testing.assert_array_equal(case.grid.restore_labels(case.label()), truth)
        inside = case.image()[case.image() != 0]
        assert abs(inside.mean()) < 0.05
        assert abs(inside.std() - 1) < 0.05


def published_fingerprint(study: str) -> str:
    """Of the data set that a published study was trained on."""
    path = Path(__file__).parents[2] / "docs" / "results" / study / "study.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["datasets"][0]["fingerprint"])


@pytest.mark.slow
def test_all_of_acdc(acdc: Path, tmp_path: Path) -> None:
    report = prepare(AcdcSource(acdc), tmp_path / "out", dtype="uint8", workers=2)
    assert (report.written, report.skipped) == (200, ())
    assert report.dataset.fingerprint == published_fingerprint("acdc")
    splits = report.dataset.splits
    assert [len(splits.train), len(splits.val), len(splits.test)] == [140, 20, 40]
    assert splits.duplicates == (("patient074", "patient076"),)
    checked = check_dataset(tmp_path / "out")
    assert checked.problems == ()
    assert dict(checked.summary)["slices"] == "1,902"


@pytest.mark.slow
def test_all_of_hippocampus(hippocampus: Path, tmp_path: Path) -> None:
    source = MsdSource(hippocampus, classes="anterior,posterior")
    report = prepare(source, tmp_path / "out", dtype="uint8", workers=2)
    assert (report.written, report.skipped) == (260, ())
    # The published study used a set whose padding counted as background.
    assert report.dataset.fingerprint != published_fingerprint("hippocampus")
    stored = sum(case.label().size for case in report.dataset)
    assert sum(case.ignored for case in report.cases) / stored == pytest.approx(0.57, abs=0.001)
    assert {case.shape[1:] for case in report.dataset} == {(64, 64)}
    assert check_dataset(tmp_path / "out").problems == ()
