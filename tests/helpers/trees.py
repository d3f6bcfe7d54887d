"""Small data sets in the layouts of the challenges, with realistic NIfTI headers."""

import json
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from segcal import cli

# Rotated about two axes, unequal spacing, far from the origin.
OBLIQUE = np.array(
    [
        [0.70, -0.28, 0.55, -83.0],
        [0.21, 0.74, 0.90, 41.0],
        [-0.20, -0.12, 2.10, -205.5],
        [0.0, 0.0, 0.0, 1.0],
    ]
)


def oblique(spacing_xyz: tuple[float, float, float]) -> np.ndarray:
    """An orthogonal rotation times the spacing, with an offset."""
    rotation, _ = np.linalg.qr(OBLIQUE[:3, :3])
    affine = np.eye(4)
    affine[:3, :3] = rotation * np.array(spacing_xyz)
    affine[:3, 3] = OBLIQUE[:3, 3]
    return affine


def save(path: Path, array: np.ndarray, affine: np.ndarray | None = None) -> Path:
    """Write an (X, Y, Z[, C]) array as a NIfTI file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine), path)
    return path


def blob(shape: tuple[int, int, int], labels: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """Nested ellipsoids, one per label, in an (X, Y, Z) array."""
    axes = [np.linspace(-1, 1, n) for n in shape]
    rho = np.sqrt(sum(a**2 for a in np.meshgrid(*axes, indexing="ij")))
    out = np.zeros(shape, dtype=dtype)
    for index, value in enumerate(labels):
        out[rho < 0.8 * (1 - index / len(labels))] = value
    return out


def scan(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> np.ndarray:
    """Smooth structure plus noise, positive."""
    rng = np.random.default_rng(seed)
    axes = [np.linspace(0, 3 + seed % 3, n) for n in shape[:3]]
    base = sum(np.sin(a) for a in np.meshgrid(*axes, indexing="ij"))
    base = base if len(shape) == 3 else np.stack([base * (c + 1) for c in range(shape[3])], -1)
    return (100 * (base + 4) + 10 * rng.standard_normal(shape)).astype(dtype)


def acdc_tree(root: Path, patients: int = 3, shape: tuple[int, int, int] = (40, 48, 3)) -> Path:
    for number in range(1, patients + 1):
        folder = root / f"patient{number:03d}"
        folder.mkdir(parents=True)
        (folder / "Info.cfg").write_text("ED: 1\nES: 12\nGroup: NOR\nNbFrame: 30\n")
        for frame in (1, 12):
            name = f"{folder.name}_frame{frame:02d}"
            affine = np.diag([1.5, 1.5, 10.0, 1.0])
            save(folder / f"{name}.nii.gz", scan(shape, 2 * number + (frame > 1)), affine)
            save(folder / f"{name}_gt.nii.gz", blob(shape, (1, 2, 3)), affine)
    return root


def flare_tree(root: Path, cases: int = 2) -> Path:
    for number in range(cases):
        shape, affine = (60, 56, 22 + number), oblique((0.8, 0.8, 2.5))
        image = (scan(shape, number) * 2 - 900).astype(np.int16)
        save(root / "TrainingImg" / f"train_{number:03d}_0000.nii.gz", image, affine)
        mask = blob(shape, (1, 2, 3, 4))
        save(root / "TrainingMask" / f"train_{number:03d}.nii.gz", mask, affine)
    return root


def brats_tree(root: Path, cases: int = 1, shape: tuple[int, int, int] = (36, 40, 30)) -> Path:
    for number in range(cases):
        name = f"BraTS19_X_{number}_1"
        folder = root / ("LGG" if number % 2 else "HGG") / name
        affine = oblique((1.0, 1.0, 1.2))
        for index, modality in enumerate(("flair", "t1", "t1ce", "t2")):
            image = scan(shape, 10 * number + index, np.float64)
            image[:4] = 0
            save(folder / f"{name}_{modality}.nii.gz", image, affine)
        save(folder / f"{name}_seg.nii.gz", blob(shape, (2, 1, 4), np.int16), affine)
    return root


def msd_tree(root: Path, cases: int = 3, channels: int = 2, described: bool = True) -> Path:
    listed = []
    for number in range(cases):
        name = f"brain_{number:03d}"
        shape = (30, 34 + number, 12)
        full = (*shape, channels) if channels > 1 else shape
        affine = oblique((1.1, 0.9, 3.0))
        save(root / "imagesTr" / f"{name}.nii.gz", scan(full, number, np.int16), affine)
        save(root / "labelsTr" / f"{name}.nii.gz", blob(shape, (1, 2)), affine)
        listed.append({"image": f"./imagesTr/{name}.nii.gz", "label": f"./labelsTr/{name}.nii.gz"})
    if described:
        content = {
            "modality": {str(c): f"M{c}" for c in range(channels)},
            "labels": {"0": "background", "1": "outer", "2": "inner"},
            "training": listed,
        }
        (root / "dataset.json").write_text(json.dumps(content))
    return root


def folder_tree(root: Path, cases: int = 3) -> Path:
    for number in range(cases):
        shape = (20, 24, 6)
        save(root / "images" / f"fall {number}.nii.gz", scan(shape, number))
        save(root / "labels" / f"fall {number}.nii.gz", blob(shape, (1,)))
    return root


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `segcal …` in this process as the console script does; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["segcal", *map(str, arguments)])
    try:
        cli.run()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
