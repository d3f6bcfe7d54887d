"""The four files of an evaluation: evaluation.json, cases.csv, bins.npz and slices.npz.

bins.npz holds `cases`, `regions`, `labels` and the state of `CalibrationBins` stacked over (case,
region); keys that begin with "truth_" are bins against known true probabilities, and keys that
begin with "level_" the state of `ConfidenceLevels` stacked over cases. slices.npz holds
`cases` and, for case number i, `image_i`, `truth_i`, `labels_i` and `confidence_i` (slices, height,
width), `spacing_i` of a pixel, the numbers of the slices `slices_i`, and `outside_i`, the share of
the predicted foreground that they do not show. Older files hold one whole slice (height, width).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from segcal.core.documents import read_model
from segcal.core.errors import PathError
from segcal.core.files import file_sha256, staged_files, write_json
from segcal.metrics import DEFAULT_REGION, POOLED, Row, find_metric
from segcal.stats import to_frame
from segcal.study.cases_table import read_cases_table, write_cases_table

if TYPE_CHECKING:
    import pandas as pd

Arrays = Mapping[str, NDArray[Any]]
JSON, CASES, BINS, SLICES = "evaluation.json", "cases.csv", "bins.npz", "slices.npz"
# External evaluations of a run are in external/NAME below its own.
EXTERNAL = "external"
# What numpy and zipfile raise for files that are cut off, overwritten or of another kind.
# RuntimeError: an archive is encrypted, or of an unknown kind.
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class EvaluationInfo(BaseModel):
    """The content of evaluation.json.

    The keys from `checkpoint` to `device` describe an evaluated run; other predictions lack them.

    Attributes:
        external: whether the cases are of another set than that of the training.
        grid: where the metrics were measured, on the prepared or on the original grid.
        seen: cases whose scans the run was trained or validated on, although they are evaluated
            as unseen ones.
        options: options of the metrics.
        metrics: metrics that were requested beside the default ones.
        calibrator: the calibrator that was fitted and applied, its parameters and its fit.
        undefined: number of undefined values of each metric.
        files: checksums of the other files.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    format: Literal["segcal-evaluation"] = "segcal-evaluation"
    version: Literal[1] = 1
    run: str
    method: str
    seed: int
    dataset: str
    split: str
    external: bool = False
    grid: Literal["prepared", "original"] = "prepared"
    seen: tuple[str, ...] = ()
    regions: tuple[str, ...]
    options: dict[str, Any]
    metrics: tuple[str, ...] = ()
    labels: tuple[str, ...]
    structures: tuple[str, ...]
    checkpoint: str | None = None
    checkpoint_sha256: str | None = None
    flips: tuple[str, ...] = ()
    average: str | None = None
    epochs: int | None = None
    data_fingerprint: str | None = None
    device: str | None = None
    calibrator: dict[str, Any] | None = None
    case_names: tuple[str, ...]
    undefined: dict[str, int]
    seconds: float
    versions: dict[str, str]
    commit: str | None
    files: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on disk; `reused`: it existed before and was not computed again."""

    folder: Path
    info: EvaluationInfo
    reused: bool = field(default=False, compare=False)
    rows: Sequence[Row] | None = field(default=None, compare=False, repr=False)

    @property
    def split(self) -> str:
        return self.info.split

    def path(self, name: str) -> Path:
        """The path of one of the four files."""
        return file_of_split(self.folder, name, self.split)

    def table(self) -> pd.DataFrame:
        """The long table of all rows; it is read once."""
        return self._table

    @cached_property
    def _table(self) -> pd.DataFrame:
        if self.rows is None:
            return read_cases_table(self.path(CASES))
        return to_frame(self.rows)

    def damaged(self) -> Path | None:
        """The first file that is missing or was modified; None if all are as written."""
        for name, known in self.info.files.items():
            path = self.path(name)
            if not path.is_file() or known != _checksum(path):
                return path
        return None

    def means(self, region: str = DEFAULT_REGION) -> dict[str, float]:
        """Mean over cases and structures of each metric; undefined values are left out."""
        table = self.table()
        cases = table[
            (table["case"] != POOLED) & table["label"].isin(["all", *self.info.structures])
        ]
        whole = {metric for metric in set(cases["metric"]) if find_metric(metric).whole_image}
        chosen = cases[(cases["region"] == region) | cases["metric"].isin(whole)]
        found = chosen.groupby("metric", sort=False, observed=True)["value"].mean()
        return {str(metric): float(value) for metric, value in found.items()}


def file_of_split(folder: Path, name: str, split: str) -> Path:
    """The files of split test, or of all cases, have plain names; those of split X end in _X."""
    stem, dot, ending = name.partition(".")
    return folder / (name if split in ("test", "all") else f"{stem}_{split}{dot}{ending}")


def read_evaluation(folder: Path | str, split: str = "test") -> Evaluation | None:
    """The finished evaluation in a folder, or None."""
    path = file_of_split(Path(folder), JSON, split)
    if not path.exists():
        return None
    remedy = "pass --overwrite to evaluate again"
    return Evaluation(Path(folder), read_model(path, EvaluationInfo, "an evaluation", remedy))


def write_evaluation_files(
    folder: Path, info: EvaluationInfo, rows: Sequence[Row], bins: Arrays, slices: Arrays
) -> Evaluation:
    """Write the files of an evaluation.

    An old evaluation is replaced when all new files are on the disk. evaluation.json never
    describes files of another evaluation.
    """
    with staged_files(folder, last=file_of_split(folder, JSON, info.split).name) as draft:
        paths = {name: file_of_split(draft, name, info.split) for name in (CASES, BINS, SLICES)}
        write_cases_table(paths[CASES], rows)
        for name, arrays in ((BINS, bins), (SLICES, slices)):
            with paths[name].open("wb") as file:
                np.savez_compressed(file, **dict[str, Any](arrays))
        files = {name: _checksum(path) for name, path in paths.items()}
        info = info.model_copy(update={"files": files})
        write_json(file_of_split(draft, JSON, info.split), info.model_dump(mode="json"))
    return Evaluation(folder, info, rows=rows)


@contextmanager
def open_arrays(path: Path, what: str) -> Iterator[Arrays]:
    """The arrays of bins.npz or slices.npz; a damaged file raises a PathError that names `what`."""
    try:
        # Checked first: for other files numpy advises to load pickles, which is never done here.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is cut off or not an .npz file")
        with np.load(path, allow_pickle=False) as file:
            yield file
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "copy it again, evaluate its run again, or remove it to report without it"
        raise PathError(path, f"does not hold {what} ({reason})", remedy) from error


def _checksum(path: Path) -> dict[str, Any]:
    """SHA-256 of a file; for a table also its number of rows without the header."""
    content: dict[str, Any] = {"sha256": file_sha256(path)}
    if path.suffix == ".csv":
        content["rows"] = path.read_bytes().count(b"\n") - 1
    return content
