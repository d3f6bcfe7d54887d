"""One volume in every supported format, written by the libraries that users write them with."""

import locale
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import SimpleITK as sitk
from PIL import Image

# Formats that keep spacing, position and direction; and those that keep the numbers only.
WITH_GEOMETRY = ("nii.gz", "nrrd", "mha", "mhd", "dicom")
PLAIN = ("npy", "npz", "h5", "tif", "png folder")


def to_itk(array: np.ndarray, affine: np.ndarray) -> sitk.Image:
    """A SimpleITK image of (Z, Y, X), whose RAS affine is `affine`."""
    image = sitk.GetImageFromArray(array)
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    return image


def write_dicom(
    folder: Path,
    array: np.ndarray,
    affine: np.ndarray,
    uid: str = "1.2.3.4",
    keep: range | None = None,
) -> Path:
    """A series of one file per slice; the names are in another order than the positions."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = to_itk(array, affine)
    direction = np.array(whole.GetDirection()).reshape(3, 3)
    # Writing DICOM sets the locale of the process to C, in which text files are ASCII.
    before = locale.setlocale(locale.LC_CTYPE)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for z in keep or range(len(array)):
        piece = sitk.GetImageFromArray(array[z])
        piece.SetSpacing(whole.GetSpacing()[:2])
        tags = {
            "0008|0016": "1.2.840.10008.5.1.4.1.1.4",
            "0008|0018": f"{uid}.{z + 1}",
            "0008|0060": "MR",
            "0008|103e": f"series {uid}",
            "0018|0050": f"{whole.GetSpacing()[2]:.8g}",
            "0020|000d": "1.2.3",
            "0020|000e": uid,
            "0020|0013": str(z + 1),
            "0020|0032": _numbers(whole.TransformIndexToPhysicalPoint((0, 0, z))),
            "0020|0037": _numbers([*direction[:, 0], *direction[:, 1]]),
        }
        for tag, value in tags.items():
            piece.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"IM{uid[-1]}{(z * 419) % 1009:04d}.dcm"))
        writer.Execute(piece)
    locale.setlocale(locale.LC_CTYPE, before)
    return folder


def _numbers(values: object) -> str:
    return "\\".join(f"{value:.10g}" for value in values)  # type: ignore[attr-defined]


def write_as(form: str, stem: Path, array: np.ndarray, affine: np.ndarray, key: str) -> Path:
    """Write (Z, Y, X) as STEM.<form>; `key` names the array in .npz and .h5 files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_name(f"{stem.name}.{form}")
    if form == "nii.gz":
        nib.save(nib.Nifti1Image(array.T, affine), path)
    elif form in ("nrrd", "mha", "mhd"):
        sitk.WriteImage(to_itk(array, affine), str(path))
    elif form == "dicom":
        return write_dicom(stem, array, affine)
    elif form == "npy":
        np.save(path, array)
    elif form == "npz":
        np.savez_compressed(path, **{key: array, "other": array[:1]})
    elif form == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset(key, data=array, compression="gzip")
            file.create_dataset("group/other", data=array[:1])
    elif form == "tif":
        pages = [Image.fromarray(page) for page in array]
        pages[0].save(path, save_all=True, append_images=pages[1:])
    else:
        stem.mkdir()
        for z, page in enumerate(array):
            Image.fromarray(page).save(stem / f"{z:03d}.png")
        return stem
    return path
