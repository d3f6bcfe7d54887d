"""The record in which every metric is reported: one value of one case."""

from dataclasses import dataclass, fields

# The case of rows that are pooled over all voxels of a dataset. Rankings skip these rows.
POOLED = "pooled"


@dataclass(frozen=True)
class Row:
    """One value of one case. Where the metric is undefined the value is NaN and the row is kept.

    Attributes:
        run, method, seed, dataset, case: what was measured.
        label: name of a structure, number of a class, or "all" for a value over all classes.
        region: the voxels that were measured; "all" for metrics of the whole image.
        metric: key of the metric with its unit, such as "dsc", "hd95_mm" or "nsd_2mm".
        value: the number.
    """

    run: str
    method: str
    seed: int
    dataset: str
    case: str
    label: str
    region: str
    metric: str
    value: float


COLUMNS = tuple(field.name for field in fields(Row))
