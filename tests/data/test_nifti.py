"""Reading NIfTI files: what is right, what is broken, what is hostile."""

import gzip
import struct
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from segcal.data import DataError
from segcal.data.nifti import check_same_grid, read_header, read_image, read_labels
from trees import blob, oblique, save, scan

SHAPE = (7, 6, 5)


def error_line(path: Path, problem: str, read: object = read_image) -> str:
    with pytest.raises(DataError) as caught:
        read(path)  # type: ignore[operator]
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert problem in line
    assert "\n" not in line
    return line


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32, np.float64, ">i2"])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_reads_what_nibabel_wrote(tmp_path: Path, dtype: object, ending: str) -> None:
    array = scan(SHAPE, 1, np.float64).astype(np.uint8).astype(dtype)
    affine = oblique((0.5, 0.75, 3.0))
    path = save(tmp_path / f"a{ending}", array, affine)
    image, header = read_image(path)
    np.testing.assert_array_equal(image[0], array.T)
    assert header.shape == SHAPE[::-1]
    np.testing.assert_allclose(header.spacing_mm, (3.0, 0.75, 0.5), rtol=1e-5)
    np.testing.assert_allclose(header.affine, affine, atol=1e-4)


def test_reads_scaled_two_and_four_dimensional_and_nifti2(tmp_path: Path) -> None:
    scaled = nib.Nifti1Image(np.arange(210, dtype=np.int16).reshape(SHAPE), np.eye(4))
    scaled.header.set_slope_inter(0.5, -10)
    nib.save(scaled, tmp_path / "scaled.nii.gz")
    expected = np.asanyarray(nib.load(tmp_path / "scaled.nii.gz").dataobj)
    np.testing.assert_allclose(read_image(tmp_path / "scaled.nii.gz")[0][0], expected.T, atol=1e-4)
    four = scan((*SHAPE, 2), 1)
    image, header = read_image(save(tmp_path / "four.nii.gz", four))
    assert image.shape == (2, *SHAPE[::-1])
    assert header.channels == 2
    np.testing.assert_array_equal(image[1], four[..., 1].T)
    assert read_image(save(tmp_path / "plane.nii", scan((8, 9, 1), 0)[..., 0]))[0].shape == (
        1,
        1,
        9,
        8,
    )
    nib.save(nib.Nifti2Image(four, np.eye(4)), tmp_path / "two.nii.gz")
    np.testing.assert_array_equal(read_image(tmp_path / "two.nii.gz")[0], image)


def test_placeholder_affine_leaves_the_spacing_to_pixdim(tmp_path: Path) -> None:
    image = nib.Nifti1Image(scan(SHAPE, 0), np.eye(4))
    image.header["pixdim"][1:4] = (1.5, 1.25, 10)
    nib.save(image, tmp_path / "a.nii.gz")
    assert read_header(tmp_path / "a.nii.gz").spacing_mm == (10.0, 1.25, 1.5)
    image = nib.Nifti1Image(scan(SHAPE, 0), np.diag([2.0, 2.0, 5.0, 1.0]))
    image.header["pixdim"][1:4] = (1.5, 1.25, 10)
    nib.save(image, tmp_path / "b.nii.gz")
    error_line(tmp_path / "b.nii.gz", "two different spacings")


def test_broken_files_are_named(tmp_path: Path) -> None:
    good = save(tmp_path / "good.nii.gz", scan(SHAPE, 0))
    packed = good.read_bytes()
    cut = tmp_path / "cut.nii.gz"
    for keep in (len(packed) // 2, len(packed) - 4, 60):
        cut.write_bytes(packed[:keep])
        error_line(cut, "truncated")
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    cut.write_bytes(bytes(flipped))
    error_line(cut, "damaged")
    text = tmp_path / "text.nii.gz"
    text.write_bytes(b"<html>not found</html>" * 40)
    error_line(text, "not a single-file NIfTI")
    text.write_bytes(b"")
    error_line(text, "not a NIfTI")
    error_line(tmp_path / "absent.nii.gz", "cannot be read")
    error_line(tmp_path, "cannot be read")


def test_bad_voxels_are_named(tmp_path: Path) -> None:
    holes = scan(SHAPE, 0)
    holes[1, 2, 3] = np.nan
    assert "1 NaN" in error_line(save(tmp_path / "a.nii.gz", holes), "NaN")
    error_line(save(tmp_path / "b.nii.gz", np.full(SHAPE, 1e300)), "infinite")
    error_line(save(tmp_path / "c.nii.gz", np.full(SHAPE, 7.0)), "constant (7)")
    half = blob(SHAPE, (1, 2), np.float32)
    half[3, 3, 2] = 1.5
    error_line(save(tmp_path / "d.nii.gz", half), "not whole numbers (such as 1.5)", read_labels)
    error_line(save(tmp_path / "e.nii.gz", holes), "NaN", read_labels)
    error_line(save(tmp_path / "f.nii.gz", scan((*SHAPE, 3), 0)), "3 channels", read_labels)
    floats = save(tmp_path / "g.nii.gz", blob(SHAPE, (1, 2), np.float64))
    np.testing.assert_array_equal(read_labels(floats)[0], blob(SHAPE, (1, 2)).T)


def test_grids_must_agree(tmp_path: Path) -> None:
    first = read_header(save(tmp_path / "a.nii.gz", scan(SHAPE, 0), oblique((1, 1, 3))))
    other = read_header(save(tmp_path / "b.nii.gz", scan((7, 6, 4), 0), oblique((1, 1, 3))))
    with pytest.raises(DataError, match=r"b\.nii\.gz: has shape"):
        check_same_grid(other, first)
    for shift, far in ((0.05, False), (0.3, True)):
        affine = oblique((1, 1, 3))
        affine[0, 3] += shift
        moved = read_header(save(tmp_path / "c.nii.gz", scan(SHAPE, 0), affine))
        if far:
            with pytest.raises(DataError, match=r"c\.nii\.gz: lies 0\.3 mm away"):
                check_same_grid(moved, first)
        else:
            check_same_grid(moved, first)


@pytest.mark.parametrize(
    ("offset", "form", "value", "problem"),
    [
        (42, "<3h", (8000, 8000, 8000), "promises"),
        (42, "<h", (-3,), "dimensions"),
        (40, "<h", (9,), "has a NIfTI header with"),
        (70, "<h", (1792,), "datatype"),
        (72, "<h", (7,), "bitpix"),
        (108, "<f", (1e30,), "vox_offset"),
        (108, "<f", (float("nan"),), "vox_offset"),
        (108, "<f", (-5.0,), "vox_offset"),
        (280, "<4f", (0, 0, 0, 0), "spacing"),
        (280, "<4f", (float("inf"), 0, 0, 0), "affine"),
        (344, "<4s", (b"ni1\0",), "not a single-file NIfTI"),
    ],
)
def test_hostile_headers_are_refused_before_allocating(
    tmp_path: Path, offset: int, form: str, value: tuple[object, ...], problem: str
) -> None:
    plain = bytearray(save(tmp_path / "a.nii", scan(SHAPE, 0)).read_bytes())
    struct.pack_into(form, plain, offset, *value)
    for path, data in (
        (tmp_path / "x.nii", bytes(plain)),
        (tmp_path / "x.nii.gz", gzip.compress(bytes(plain))),
    ):
        path.write_bytes(data)
        error_line(path, problem)


def test_a_thousand_mutated_headers(tmp_path: Path) -> None:
    """Either read or refused by name; never another exception, never slow, nothing written."""
    plain = save(tmp_path / "a.nii", blob(SHAPE, (1, 2), np.int16)).read_bytes()
    rng = np.random.default_rng(0)
    special = [0, 1, 0x7F, 0x80, 0xFF]
    path = tmp_path / "fuzz.nii.gz"
    refused = 0
    for number in range(1000):
        data = bytearray(plain)
        for _ in range(rng.integers(1, 9)):
            value = int(rng.choice(special)) if rng.random() < 0.5 else int(rng.integers(256))
            data[int(rng.integers(0, 352))] = value
        if rng.random() < 0.1:
            data = data[: int(rng.integers(1, len(data)))]
        path.write_bytes(bytes(data) if number % 2 else gzip.compress(bytes(data), 1))
        begin = time.perf_counter()
        for read in (read_image, read_labels):
            try:
                read(path)
            except DataError as error:
                refused += error.path == path
        assert time.perf_counter() - begin < 5
    assert 200 < refused < 2000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nii", "fuzz.nii.gz"]
