"""Scans whose truth is drawn from the one-factor model, with known probabilities."""

from pathlib import Path

import numpy as np
from scipy.special import ndtri

from helpers.softmax_files import write_nifti, write_prediction

SHAPE = (14, 18, 16)
RHO = 0.1


def phantom(seed: int, rho: float = RHO) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (3, *S) of two balls in background, and labels drawn with correlation ρ."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"))
    probs, target = np.zeros((3, *SHAPE)), np.zeros(SHAPE, np.uint8)
    for label, column in ((1, 5.0), (2, 13.0)):
        center = np.array([7, column, 8])[:, None, None, None] + rng.uniform(
            -0.5, 0.5, (3, 1, 1, 1)
        )
        distance = np.sqrt(((grid - center) ** 2).sum(0)) - rng.uniform(2.5, 4)
        side = grid[1] < 9 if label == 1 else grid[1] >= 9
        probs[label] = side / (1 + np.exp(distance / rng.uniform(0.3, 0.9)))
        z, e = rng.standard_normal(), rng.standard_normal(SHAPE)
        target[np.sqrt(rho) * z + np.sqrt(1 - rho) * e < ndtri(probs[label])] = label
    probs[0] = 1 - probs.sum(0)
    return probs.astype(np.float32), target


def write_phantoms(folder: Path, seeds: range, form: str = "nifti") -> Path:
    """probs/, labels/ and images/ of phantoms named p000_0, p000_1 (two scans per patient), …"""
    (folder / "probs").mkdir(parents=True)
    for seed in seeds:
        probs, target = phantom(seed)
        name = f"p{seed // 2:03d}_{seed % 2}"
        write_prediction(folder / "probs", name, form, probs)
        write_nifti(folder / "labels" / f"{name}.nii.gz", target)
        noise = np.random.default_rng(seed).normal(size=SHAPE)
        image = (100 * probs[1:].sum(0) + 5 * noise + 50).astype(np.float32)
        write_nifti(folder / "images" / f"{name}_0000.nii.gz", image)
    return folder
