"""PNG, TIFF, JPEG and other pictures: a 2-D image, the pages of a file, or a folder of slices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.data.formats.header import DAMAGED, Opened, plain_header

PICTURES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp", ".gif")


def open_pictures(path: Path, slices: Sequence[Path]) -> Opened:
    """`slices` in order as one volume; colors are channels, an alpha channel is dropped."""
    with _open(slices[0]) as first:
        bands = 3 if first.mode not in _GRAY else 1
        palette = first.mode == "P"
        pages = getattr(first, "n_frames", 1) if len(slices) == 1 else len(slices)
        file_shape: tuple[int, ...] = (*first.size, pages) if pages > 1 else first.size
    if bands > 1:
        file_shape = (*(*file_shape, 1)[:3], bands)
    header = plain_header(path, file_shape, 4)
    if palette:
        header.notes["palette"] = "numbers of colors"

    def load() -> NDArray[Any]:
        pages = [page for name in slices for page in _pages(name)]
        if len({page.shape for page in pages}) > 1:
            raise PathError(path, "holds slices of different sizes", "give them one size")
        volume = np.stack(pages)
        return np.moveaxis(volume, -1, 0) if bands > 1 else volume

    return header, load


# Modes of Pillow with one number per pixel; all others are read as RGB.
_GRAY = ("1", "L", "LA", "P", "I", "F", "I;16", "I;16B", "I;16L")


def _pages(path: Path) -> Iterator[NDArray[Any]]:
    with _open(path) as image:
        for page in range(getattr(image, "n_frames", 1)):
            image.seek(page)
            whole = image if image.mode in _GRAY else image.convert("RGB")
            array = np.asarray(whole)
            yield (array[..., 0] if image.mode == "LA" else array).astype(
                np.uint8 if array.dtype == np.bool_ else array.dtype
            )


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except PathError:
        raise
    except Exception as error:  # Pillow raises many types on damaged files
        raise PathError(path, "is truncated, damaged or not a picture", DAMAGED) from error
