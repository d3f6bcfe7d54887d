"""Reading anybody's softmax: every form gives the same voxels, and hostile files give one line."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

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
from segcal.predictions.nnunet import Placement, from_file_order, read_placement, to_file_order
from segcal.predictions.pairing import IGNORED, find_pairs
from segcal.predictions.softmax_files import find_softmax
from segcal.predictions.writer import write_like


def load_all(*arguments: Any, **options: Any) -> None:
    for pair in find_pairs(*arguments, **options):
        pair.load()


def refused(problem: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(PathError, match=problem) as caught:
        load_all(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_voxels(tmp_path: Path, form: str) -> None:
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


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_again(tmp_path: Path, form: str) -> None:
    write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", form, 2)
    pairs = find_pairs(folder, tmp_path / "labels")
    for pair in pairs:
        write_like(pair.softmax, np.asarray(pair.load().values), tmp_path / "out")
    again = find_pairs(tmp_path / "out", tmp_path / "labels")
    for one, two in zip(pairs, again, strict=True):
        np.testing.assert_array_equal(one.load().values, two.load().values)
        assert [p.name for p in one.softmax.paths] == [p.name for p in two.softmax.paths]
        if form in ("nifti", "classes"):
            old, new = (nib.load(pair.softmax.path) for pair in (one, two))
            np.testing.assert_array_equal(old.affine, new.affine)
            assert old.shape == new.shape
    if form == "nnunet":
        assert (tmp_path / "out" / "case_000.pkl").is_file()
    assert not list((tmp_path / "out").glob(".*"))


def test_nnunet_arrays_are_where_simpleitk_says(tmp_path: Path) -> None:
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
    placement = read_placement(tmp_path / "case_000.pkl", target.shape)
    assert placement.affine is not None
    np.testing.assert_allclose(placement.affine, AFFINE, atol=1e-5)
    np.testing.assert_allclose(placement.spacing_mm, SPACING_ZYX, atol=1e-6)


@pytest.mark.parametrize("order", ["LPS", "RAS", "ASL", "PIR", "SAL"])
def test_nnunet_arrays_that_were_turned_come_back(tmp_path: Path, order: str) -> None:
    """As nnU-Net's NibabelIOWithReorient leaves them: in RAS order, whatever the file's."""
    rng = np.random.default_rng(0)
    start = nib.Nifti1Image(rng.random((4, 5, 6)).astype(np.float32), np.diag([1.0, 2, 3, 1]))
    turn = nib.orientations.ornt_transform(
        nib.orientations.axcodes2ornt("RAS"), nib.orientations.axcodes2ornt(order)
    )
    image = start.as_reoriented(turn)
    assert "".join(nib.aff2axcodes(image.affine)) == order
    ras = image.as_reoriented(nib.orientations.io_orientation(image.affine))
    placement = Placement((1, 1, 1), image.affine, reoriented=True)
    array = ras.get_fdata().transpose(2, 1, 0)[None]  # what nnU-Net works on
    turned = to_file_order(array, placement)
    np.testing.assert_array_equal(turned[0], image.get_fdata().transpose(2, 1, 0))
    np.testing.assert_array_equal(from_file_order(turned, placement), array)


def test_turned_predictions_meet_their_labels(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    logits, _ = blobs(0)
    probs = softmax(logits).astype(np.float32)
    file = nib.load(labels / "case_000.nii.gz")
    there = Placement(SPACING_ZYX, file.affine, reoriented=True)
    folder = tmp_path / "probs"
    folder.mkdir()
    np.savez_compressed(folder / "case_000.npz", probabilities=from_file_order(probs, there))
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
def test_nnunet_arrays_that_simpleitk_turned_come_back(
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
    placement = read_placement(path, array.shape)
    np.testing.assert_allclose(placement.affine, file.affine, atol=1e-4)
    turned = to_file_order(array[None], placement)
    np.testing.assert_array_equal(turned[0], file.get_fdata(dtype=np.float32).T)
    np.testing.assert_array_equal(from_file_order(turned, placement)[0], array)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_properties_of_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(nnunet_properties(), protocol))
    found = read_placement(path, (10, 16, 14))
    assert found.affine is not None
    np.testing.assert_allclose(found.affine, AFFINE, atol=1e-9)


class _Attack:
    def __reduce__(self) -> Any:
        return os.system, ("touch {}",)


@pytest.mark.parametrize(
    "content",
    [
        _Attack(),
        {"spacing": [1, 1, 1], "more": _Attack()},
        {"spacing": np.array([_Attack()], dtype=object)},
        {"spacing": Path("x")},
        {"spacing": [1, 1, 1], "f": eval},
    ],
    ids=["call", "nested", "object array", "a class", "a builtin"],
)
def test_a_pickle_that_would_do_something_is_refused(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(os, "system", ran.append)
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(PathError, match="holds more than plain values"):
        read_placement(path, (10, 16, 14))
    assert not ran


class _Call:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> Any:
        return self.call


class _State:
    """An object made by a call, with a state given to it."""

    def __init__(self, call: Any, arguments: Any, state: Any) -> None:
        self.parts = call, arguments, state

    def __reduce__(self) -> Any:
        return self.parts


_RECONSTRUCT = np.zeros(1).__reduce__()[0]
_BUFFER = np.zeros(1).__reduce_ex__(5)[0]


@pytest.mark.parametrize(
    "content",
    [
        _Call(np.ndarray, (3,), "O", b"A" * 24),
        _Call(np.ndarray, (10**12,)),
        _Call(_RECONSTRUCT, np.ndarray, (10**12,), b"d"),
        _Call(_RECONSTRUCT, np.ndarray, (3,), b"O"),
        _Call(_BUFFER, b"A" * 24, np.dtype("O"), (3,), "C"),
        _Call(_BUFFER, b"A" * 24, np.dtype("f8"), (4,), "C"),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), np.dtype("O"), False, b"A" * 24)),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (3,), np.dtype("f8"), False, [1, 2, 3])),
        _State(_RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (9,), np.dtype("f8"), False, b"A" * 24)),
        # A float whose flags say that it is a pointer.
        _State(np.dtype, ("f8", False, True), (3, "<", None, ("a",), {}, 8, 8, 63)),
        _State(np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 63)),
    ],
)
def test_arrays_in_a_pickle_cannot_be_forged(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "case.pkl"
    path.write_bytes(pickle.dumps({"spacing": content}))
    with pytest.raises(PathError, match=r"holds more than plain values|is damaged"):
        read_placement(path, (10, 16, 14))


def test_a_pickle_cannot_change_what_it_calls(tmp_path: Path) -> None:
    path = tmp_path / "case.pkl"
    # The global _codecs.encode, given a state.
    path.write_bytes(b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.")
    with pytest.raises(PathError, match="holds more than plain values"):
        read_placement(path, (10, 16, 14))


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04]", pickle.dumps([1, 2])])
def test_a_damaged_pickle_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "case.pkl"
    path.write_bytes(data)
    with pytest.raises(PathError, match=r"is damaged|is not a properties file"):
        read_placement(path, (10, 16, 14))


def test_missing_pairs_are_listed(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 3)
    folder = write_predictions(tmp_path / "probs", "npy", 5)
    refused(r"has no label for case_003, case_004 of .*probs", folder, labels)
    for i in (3, 4):
        write_nifti(labels / f"case_{i:03d}.nii.gz", blobs(i)[1])
    write_nifti(labels / "case_009.nii.gz", blobs(9)[1])
    assert find_pairs(folder, labels).unused == ("case_009",)
    images = write_images(tmp_path / "images", 4)
    refused("has no image for case_004", folder, labels, images)


def test_other_grids_are_refused(tmp_path: Path) -> None:
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
        refused(problem, folder, labels)
    folder = tmp_path / "short"
    folder.mkdir()
    np.save(folder / "case_000.npy", probs[:, :9])
    refused(r"has shape \(9, 16, 14\) for 3 classes, but case_000.nii.gz", folder, labels)


def test_axes_that_shapes_do_not_tell_must_be_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, (6, 7, 6)).astype(np.uint8)
    probs = rng.dirichlet(np.ones(2), (6, 7, 6)).transpose(3, 0, 1, 2)
    write_nifti(tmp_path / "labels" / "a.nii.gz", target)
    (tmp_path / "probs").mkdir()
    np.save(tmp_path / "probs" / "a.npy", probs)
    where = (tmp_path / "probs", tmp_path / "labels")
    refused("both axis orders", *where)
    (zyx,), (xyz,) = (find_pairs(*where, axes=axes) for axes in ("zyx", "xyz"))
    np.testing.assert_array_equal(zyx.load().values, probs)
    np.testing.assert_array_equal(xyz.load().values, probs.transpose(0, 3, 2, 1))


def test_classes_and_labels_must_fit(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 2)
    folder = write_predictions(tmp_path / "probs", "npy", 2)
    probs = softmax(blobs(1)[0]).astype(np.float32)
    np.save(folder / "case_001.npy", probs[:2])
    refused("has 2 classes but case_000.npy has 3", folder, labels)
    np.save(folder / "case_001.npy", probs)
    target = blobs(1)[1]
    target[0, 0, :3] = 255
    write_nifti(labels / "case_001.nii.gz", target)
    refused(r"holds label 255, but case_001.npy has 3 classes", folder, labels)
    loaded = list(find_pairs(folder, labels, ignore_label=255))[1].load()
    assert (loaded.target == IGNORED).sum() == 3


def test_one_file_per_class_needs_every_class(tmp_path: Path) -> None:
    folder = write_predictions(tmp_path / "probs", "classes", 1)
    (folder / "case_000_class1.nii.gz").unlink()
    with pytest.raises(PathError, match="files of class 0, 2 only"):
        find_softmax(folder)


@pytest.mark.parametrize("separator", ["_class", "_", "_prob_", ".c"])
def test_names_of_class_files(tmp_path: Path, separator: str) -> None:
    for k in range(3):
        write_nifti(tmp_path / f"patient_01{separator}{k}.nii.gz", np.zeros((2, 3, 4), np.float32))
    assert list(find_softmax(tmp_path)) == ["patient_01"]
    assert find_softmax(tmp_path)["patient_01"].shape == (3, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.npz", b"PK\x03\x04 broken", "is damaged or not an .npz"),
        ("a.npy", b"\x93NUMPY broken", "is damaged or not an array"),
        ("a.npy", np.zeros((3, 4, 5), int), "array of int64"),
        ("a.npy", np.zeros((4, 5)), r"of shape \(4, 5\)"),
        ("a.npy", np.array([{}], dtype=object), "is damaged or not an array"),
        ("a.npz", {"x": np.zeros((2, 3, 4)), "y": np.zeros(2)}, "holds x, y"),
        ("a.nii.gz", b"nothing", "NIfTI|gzip"),
        ("a.txt", b"", "holds no probabilities"),
    ],
)
def test_files_that_are_no_probabilities(
    tmp_path: Path, name: str, content: Any, problem: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(PathError, match=problem) as caught:
        find_softmax(tmp_path)
    assert re.search(re.escape(str(tmp_path)), str(caught.value))


def test_two_dimensional_arrays_meet_labels_of_one_slice(tmp_path: Path) -> None:
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
    refused("predictions and labels must be on one grid", folder, tmp_path / "labels")


def test_two_files_of_one_case_are_refused(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    folder = write_predictions(tmp_path / "probs", "npz", 1)
    data = (folder / "case_000.npz").read_bytes()
    (folder / "case_000_probs.npz").write_bytes(data)
    refused("case_000_probs.npz: and case_000.npz are both of case case_000", folder, labels)
    (folder / "case_000_probs.npz").unlink()
    np.save(folder / "case_001.npy", np.zeros((2, 3, 4)))
    refused("holds .npz and .npy files", folder, labels)
    (folder / "case_001.npy").unlink()
    write_nifti(labels / "case_000.nii", blobs(0)[1])
    refused("case_000.nii.gz: and case_000.nii are both of case", folder, labels)


def test_spacing_of_plain_labels_is_that_of_the_properties(tmp_path: Path) -> None:
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
    refused("leave out --axes", folder, labels, axes="xyz")
    (labels / "case_000.npy").write_bytes(b"\x93NUMPY broken")
    refused("case_000.npy: is damaged or not an array file", folder, labels)


def test_images_are_channels_only_with_their_number(tmp_path: Path) -> None:
    labels = write_labels(tmp_path / "labels", 1)
    folder = write_predictions(tmp_path / "probs", "npy", 1)
    images = tmp_path / "images"
    write_nifti(images / "case_000x0000.nii.gz", blobs(0)[0][0])
    refused("has no image for case_000", folder, labels, images)
    write_nifti(images / "case_000_0001.nii.gz", blobs(0)[0][1])
    write_nifti(images / "case_000_0000.nii.gz", blobs(0)[0][0])
    (pair,) = find_pairs(folder, labels, images)
    assert [p.name for p in pair.images] == ["case_000_0000.nii.gz", "case_000_0001.nii.gz"]
