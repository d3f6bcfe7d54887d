"""Folders of predictions in every format, with labels, on a grid whose axes all differ."""

import json
import pickle
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from helpers.posthoc_samples import blobs, softmax

AFFINE = np.array([[-1.5, 0, 0, 20], [0, 0, 3.0, -7], [0, 2.0, 0, 11], [0, 0, 0, 1]])
SPACING_ZYX = (3.0, 2.0, 1.5)
FORMS = ["nnunet", "npz", "npy", "npy_xyz", "nifti", "classes"]


def write_nifti(path: Path, array: Any, affine: Any = AFFINE) -> None:
    """Write (Z, Y, X) or (K, Z, Y, X) as a NIfTI file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(np.ascontiguousarray(array.T), affine)
    image.header.set_xyzt_units("mm")
    nib.save(image, path)


def nnunet_properties(affine: Any = AFFINE) -> dict[str, Any]:
    """The properties that nnU-Net's SimpleITK reader stores for an image with this affine."""
    flipped = np.diag([-1, -1, 1, 1]) @ affine
    spacing = np.sqrt((affine[:3, :3] ** 2).sum(0))
    return {
        "sitk_stuff": {
            "spacing": tuple(spacing.tolist()),
            "origin": tuple(flipped[:3, 3].tolist()),
            "direction": tuple((flipped[:3, :3] / spacing).ravel().tolist()),
        },
        "spacing": [np.float64(s) for s in spacing[::-1]],
        "shape_before_cropping": (10, 16, 14),
        "bbox_used_for_cropping": [[0, 10], [0, 16], [0, 14]],
        # With regions, nnU-Net's keys are tuples of labels.
        "class_locations": {1: np.zeros((3, 4), np.int64), (1, 2): np.zeros((3, 4), np.int64)},
    }


def write_labels(folder: Path, cases: int = 6) -> Path:
    for i in range(cases):
        write_nifti(folder / f"case_{i:03d}.nii.gz", blobs(i)[1])
    return folder


def write_images(folder: Path, cases: int = 6) -> Path:
    for i in range(cases):
        logits, _ = blobs(i)
        write_nifti(folder / f"case_{i:03d}_0000.nii.gz", logits[1])
    return folder


def write_predictions(
    folder: Path, form: str, cases: int = 6, logits: bool = False, too_sure: float = 3.0
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(cases):
        values = blobs(i, too_sure=too_sure)[0]
        array = values if logits else softmax(values).astype(np.float32)
        write_prediction(folder, f"case_{i:03d}", form, array)
    return folder


def write_prediction(folder: Path, name: str, form: str, array: Any) -> None:
    if form == "nnunet":
        np.savez_compressed(folder / f"{name}.npz", probabilities=array)
        (folder / f"{name}.pkl").write_bytes(pickle.dumps(nnunet_properties()))
        write_nifti(folder / f"{name}.nii.gz", array.argmax(0).astype(np.uint8))
    elif form == "npz":
        np.savez_compressed(folder / f"{name}.npz", probs=array)
    elif form == "npy":
        np.save(folder / f"{name}.npy", array)
    elif form == "npy_xyz":
        np.save(folder / f"{name}.npy", array.transpose(0, 3, 2, 1))
    elif form == "nifti":
        write_nifti(folder / f"{name}.nii.gz", array)
    elif form == "classes":
        for k, part in enumerate(array):
            write_nifti(folder / f"{name}_class{k}.nii.gz", part)


# Overlapping regions of the three classes of `blobs`, as nnU-Net declares them.
REGIONS = {"whole": (1, 2), "right": (2,)}


def write_regions(
    folder: Path, cases: int = 6, logits: bool = False, declare: bool = True, **blob: Any
) -> Path:
    """nnU-Net's output with regions: one sigmoid map each, and dataset.json beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(cases):
        array = region_probs(i, **blob)
        array = np.log(array / (1 - array)) if logits else array
        write_prediction(folder, f"case_{i:03d}", "nnunet", array.astype(np.float32))
    labels = {"background": 0, "whole": [1, 2], "right": 2}
    if declare:
        content = {"labels": labels, "regions_class_order": [1, 2]}
        (folder / "dataset.json").write_text(json.dumps(content))
    return folder


def region_probs(index: int, **blob: Any) -> Any:
    """(2, *S) in (0, 1): P(whole) and P(right) of the softmax of `blobs`."""
    p = softmax(blobs(index, **blob)[0])
    return np.clip([p[1] + p[2], p[2]], 1e-6, 1 - 1e-6)
