"""Arrays of nnU-Net's readers, in the axis order and position of the image file."""

import pickle
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from helpers.posthoc_samples import blobs, softmax
from helpers.softmax_files import (
    AFFINE,
    SPACING_ZYX,
    write_labels,
    write_nifti,
)
from segcal.predictions import find_pairs
from segcal.predictions.nnunet_geometry import (
    NnunetGeometry,
    read_geometry,
    reorient_array,
)


def test_geometry_equals_simpleitk(tmp_path: Path) -> None:
    """The real reader: its array order, and its geometry through nnU-Net's properties."""
    import SimpleITK

    path = tmp_path / "case_000.nii.gz"
    target = blobs(0)[1]
    write_nifti(path, target)
    image = SimpleITK.ReadImage(str(path))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(image), target)
    properties = {
        "sitk_stuff": {
            "spacing": image.GetSpacing(),
            "origin": image.GetOrigin(),
            "direction": image.GetDirection(),
        },
        "spacing": list(image.GetSpacing())[::-1],
    }
    (tmp_path / "case_000.pkl").write_bytes(pickle.dumps(properties))
    geometry = read_geometry(tmp_path / "case_000.pkl", target.shape)
    assert geometry.affine is not None
    np.testing.assert_allclose(geometry.affine, AFFINE, atol=1e-5)
    np.testing.assert_allclose(geometry.spacing_mm, SPACING_ZYX, atol=1e-6)


@pytest.mark.parametrize("order", ["LPS", "RAS", "ASL", "PIR", "SAL"])
def test_arrays_reoriented_by_nibabel_are_restored(tmp_path: Path, order: str) -> None:
    """As nnU-Net's NibabelIOWithReorient leaves them: in RAS order, whatever the file's."""
    rng = np.random.default_rng(0)
    start = nib.Nifti1Image(rng.random((4, 5, 6)).astype(np.float32), np.diag([1.0, 2, 3, 1]))
    turn = nib.orientations.ornt_transform(
        nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(order)
    )
    image = start.as_reoriented(turn)
    assert "".join(nib.aff2axcodes(image.affine)) == order
    ras = image.as_reoriented(nib.orientations.io_orientation(image.affine))
    geometry = NnunetGeometry((1, 1, 1), image.affine, reoriented=True)
    array = ras.get_fdata().transpose(2, 1, 0)[None]  # what nnU-Net works on
    turned = reorient_array(array, geometry, to_file=True)
    np.testing.assert_array_equal(turned[0], image.get_fdata().transpose(2, 1, 0))
    np.testing.assert_array_equal(reorient_array(turned, geometry, to_file=False), array)


def test_reoriented_predictions_match_their_labels(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    logits, _ = blobs(0)
    probs = softmax(logits).astype(np.float32)
    file = nib.load(labels / "case_000.nii.gz")
    geometry = NnunetGeometry(SPACING_ZYX, file.affine, reoriented=True)
    folder = tmp_path / "probs"
    folder.mkdir()
    np.savez_compressed(
        folder / "case_000.npz", probabilities=reorient_array(probs, geometry, to_file=False)
    )
    stuff = {"original_affine": file.affine, "reoriented_affine": np.eye(4)}
    (folder / "case_000.pkl").write_bytes(
        pickle.dumps({"nibabel_stuff": stuff, "spacing": [2.0, 3.0, 1.5]})
    )
    (pair,) = find_pairs(folder, labels)
    np.testing.assert_array_equal(pair.load().values, probs)


def sitk_reoriented(image: Any) -> tuple[Any, dict[str, Any]]:
    """An image as nnU-Net's SimpleITKIOWithReorient reads it: an array and its properties."""
    import SimpleITK

    name = SimpleITK.DICOMOrientImageFilter_GetOrientationFromDirectionCosines
    turned = SimpleITK.DICOMOrient(image, "RAS")
    stuff = {
        "spacing": turned.GetSpacing(),
        "origin": turned.GetOrigin(),
        "direction": turned.GetDirection(),
        "original_orientation": name(image.GetDirection()),
    }
    array = SimpleITK.GetArrayFromImage(turned)
    return array, {"sitk_stuff": stuff, "spacing": list(turned.GetSpacing())[::-1]}


@pytest.mark.parametrize("order", ["LPS", "RAS", "ASL", "PIR", "SAL"])
@pytest.mark.parametrize("tilted", [False, True])
def test_arrays_reoriented_by_simpleitk_are_restored(
    tmp_path: Path, order: str, tilted: bool
) -> None:
    import SimpleITK

    affine = np.diag([1.0, 2, 3, 1])
    affine[:3, 3] = 4, -5, 6
    if tilted:
        c, s = np.cos(0.3), np.sin(0.3)
        affine = np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) @ affine
    values = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    turn = nib.orientations.ornt_transform(
        nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(order)
    )
    file = nib.Nifti1Image(values, affine).as_reoriented(turn)
    nib.save(file, tmp_path / "image.nii.gz")
    array, properties = sitk_reoriented(SimpleITK.ReadImage(str(tmp_path / "image.nii.gz")))
    assert properties["sitk_stuff"]["original_orientation"] == order
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps(properties))
    geometry = read_geometry(path, array.shape)
    np.testing.assert_allclose(geometry.affine, file.affine, atol=1e-4)
    turned = reorient_array(array[None], geometry, to_file=True)
    np.testing.assert_array_equal(turned[0], file.get_fdata(dtype=np.float32).T)
    np.testing.assert_array_equal(reorient_array(turned, geometry, to_file=False)[0], array)
