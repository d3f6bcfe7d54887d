"""The grid that a case is stored on, and how to return to the grid of its file."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, PositiveFloat, PositiveInt, model_serializer

from segcal.data.resample import (
    Float,
    Labels,
    center_start,
    crop_or_pad,
    resize_labels,
    resize_linear,
)

# A stored label of this value marks a voxel that does not count; loaders turn it into -100.
IGNORED = 255

Shape = tuple[int, int, int]
Spacing = tuple[float, float, float]
PositiveShape = tuple[PositiveInt, PositiveInt, PositiveInt]
PositiveSpacing = tuple[PositiveFloat, PositiveFloat, PositiveFloat]
Row = tuple[float, float, float, float]
OptionalShape = tuple[PositiveInt | None, PositiveInt | None, PositiveInt | None]


class GridRecipe(BaseModel, frozen=True, extra="forbid"):
    """What happens to the grid of every case, axes (Z, Y, X); None keeps an axis unchanged.

    The whole volume is resized to `resize`; then its center is cropped to `crop` (padded where the
    volume is smaller). With `spacing_mm`, axes that `resize` does not fix are resized to this
    spacing.
    """

    resize: OptionalShape = (None, None, None)
    crop: OptionalShape = (None, None, None)
    spacing_mm: PositiveSpacing | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Without a spacing that is None: settings and fingerprints of older sets lack it."""
        content = serialize(self)
        return content if self.spacing_mm else {k: content[k] for k in ("resize", "crop")}

    def shapes(self, shape: Shape, spacing_mm: Spacing | None = None) -> tuple[Shape, Shape]:
        """The shape after resizing, and the stored shape, of a volume with this shape."""
        scaled = shape
        if self.spacing_mm and spacing_mm:
            axes = zip(shape, spacing_mm, self.spacing_mm, strict=True)
            # A single slice stays one, whatever its thickness.
            z, y, x = (n if n == 1 else max(1, round(n * have / want)) for n, have, want in axes)
            scaled = (z, y, x)
        z, y, x = (want or have for want, have in zip(self.resize, scaled, strict=True))
        resized = (z, y, x)
        z, y, x = (want or have for want, have in zip(self.crop, resized, strict=True))
        return resized, (z, y, x)


class Grid(BaseModel, frozen=True, extra="forbid"):
    """original → resized → cropped or padded. Axes (Z, Y, X), as the arrays are stored.

    `affine` is that of the source file: it maps voxel indices (x, y, z) to millimeters.
    """

    original_shape: PositiveShape
    original_spacing_mm: PositiveSpacing
    affine: tuple[Row, Row, Row, Row]
    resized_shape: PositiveShape
    start: Shape
    shape: PositiveShape

    @property
    def spacing_mm(self) -> Spacing:
        """Spacing of the stored grid, (Z, Y, X)."""
        axes = zip(self.original_spacing_mm, self.original_shape, self.resized_shape, strict=True)
        z, y, x = (spacing * before / after for spacing, before, after in axes)
        return z, y, x

    @property
    def stored_affine(self) -> NDArray[np.float64]:
        """Affine of the stored grid: its voxel indices (x, y, z) to millimeters."""
        step = np.array(self.original_shape[::-1]) / np.array(self.resized_shape[::-1])
        to_original = np.eye(4)
        to_original[:3, :3] = np.diag(step)
        to_original[:3, 3] = (np.array(self.start[::-1]) + 0.5) * step - 0.5
        affine: NDArray[np.float64] = np.array(self.affine) @ to_original
        return affine

    def apply_image(self, image: NDArray[np.floating]) -> Float:
        """(C, Z, Y, X) from the original grid to the stored one; padding is 0."""
        resized = resize_linear(image, self.resized_shape)
        return np.asarray(crop_or_pad(resized, self.start, self.shape, 0.0), dtype=np.float32)

    def apply_labels(self, labels: NDArray[np.integer]) -> Labels:
        """(Z, Y, X) from the original grid to the stored one; padding is IGNORED."""
        resized = resize_labels(labels, self.resized_shape)
        return np.asarray(crop_or_pad(resized, self.start, self.shape, IGNORED), dtype=np.uint8)

    def restore_labels(self, labels: NDArray[np.integer]) -> Labels:
        """(Z, Y, X) labels from the stored grid to the original one.

        Voxels that were cropped away become background.
        """
        self._check("labels", labels.shape)
        whole = crop_or_pad(labels, [-s for s in self.start], self.resized_shape, 0)
        return resize_labels(np.asarray(whole, dtype=np.uint8), self.original_shape)

    def restore_probs(self, probs: NDArray[np.floating]) -> Float:
        """(K, Z, Y, X) probabilities from the stored grid to the original one.

        They still sum to 1. Voxels that were cropped away become background with probability 1.
        """
        self._check("probs", probs.shape[1:])
        back = [-s for s in self.start]
        background = crop_or_pad(probs[:1], back, self.resized_shape, 1.0)
        others = crop_or_pad(probs[1:], back, self.resized_shape, 0.0)
        whole = np.concatenate([background, others]).astype(np.float32)
        return resize_linear(whole, self.original_shape)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if tuple(shape) != self.shape:
            raise ValueError(
                f"Expected argument `{name}` to have the stored grid's shape {self.shape}, "
                f"but got {tuple(shape)}."
            )


def plan_grid(
    shape: Shape, spacing_mm: Spacing, affine: NDArray[np.floating], recipe: GridRecipe
) -> Grid:
    """The grid on which a volume of this shape is stored."""
    resized, stored = recipe.shapes(shape, spacing_mm)
    rows: Any = affine.tolist()
    start: Any = center_start(resized, stored)
    return Grid(
        original_shape=shape, original_spacing_mm=spacing_mm, affine=rows,
        resized_shape=resized, start=start, shape=stored,
    )  # fmt: skip
