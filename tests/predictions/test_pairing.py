"""Matching predictions with labels and images."""

import pickle
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.image_files import write_as
from helpers.posthoc_samples import blobs, softmax
from helpers.softmax_files import (
    AFFINE,
    FORMS,
    SPACING_ZYX,
    nnunet_properties,
    write_images,
    write_labels,
    write_nifti,
    write_prediction,
    write_predictions,
)
from segcal.core.errors import PathError
from segcal.predictions import IGNORED, find_pairs, find_unlabeled


def load_all(*arguments: Any, **options: Any) -> None:
    for pair in find_pairs(*arguments, **options):
        pair.load()


def rejected(problem: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(PathError, match=problem) as caught:
        load_all(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_voxels(tmp_path: Path, form: str) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", form, 2)
    images = write_images(tmp_path / "images", 2)
    pairs = find_pairs(folder, labels, images)
    assert pairs.names == ["case_000", "case_001"]
    assert pairs.num_classes == 3
    for i, pair in enumerate(pairs):
        loaded = pair.load()
        logits, target = blobs(i)
        np.testing.assert_allclose(loaded.values, softmax(logits), atol=1e-6)
        np.testing.assert_array_equal(loaded.target, target)
        np.testing.assert_allclose(loaded.spacing_mm, SPACING_ZYX)
        assert loaded.image is not None
        np.testing.assert_allclose(loaded.image[0], logits[1], atol=1e-5)


def test_missing_labels_and_images_are_listed(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    folder = write_predictions(tmp_path / "probs", "npy", 5)
    rejected(r"has no label for case_003, case_004 of .*probs", folder, labels)
    readers = tmp_path / "readers"
    (readers / "1").mkdir(parents=True)
    rejected("or a folder in this one", folder, readers)
    for i in (3, 4):
        write_nifti(labels / f"case_{i:03d}.nii.gz", blobs(i)[1])
    write_nifti(labels / "case_009.nii.gz", blobs(9)[1])
    assert find_pairs(folder, labels).unused == ("case_009",)
    images = write_images(tmp_path / "images", 4)
    rejected("has no image for case_004", folder, labels, images)


def test_different_grids_are_rejected(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    probs = softmax(blobs(0)[0]).astype(np.float32)
    moved = AFFINE.copy()
    moved[0, 3] += 5
    for form, problem in (("nifti", "lies 5 mm away"), ("nnunet", "lies 5 mm away")):
        folder = tmp_path / form
        folder.mkdir()
        write_prediction(folder, "case_000", form, probs)
        if form == "nifti":
            write_nifti(folder / "case_000.nii.gz", probs, moved)
        else:
            (folder / "case_000.pkl").write_bytes(pickle.dumps(nnunet_properties(moved)))
        rejected(problem, folder, labels)
    folder = tmp_path / "short"
    folder.mkdir()
    np.save(folder / "case_000.npy", probs[:, :9])
    rejected(
        r"has shape \(9, 16, 14\) for 3 classes, but case_000.nii.gz .*z, y, x", folder, labels
    )


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    folder = write_predictions(tmp_path / "probs", "nifti", 1)
    assert (folder / "case_000.nii.gz").exists()
    target = blobs(0)[1]
    label = labels / "case_000.nii.gz"
    write_nifti(label, target[:-1])
    rejected(f"but {re.escape(str(label))} has", folder, labels)
    write_nifti(label, target, np.diag([9.0, 9, 9, 1]))
    rejected(f"but {re.escape(str(label))} has", folder, labels)
    write_nifti(label, target + 3)
    rejected(f"but {re.escape(str(folder / label.name))} has 3 classes", folder, labels)


def test_nifti_files_with_the_classes_first_have_a_remedy(tmp_path: Path) -> None:
    """Volumes of different sizes look like networks with different numbers of classes."""
    for i, depth in enumerate((5, 6)):
        name = f"case_{i}.nii.gz"
        target = np.zeros((depth, 7, 8), np.uint8)
        target[0, 0, :2] = 1, 2
        write_nifti(tmp_path / "labels" / name, target)
        probs = np.full((3, 8, 7, depth), 1 / 3, np.float32)
        (tmp_path / "probs").mkdir(exist_ok=True)
        nib.save(nib.Nifti1Image(probs, np.eye(4)), tmp_path / "probs" / name)
    rejected("first axis holds the classes", tmp_path / "probs", tmp_path / "labels")


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_ambiguous_axis_order_must_be_given(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, (6, 7, 6)).astype(np.uint8)
    probs = rng.dirichlet(np.ones(2), (6, 7, 6)).transpose(3, 0, 1, 2)
    write_nifti(tmp_path / "labels" / "a.nii.gz", target)
    (tmp_path / "probs").mkdir()
    if form == "npy":
        np.save(tmp_path / "probs" / "a.npy", probs)
    else:  # nnU-Net's key, but no .pkl that would state the axis order
        np.savez(tmp_path / "probs" / "a.npz", probabilities=probs)
    where = (tmp_path / "probs", tmp_path / "labels")
    rejected("both axis orders", *where)
    (zyx,), (xyz,) = (find_pairs(*where, axes=axes) for axes in ("zyx", "xyz"))
    np.testing.assert_array_equal(zyx.load().values, probs)
    np.testing.assert_array_equal(xyz.load().values, probs.transpose(0, 3, 2, 1))


def test_arrays_with_the_key_of_nnunet_may_have_the_axis_order_of_nibabel(tmp_path: Path) -> None:
    target = np.zeros((4, 5, 6), np.uint8)
    target[1, 2, 3] = 1
    write_nifti(tmp_path / "labels" / "a.nii.gz", target)
    (tmp_path / "probs").mkdir()
    probs = np.random.default_rng(0).dirichlet(np.ones(2), (4, 5, 6)).transpose(3, 0, 1, 2)
    np.savez(tmp_path / "probs" / "a.npz", probabilities=probs.transpose(0, 3, 2, 1))
    for axes in ("auto", "xyz"):
        (pair,) = find_pairs(tmp_path / "probs", tmp_path / "labels", axes=axes)
        np.testing.assert_array_equal(pair.load().values, probs)


def test_class_counts_and_labels_must_match(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", "npy", 2)
    probs = softmax(blobs(1)[0]).astype(np.float32)
    np.save(folder / "case_001.npy", probs[:2])
    rejected("has 2 classes but case_000.npy has 3", folder, labels)
    np.save(folder / "case_001.npy", probs)
    target = blobs(1)[1]
    target[0, 0, :3] = 255
    write_nifti(labels / "case_001.nii.gz", target)
    rejected(r"contains label 255, but case_001.npy has 3 classes", folder, labels)
    loaded = list(find_pairs(folder, labels, ignore_label=255))[1].load()
    assert (loaded.target == IGNORED).sum() == 3


@pytest.mark.parametrize(("label", "dtype"), [(300, np.int16), (40_000, np.int32)])
def test_large_labels_are_kept(tmp_path: Path, label: int, dtype: type) -> None:
    folder = write_predictions(tmp_path / "probs", "npy", 1)
    target = blobs(0)[1].astype(np.int32)
    target[target == 2] = label
    write_nifti(tmp_path / "labels" / "case_000.nii.gz", target)
    heads = {"a": (1,), "b": (label,), "c": (1, label)}
    (pair,) = find_pairs(folder, tmp_path / "labels", heads=heads)
    loaded = pair.load()
    assert loaded.target.dtype == dtype
    np.testing.assert_array_equal(loaded.target, target)


def test_planes_match_labels_of_one_slice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(2), (6, 7)).transpose(2, 0, 1)
    for folder, array in (("zyx", probs), ("xyz", probs.transpose(0, 2, 1))):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", array)
        write_nifti(tmp_path / "labels" / "a.nii.gz", np.ones((1, 6, 7), np.uint8), np.eye(4))
        (pair,) = find_pairs(tmp_path / folder, tmp_path / "labels")
        np.testing.assert_array_equal(pair.load().values, probs[:, None])


def test_labels_in_plain_arrays(tmp_path: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "npy", 1)
    (tmp_path / "labels").mkdir()
    np.save(tmp_path / "labels" / "case_000.npy", blobs(0)[1])
    (pair,) = find_pairs(folder, tmp_path / "labels")
    assert pair.load().spacing_mm == (1.0, 1.0, 1.0)
    np.save(tmp_path / "labels" / "case_000.npy", blobs(0)[1][:5])
    rejected("must have the same grid", folder, tmp_path / "labels")


def test_two_files_of_one_case_are_rejected(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    folder = write_predictions(tmp_path / "probs", "npz", 1)
    data = (folder / "case_000.npz").read_bytes()
    (folder / "case_000_probs.npz").write_bytes(data)
    rejected("two files for case case_000: case_000.npz and case_000_probs.npz", folder, labels)
    (folder / "case_000_probs.npz").unlink()
    np.save(folder / "case_001.npy", np.zeros((2, 3, 4)))
    rejected("contains .npz and .npy files", folder, labels)
    (folder / "case_001.npy").unlink()
    write_nifti(labels / "case_000.nii", blobs(0)[1])
    rejected("two files for case case_000: case_000.nii and case_000.nii.gz", folder, labels)


def test_spacing_of_plain_labels_comes_from_the_predictions(tmp_path: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "nnunet", 1)
    labels = tmp_path / "labels"
    labels.mkdir()
    np.save(labels / "case_000.npy", blobs(0)[1])
    (pair,) = find_pairs(folder, labels)
    np.testing.assert_allclose(pair.load().spacing_mm, SPACING_ZYX)
    assert pair.has_spacing
    (folder / "case_000.pkl").unlink()
    (pair,) = find_pairs(folder, labels)
    assert not pair.has_spacing
    rejected("leave out --axes", folder, labels, axes="xyz")
    (labels / "case_000.npy").write_bytes(b"\x93NUMPY broken")
    rejected("case_000.npy: is damaged or not an array file", folder, labels)


def test_images_are_channels_only_with_a_number(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    folder = write_predictions(tmp_path / "probs", "npy", 1)
    images = tmp_path / "images"
    write_nifti(images / "case_000x0000.nii.gz", blobs(0)[0][0])
    rejected("has no image for case_000", folder, labels, images)
    write_nifti(images / "case_000_0001.nii.gz", blobs(0)[0][1])
    write_nifti(images / "case_000_0000.nii.gz", blobs(0)[0][0])
    (pair,) = find_pairs(folder, labels, images)
    assert [p.name for p in pair.images] == ["case_000_0000.nii.gz", "case_000_0001.nii.gz"]


@pytest.mark.parametrize("form", ["nii.gz", "nrrd", "mha", "npy", "h5", "png folder"])
@pytest.mark.parametrize("ending", ["", "_gt", "_seg", "_labels"])
def test_labels_of_any_name_and_format(tmp_path: Path, form: str, ending: str) -> None:
    """The names are those that `prepare folder` accepts and `predict` skips."""
    folder = write_predictions(tmp_path / "probs", "nifti", 2)
    labels = tmp_path / "labels"
    for i in range(2):
        target = blobs(i)[1].astype(np.uint8)
        write_as(form, labels / f"case_{i:03d}{ending}", target, AFFINE, "label")
        if ending:
            write_nifti(labels / f"case_{i:03d}.nii.gz", blobs(i)[0][1])  # the image
    pairs = find_pairs(folder, labels)
    assert pairs.unused == ()
    for i, pair in enumerate(pairs):
        loaded = pair.load()
        np.testing.assert_array_equal(loaded.target, blobs(i)[1])
        np.testing.assert_allclose(loaded.spacing_mm, SPACING_ZYX)


@pytest.mark.parametrize("form", FORMS)
def test_without_labels_images_give_the_axis_order_and_the_position(
    tmp_path: Path, form: str
) -> None:
    folder = write_predictions(tmp_path / "probs", form, 2)
    scans = find_unlabeled(folder, write_images(tmp_path / "images", 2))
    assert [scan.name for scan in scans] == ["case_000", "case_001"]
    for i, scan in enumerate(scans):
        np.testing.assert_allclose(scan.softmax.read(), softmax(blobs(i)[0]), atol=1e-6)
        assert scan.header is not None
        np.testing.assert_allclose(scan.header.spacing_mm, SPACING_ZYX, rtol=1e-5)
    alone = find_unlabeled(folder, axes="xyz" if form == "npy_xyz" else "auto")
    np.testing.assert_allclose(alone[0].softmax.read(), softmax(blobs(0)[0]), atol=1e-6)
    assert (alone[0].header is None) == form.startswith(("npy", "npz"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("numbers", [(0, 1, 2), (3, 98)])
def test_label_maps_given_as_probabilities(
    tmp_path: Path, dtype: type, numbers: tuple[int, ...]
) -> None:
    for number in numbers:
        target = blobs(number)[1]
        write_nifti(tmp_path / "labels" / f"case_{number:03d}.nii.gz", target.astype(np.uint8))
        write_nifti(tmp_path / "probs" / f"case_{number:03d}.nii.gz", target.astype(dtype))
    name = f"case_{numbers[0]:03d}.nii.gz"
    problem = f"{name}: .*label map.*--save_probabilities"
    rejected(problem, tmp_path / "probs", tmp_path / "labels")


def test_one_float_map_needs_the_name_of_its_region(tmp_path: Path) -> None:
    for number in range(2):
        probs = softmax(blobs(number)[0]).astype(np.float32)
        write_nifti(tmp_path / "probs" / f"case_{number:03d}.nii.gz", probs[1])
    labels = write_labels(tmp_path / "labels", 2)
    rejected("one map only.*--heads", tmp_path / "probs", labels)
    assert len(find_pairs(tmp_path / "probs", labels, heads={"a": (1,)})) == 2
