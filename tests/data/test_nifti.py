"""Reading NIfTI files: what is right, what is broken, what is hostile."""

import gzip
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from helpers.trees import blob, oblique, save, scan
from segcal.core.errors import PathError
from segcal.data.formats import check_same_grid, read_header, read_image, read_labels

SHAPE = (7, 6, 5)


def error_line(path: Path, problem: str, read: object = read_image) -> str:
    with pytest.raises(PathError) as caught:
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
    error_line(tmp_path, "holds no slices")


def test_bad_voxels_are_named(tmp_path: Path) -> None:
    holes = scan(SHAPE, 0)
    holes[1, 2, 3] = np.nan
    assert "1 NaN" in error_line(save(tmp_path / "a.nii.gz", holes), "NaN")
    error_line(save(tmp_path / "b.nii.gz", np.full(SHAPE, 1e300)), "infinite")
    error_line(save(tmp_path / "c.nii.gz", np.full(SHAPE, 7.0)), "constant (7)")
    color = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    error_line(save(tmp_path / "rgb.nii.gz", color), "color (RGB)")
    half = blob(SHAPE, (1, 2), np.float32)
    half[3, 3, 2] = 1.5
    error_line(save(tmp_path / "d.nii.gz", half), "not whole numbers (such as 1.5)", read_labels)
    error_line(save(tmp_path / "e.nii.gz", holes), "NaN", read_labels)
    error_line(save(tmp_path / "f.nii.gz", scan((*SHAPE, 3), 0)), "3 channels", read_labels)
    floats = save(tmp_path / "g.nii.gz", blob(SHAPE, (1, 2), np.float64))
    np.testing.assert_array_equal(read_labels(floats)[0], blob(SHAPE, (1, 2)).T)
    nearly = save(tmp_path / "h.nii.gz", blob(SHAPE, (1, 2), np.float32) * np.float32(1 + 1e-6))
    np.testing.assert_array_equal(read_labels(nearly)[0], blob(SHAPE, (1, 2)).T)
    off = blob(SHAPE, (1, 2), np.float64) * 1.001
    error_line(save(tmp_path / "i.nii.gz", off), "such as 1.001)", read_labels)
    scaled = nib.Nifti1Image(blob(SHAPE, (1, 2), np.int16), np.eye(4))
    scaled.header.set_slope_inter(0.25, 0)
    nib.save(scaled, tmp_path / "j.nii")
    raw = bytearray((tmp_path / "j.nii").read_bytes())
    struct.pack_into("<f", raw, 112, 0.3)
    (tmp_path / "j.nii").write_bytes(bytes(raw))
    error_line(tmp_path / "j.nii", "such as 0.3", read_labels)


def test_grids_must_agree(tmp_path: Path) -> None:
    first = read_header(save(tmp_path / "a.nii.gz", scan(SHAPE, 0), oblique((1, 1, 3))))
    other = read_header(save(tmp_path / "b.nii.gz", scan((7, 6, 4), 0), oblique((1, 1, 3))))
    with pytest.raises(PathError, match=r"b\.nii\.gz: has shape"):
        check_same_grid(other, first)
    for shift, far in ((0.05, False), (0.3, True)):
        affine = oblique((1, 1, 3))
        affine[0, 3] += shift
        moved = read_header(save(tmp_path / "c.nii.gz", scan(SHAPE, 0), affine))
        if far:
            with pytest.raises(PathError, match=r"c\.nii\.gz: lies 0\.3 mm away"):
                check_same_grid(moved, first)
        else:
            check_same_grid(moved, first)


@pytest.mark.parametrize(
    ("offset", "form", "value", "problem"),
    [
        (42, "<3h", (8000, 8000, 8000), "announces"),
        (42, "<h", (-3,), "dimensions"),
        (40, "<h", (9,), "has an invalid NIfTI header"),
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


def test_units_other_than_millimeters(tmp_path: Path) -> None:
    for unit, factor in (("micron", 1e3), ("meter", 1e-3), ("mm", 1.0), ("unknown", 1.0)):
        image = nib.Nifti1Image(scan(SHAPE, 0), np.diag([0.5 * factor, 0.75 * factor, factor, 1]))
        image.header.set_xyzt_units(unit)
        nib.save(image, tmp_path / "a.nii.gz")
        header = read_header(tmp_path / "a.nii.gz")
        np.testing.assert_allclose(header.spacing_mm, (1.0, 0.75, 0.5), rtol=1e-5)
        np.testing.assert_allclose(header.affine, np.diag([0.5, 0.75, 1, 1]), rtol=1e-5)
        assert ("units" in header.notes) == (factor != 1)


def test_only_a_bare_identity_is_a_placeholder(tmp_path: Path) -> None:
    """Unit steps with an offset, or turned, were written on purpose."""
    turned = np.eye(4)[[1, 0, 2, 3]]
    moved = np.eye(4)
    moved[0, 3] = -120
    for affine in (turned, moved):
        image = nib.Nifti1Image(scan(SHAPE, 0), affine)
        image.header["pixdim"][1:4] = (1.5, 1.25, 10)
        nib.save(image, tmp_path / "a.nii.gz")
        error_line(tmp_path / "a.nii.gz", "two different spacings")


def test_grids_must_agree_in_spacing_too(tmp_path: Path) -> None:
    headers = []
    for name, zooms in (("a", (1.5, 1.5, 10)), ("b", (1.5, 1.5, 5))):
        image = nib.Nifti1Image(scan(SHAPE, 0), np.eye(4))
        image.header["pixdim"][1:4] = zooms
        nib.save(image, tmp_path / f"{name}.nii.gz")
        headers.append(read_header(tmp_path / f"{name}.nii.gz"))
    with pytest.raises(PathError, match=r"b\.nii\.gz: has spacing 5 × 1\.5 × 1\.5 mm"):
        check_same_grid(headers[1], headers[0])


@pytest.mark.parametrize("coded", [True, False])
def test_a_single_slice_may_lack_its_thickness(tmp_path: Path, coded: bool) -> None:
    image = nib.Nifti1Image(scan((8, 9, 1), 0), np.diag([0.5, 0.5, 4.0, 1.0]))
    if not coded:
        image.header.set_sform(None, 0)
        image.header.set_qform(None, 0)
    image.header["pixdim"][3] = 0
    nib.save(image, tmp_path / "a.nii")
    raw = bytearray((tmp_path / "a.nii").read_bytes())
    struct.pack_into("<f", raw, 88, 0.0)
    if not coded:
        struct.pack_into("<2h", raw, 252, 0, 0)
    (tmp_path / "a.nii").write_bytes(bytes(raw))
    header = read_header(tmp_path / "a.nii")
    assert header.spacing_mm == (4.0 if coded else 1.0, 0.5, 0.5)
    assert "thickness" in header.notes


def test_the_checksum_is_read_even_behind_other_bytes(tmp_path: Path) -> None:
    plain = save(tmp_path / "a.nii", scan(SHAPE, 0)).read_bytes() + b"extra bytes after the voxels"
    packed = bytearray(gzip.compress(plain))
    packed[-8] ^= 0xFF
    (tmp_path / "b.nii.gz").write_bytes(bytes(packed))
    error_line(tmp_path / "b.nii.gz", "damaged")
