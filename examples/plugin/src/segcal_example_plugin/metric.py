"""A metric: one function and one `Metric` object."""

from segcal.metrics import Metric, StructureData


def volume_error_ml(structure: StructureData) -> float:
    """|predicted volume − true volume| of a structure, in milliliters."""
    voxels = int(structure.predicted.sum()) - int(structure.target.sum())
    depth, height, width = structure.spacing_mm
    return abs(voxels) * depth * height * width / 1000


VOLUME_ERROR = Metric(
    key="volume_error",
    title="Volume error",
    read=volume_error_ml,
    better="lower",
    scope="structure",
    unit="ml",
)
