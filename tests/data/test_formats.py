"""Every format: the same voxels, the same place, and one clear line about damaged files."""

import shutil
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from PIL import Image

from helpers.image_files import PLAIN, WITH_GEOMETRY, to_itk, write_as, write_dicom
from helpers.trees import blob, oblique, run_cli, save, scan
from segcal.core import guarded
from segcal.core.errors import PathError
from segcal.data import (
    FolderSource,
    axis_codes,
    check_same_grid,
    files_of,
    open_dataset,
    prepare,
    read_header,
    read_image,
    read_labels,
    scan_name,
)

SHAPE = (5, 11, 8)
AFFINE = oblique((0.7, 0.9, 2.5))


def volume(dtype: object = np.int16) -> np.ndarray:
    """(Z, Y, X) without any symmetry."""
    return scan(SHAPE[::-1], 3, dtype).T


def message(path: Path, *arguments: str) -> str:
    with pytest.raises(PathError) as caught:
        read_image(path, *arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("form", WITH_GEOMETRY)
def test_one_volume_in_every_format(tmp_path: Path, form: str) -> None:
    path = write_as(form, tmp_path / "v", volume(), AFFINE, "image")
    image, header = read_image(path)
    np.testing.assert_array_equal(image[0], volume())
    np.testing.assert_allclose(header.affine, AFFINE, atol=1e-6)
    np.testing.assert_allclose(header.spacing_mm, (2.5, 0.9, 0.7), rtol=1e-6)
    assert header.shape == SHAPE
    assert axis_codes(header.affine) == axis_codes(AFFINE)
    np.testing.assert_allclose(read_header(path).affine, header.affine)
    assert scan_name(path) == "v"
    reference = read_header(write_as("nii.gz", tmp_path / "r", volume(), AFFINE, "image"))
    check_same_grid(header, reference)


@pytest.mark.parametrize("form", PLAIN)
def test_numbers_without_geometry(tmp_path: Path, form: str) -> None:
    array = volume(np.uint8)
    path = write_as(form, tmp_path / "v", array, AFFINE, "image")
    image, header = read_image(path)
    np.testing.assert_array_equal(image[0], array)
    assert header.spacing_mm == (1, 1, 1)
    assert not header.has_geometry
    # Only the shape is compared with that of another file.
    check_same_grid(header, read_header(save(tmp_path / "a.nii.gz", array.T, AFFINE)))
    with pytest.raises(PathError, match="has shape"):
        check_same_grid(header, read_header(save(tmp_path / "b.nii.gz", array.T[1:], AFFINE)))


def test_channels(tmp_path: Path) -> None:
    """Vector and 4-D images, RGB pictures, arrays with four axes."""
    four = np.stack([volume(np.float32), volume(np.float32)[:, ::-1] + 1])
    vector = sitk.GetImageFromArray(np.moveaxis(four, 0, -1), isVector=True)
    sitk.WriteImage(vector, str(tmp_path / "vector.nrrd"))
    sitk.WriteImage(sitk.GetImageFromArray(four, isVector=False), str(tmp_path / "four.mha"))
    np.save(tmp_path / "four.npy", four)
    for name in ("vector.nrrd", "four.mha", "four.npy"):
        image, header = read_image(tmp_path / name)
        np.testing.assert_array_equal(image, four)
        assert (header.channels, header.shape) == (2, SHAPE)
    color = np.random.default_rng(0).integers(0, 255, (6, 9, 4), dtype=np.uint8)
    for mode, bands in (("RGB", 3), ("RGBA", 3), ("L", 1), ("LA", 1)):
        shown = color[..., 0] if mode == "L" else color[..., : len(mode)]
        Image.fromarray(np.ascontiguousarray(shown), mode).save(tmp_path / "picture.png")
        image, header = read_image(tmp_path / "picture.png")
        assert (header.channels, header.shape) == (bands, (1, 6, 9))
        np.testing.assert_array_equal(image[:, 0], np.moveaxis(color[..., :bands], -1, 0))


def test_label_pictures(tmp_path: Path) -> None:
    labels = np.arange(54).reshape(6, 9) % 4
    palette = Image.fromarray(labels.astype(np.uint8), "P")
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.save(tmp_path / "palette.png")
    Image.fromarray(labels > 1).save(tmp_path / "bit.png")
    np.testing.assert_array_equal(read_labels(tmp_path / "palette.png")[0][0], labels)
    np.testing.assert_array_equal(read_labels(tmp_path / "bit.png")[0][0], labels > 1)
    assert "palette" in message(tmp_path / "palette.png")


def test_a_tilted_gantry(tmp_path: Path) -> None:
    """The slices of a tilted CT are shifted: the affine has a shear, not an orthogonal axis."""
    tilted = AFFINE.copy()
    tilted[:3, 2] += 0.4 * AFFINE[:3, 1]
    folder = tmp_path / "ct"
    for z in range(SHAPE[0]):
        start = AFFINE.copy()
        start[:3, 3] = tilted[:3, 3] + z * tilted[:3, 2] - z * AFFINE[:3, 2]
        write_dicom(folder, volume(), start, keep=range(z, z + 1))
    image, header = read_image(folder)
    np.testing.assert_allclose(header.affine, tilted, atol=1e-6)
    np.testing.assert_array_equal(image[0], volume())


def test_dicom_folders_that_are_no_volume(tmp_path: Path) -> None:
    missing = write_dicom(tmp_path / "missing", volume(), AFFINE)
    sorted(missing.iterdir())[2].unlink()
    assert "slices are missing" in message(missing)
    two = write_dicom(tmp_path / "two", volume(), AFFINE)
    write_dicom(two, volume(), AFFINE, uid="1.2.3.5")
    assert "holds 2 DICOM series: series 1.2.3.4 (5 files), series 1.2.3.5 (5 files)" in message(
        two
    )
    cut = write_dicom(tmp_path / "cut", volume(), AFFINE)
    slices = sorted(cut.iterdir())
    whole = slices[-1].read_bytes()
    for keep in (len(whole) - 20, 200):
        slices[-1].write_bytes(whole[:keep])
        assert "is truncated or damaged" in message(cut)
    assert len(files_of(cut)) == len(slices)
    cine = write_dicom(tmp_path / "cine", volume(), AFFINE)
    for path in sorted(cine.iterdir()):
        for frame in range(3):
            shutil.copy(path, path.with_name(f"{frame}{path.name}"))
    assert "several images at one position" in message(cine)


DAMAGED = {"nrrd": 0.97, "mha": 0.97, "npy": 0.9, "npz": 0.9, "h5": 0.5, "tif": 0.5}


@pytest.mark.parametrize("form", DAMAGED)
def test_damaged_files(tmp_path: Path, form: str) -> None:
    path = write_as(form, tmp_path / "v", volume(np.uint8), AFFINE, "image")
    content = path.read_bytes()
    for damaged in (content[: int(len(content) * DAMAGED[form])], b"", b"<html>" * 90):
        path.write_bytes(damaged)
        assert str(path) in message(path)


def test_other_invalid_files(tmp_path: Path) -> None:
    write_as("mhd", tmp_path / "v", volume(), AFFINE, "image")
    assert {path.name for path in files_of(tmp_path / "v.mhd")} == {"v.mhd", "v.raw"}
    (tmp_path / "v.raw").unlink()
    assert "damaged" in message(tmp_path / "v.mhd")
    np.savez(tmp_path / "v.npz", first=volume(), second=volume())
    assert "no array named 'image' (it holds first, second)" in message(tmp_path / "v.npz")
    np.testing.assert_array_equal(read_image(tmp_path / "v.npz", "second")[0][0], volume())
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    assert "of shape (2,)" in message(tmp_path / "text.npy")
    np.save(tmp_path / "object.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    assert "damaged or not an array" in message(tmp_path / "object.npy")
    pages = tmp_path / "pages"
    pages.mkdir()
    for z in range(3):
        Image.fromarray(volume(np.uint8)[z, z:]).save(pages / f"{z}.png")
    assert "different sizes" in message(pages)
    (tmp_path / "empty").mkdir()
    assert "holds no slices" in message(tmp_path / "empty")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, module, extra in (("nrrd", "SimpleITK", "dicom"), ("h5", "h5py", "h5")):
        path = write_as(form, tmp_path / "v", volume(), AFFINE, "image")
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=rf"pip install 'segcal\[{extra}\]'"):
                read_image(path)


def write_set(root: Path, *forms: str) -> Path:
    """images/ and labels/, one case in each format."""
    for number, form in enumerate(forms):
        image = scan((24, 20, 6), number, np.uint8 if form in PLAIN else np.int16).T
        label_form = "nrrd" if form == "dicom" else form
        for folder, form_, array, key in (
            ("images", form, image, "image"),
            ("labels", label_form, blob((24, 20, 6), (1, 2)).T, "label"),
        ):
            write_as(form_, root / folder / f"case{number}", array, AFFINE, key)
    return root


@pytest.mark.parametrize("form", [*WITH_GEOMETRY, *PLAIN])
def test_prepare_every_format(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write_set(tmp_path / "s", form), tmp_path / "out"
    command = ("prepare", "folder", "--source", source, "--out", out, "--workers", 1)
    assert run_cli(monkeypatch, *command) == 0, capsys.readouterr().err
    (case,) = open_dataset(out)
    np.testing.assert_array_equal(
        case.grid.restore_labels(case.label()).T, blob((24, 20, 6), (1, 2))
    )
    geometry = case.properties.notes.get("geometry")
    assert (geometry is None) == (form in WITH_GEOMETRY)
    # A changed slice is noticed; an unchanged case is kept.
    capsys.readouterr()
    assert run_cli(monkeypatch, *command) == 0
    assert "1 unchanged cases were kept" in capsys.readouterr().out


def test_worker_processes_read_mixed_formats(tmp_path: Path) -> None:
    source = write_set(tmp_path / "s", "dicom", "h5", "png folder", "mhd")
    alone = prepare(FolderSource(source), tmp_path / "one", workers=1).dataset
    both = prepare(FolderSource(source), tmp_path / "two", workers=2).dataset
    assert alone.info.fingerprint == both.info.fingerprint


def test_labels_in_another_orientation_are_turned(tmp_path: Path) -> None:
    """All orientations of the label file store the same labels; another place is refused."""
    image = nib.Nifti1Image(scan((9, 7, 5), 0), AFFINE)
    drawn = np.zeros((9, 7, 5), np.uint8)
    drawn[1:6, 2:4, 3:] = 1
    drawn[2, 3, 4] = 2
    label = nib.Nifti1Image(drawn, AFFINE)
    (tmp_path / "s" / "images").mkdir(parents=True)
    (tmp_path / "s" / "labels").mkdir()
    ways = ("RAS", "LPS", "SAR", "PIL", "ASR")
    here = nib.orientations.io_orientation(AFFINE)
    for codes in ways:
        change = nib.orientations.ornt_transform(here, nib.orientations.axcodes2ornt(codes))
        nib.save(image, tmp_path / "s" / "images" / f"{codes}.nii.gz")
        nib.save(label.as_reoriented(change), tmp_path / "s" / "labels" / f"{codes}.nii.gz")
    dataset = prepare(FolderSource(tmp_path / "s"), tmp_path / "out", recipe="native").dataset
    for codes in ways:
        np.testing.assert_array_equal(dataset[codes].label().T, drawn)
    moved = label.as_reoriented(change).affine.copy()
    moved[:3, 3] += 2
    turned = np.asarray(label.as_reoriented(change).dataobj)
    save(tmp_path / "s" / "labels" / "RAS.nii.gz", turned, moved)
    with pytest.raises(PathError, match=r"RAS\.nii\.gz: lies"):
        prepare(FolderSource(tmp_path / "s"), tmp_path / "again", recipe="native")


def test_itk_writes_what_nibabel_reads(tmp_path: Path) -> None:
    """The helper of these tests agrees with SimpleITK's own NIfTI writer."""
    sitk.WriteImage(to_itk(volume(), AFFINE), str(tmp_path / "v.nii.gz"))
    np.testing.assert_allclose(nib.load(tmp_path / "v.nii.gz").affine, AFFINE, atol=1e-5)


def test_hostile_containers(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["image"] = h5py.SoftLink("/image")
    with pytest.raises(PathError, match="HDF5"):
        read_image(path)
    with h5py.File(path, "w") as file:  # 9 GB in a file of some KB
        file.create_dataset("image", shape=(1500, 1500, 1000), dtype="f4", chunks=(1, 64, 64))
    with pytest.raises(PathError, match="announces a volume"):
        read_image(path)
    (tmp_path / "a.tif").write_bytes(b"II*\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00")
    with pytest.raises(PathError, match=r"a\.tif: is truncated"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("line", ["a" * 5000, "encoding: " + "a" * 5000, ": " + "a" * 5000])
def test_nrrd_headers_that_crash_itk(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.nrrd"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((3, 4, 5), np.uint8)), str(path))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\nencoding", f"\n{line}\nencoding".encode(), 1))
    with pytest.raises(PathError, match=r"a\.nrrd: is truncated or damaged"):
        read_header(path)
    note = b"\nnote:=" + b"a" * 5000 + b"\nencoding"
    path.write_bytes(content.replace(b"\nencoding", note, 1))
    assert read_header(path).file_shape == (5, 4, 3)


def test_sizes_of_nrrd_beyond_32_bits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.nrrd"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((3, 4, 5), np.uint8)), str(path))
    path.write_bytes(path.read_bytes().replace(b"sizes: 5 4 3", b"sizes: 4294967297 1 1"))
    with pytest.raises(PathError, match=r"a\.nrrd: is truncated or damaged"):
        read_image(path)


def test_an_empty_volume_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mhd"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((3, 4, 5), np.uint8)), str(path))
    path.write_text(path.read_text().replace("DimSize = 5 4 3", "DimSize = 0 4 3"))
    with pytest.raises(PathError, match=r"a\.mhd"):
        read_header(path)


@pytest.mark.parametrize(
    "line", ["NDims = -1", "NDims = 0", "NDims = 99", "ElementDataFile = LIST"]
)
def test_metaimage_headers_on_which_itk_crashes(tmp_path: Path, line: str) -> None:
    sitk.WriteImage(to_itk(blob((4, 5, 6), (1,), np.uint8), np.eye(4)), str(tmp_path / "a.mhd"))
    path, key = tmp_path / "a.mhd", line.split(" ")[0]
    kept = [text for text in path.read_text().splitlines() if not text.startswith(key)]
    path.write_text("\n".join([line, *kept] if key == "NDims" else [*kept, line]) + "\n")
    with pytest.raises(PathError, match=r"a\.mhd: (is truncated|has its voxels in a list)"):
        read_image(path)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_dicom_on_which_itk_loses_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid type of the title of the program: GDCM takes what follows for its length."""
    monkeypatch.setattr(guarded, "_CHILDREN", {})
    folder = write_dicom(tmp_path / "a", volume(), AFFINE)
    path = sorted(folder.iterdir())[-1]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x02\x00\x16\x00AE", b"\x02\x00\x16\x00QE"))
    assert message(folder) == f"{path}: is truncated or damaged; download or export the file again"
    assert message(path) == message(folder)
    (child,) = guarded._CHILDREN.values()
    assert child._process is not None
    status = Path(f"/proc/{child._process.pid}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib < 2**19
    path.write_bytes(content)
    np.testing.assert_array_equal(read_image(folder)[0][0], volume())


def test_damaged_compressed_metaimage(tmp_path: Path) -> None:
    path = tmp_path / "a.mha"
    sitk.WriteImage(to_itk(volume(), AFFINE), str(path), useCompression=True)
    np.testing.assert_array_equal(read_image(path)[0][0], volume())
    content = path.read_bytes()
    start = content.index(b"LOCAL\n") + 6
    for place in (start, start + 40, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 255
        path.write_bytes(damaged)
        assert "is truncated or damaged" in message(path)


def test_only_itk_formats_start_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_CHILDREN", {})
    for form in ("nii.gz", *PLAIN):
        read_image(write_as(form, tmp_path / "v", volume(np.uint8), AFFINE, "image"))
    assert guarded._CHILDREN == {}


def test_relative_paths_follow_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("a", "b")):
        write_as("nrrd", tmp_path / name / "v", volume() + number, AFFINE, "image")
        write_dicom(tmp_path / name / "d", volume() + number, AFFINE)
        monkeypatch.chdir(tmp_path / name)
        for path in ("v.nrrd", "d"):
            np.testing.assert_array_equal(read_image(Path(path))[0][0], volume() + number)


def test_a_crash_in_a_worker_process_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_set(tmp_path / "s", "mhd", "mhd")
    path = source / "images" / "case1.mhd"
    path.write_text(path.read_text().replace("NDims = 3", "NDims = -1"))
    command = ("prepare", "folder", "--source", source, "--out", tmp_path / "out", "--workers", 2)
    assert run_cli(monkeypatch, *command) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    assert lines == [f"segcal: {path}: is truncated or damaged; download or export the file again"]
