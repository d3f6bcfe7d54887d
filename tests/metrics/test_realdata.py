"""Real label maps: Hippocampus against a shifted copy (every fourth case, and as a slow test every
one), and some ACDC ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from segcal.metrics import all_surface_distances, dsc

pytestmark = [pytest.mark.realdata, pytest.mark.filterwarnings("ignore")]


def load(path: Path) -> tuple[np.ndarray, tuple[float, ...]]:
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.load(path)
    labels = np.asarray(image.dataobj).astype(np.int64)
    return labels, tuple(float(s) for s in image.header.get_zooms()[:3])


def one_hot(labels: np.ndarray, num_classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(labels), num_classes).movedim(-1, 0)[None]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_hippocampus_agrees_with_monai_case_by_case(data_root: Path, step: int) -> None:
    from monai.metrics import compute_dice, compute_hausdorff_distance, compute_surface_dice

    files = sorted((data_root / "hippocampus" / "labelsTr").glob("[!.]*.nii.gz"))
    assert len(files) >= 200
    for file in files[::step]:
        target, spacing = load(file)
        labels = np.roll(target, (1, -2, 1), (0, 1, 2))
        a, b = one_hot(labels, 3), one_hot(target, 3)
        ours = all_surface_distances(labels, target, 3, spacing)
        size = list(spacing)
        hd95 = compute_hausdorff_distance(a, b, percentile=95, spacing=size)[0]
        nsd = compute_surface_dice(a, b, [1.0, 1.0], spacing=size)[0]
        dice = compute_dice(a, b, include_background=False)[0]
        found = list(ours.values())
        assert [d.hd95("max") for d in found] == pytest.approx(hd95.tolist(), rel=1e-5), file.name
        assert [d.nsd(1.0) for d in found] == pytest.approx(nsd.tolist(), abs=1e-6), file.name
        values = list(dsc(labels, target, 3).values())
        assert values == pytest.approx(dice.tolist(), abs=1e-6), file.name


def test_acdc_agrees_with_medpy(data_root: Path) -> None:
    from medpy.metric.binary import hd95

    files = sorted((data_root / "acdc" / "training").glob("patient*/*_gt.nii.gz"))[:60:20]
    assert files
    for file in files:
        target, spacing = load(file)
        labels = np.roll(target, 3, 0)
        ours = all_surface_distances(labels, target, 4, spacing)
        for k in np.unique(target[target > 0]):
            theirs = hd95(labels == k, target == k, voxelspacing=spacing)
            assert ours[str(k)].hd95() == pytest.approx(theirs), file.name
