"""Boxes of voxels: a slice for each spatial axis."""

from collections.abc import Sequence
from typing import TypeAlias

Box: TypeAlias = tuple[slice, ...]


def grow(box: Box, margin: Sequence[int], shape: Sequence[int]) -> Box:
    """The box with a margin of voxels along each axis, inside the image."""
    return tuple(
        slice(max(s.start - m, 0), min(s.stop + m, n))
        for s, m, n in zip(box, margin, shape, strict=True)
    )


def join(a: Box | None, b: Box | None) -> Box | None:
    """The smallest box that contains both."""
    if a is None or b is None:
        return a if b is None else b
    return tuple(
        slice(min(p.start, q.start), max(p.stop, q.stop)) for p, q in zip(a, b, strict=True)
    )
