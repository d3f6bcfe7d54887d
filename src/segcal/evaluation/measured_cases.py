"""Measured cases on disk: an audit that was killed continues with the next case."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segcal.core.errors import PathError
from segcal.core.files import write_bytes
from segcal.core.provenance import git_commit, versions
from segcal.metrics import CaseResult, ConfidenceLevels, Row, VoxelStatistics
from segcal.study import open_arrays

# The result of a case and its picture.
Measured: TypeAlias = tuple[CaseResult, dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class KeptCase:
    """The file of a measured case; `key` describes the inputs that it was measured from."""

    path: Path
    key: str

    @property
    def exists(self) -> bool:
        """Whether the case was measured from the same inputs."""
        return self._read(lambda file: True) or False

    def measure(self, measure: Callable[[], Measured]) -> Measured:
        """The kept result; or a new one, which is kept."""
        known = self._read(_from_arrays)
        if known is not None:
            return known
        result = measure()
        buffer = io.BytesIO()
        np.savez(buffer, key=np.array(self.key), **_to_arrays(result))
        with suppress(OSError):  # it is only needed if the audit is killed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.path, buffer.getvalue())
        return result

    def _read(self, read: Callable[[Any], Any]) -> Any:
        if self.path.is_file():
            with suppress(PathError), open_arrays(self.path, "a measured case") as file:
                return read(file) if str(file["key"]) == self.key else None
        return None


def key_of(files: Iterable[Path], *settings: object) -> str:
    """A text that differs if a file, by size and time, a setting or the software differs."""
    stats = [(str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in files]
    return json.dumps([versions(), git_commit(), [repr(each) for each in settings], stats])


def _to_arrays(measured: Measured) -> dict[str, NDArray[Any]]:
    result, picture = measured
    out = {"rows": np.array(json.dumps([astuple(row) for row in result.rows]))}
    out["regions"] = np.array(list(result.statistics))
    for region, statistics in result.statistics.items():
        out |= {f"{region}/{name}": each for name, each in statistics.state().items()}
    if result.levels is not None:
        out |= result.levels.state()
    return out | {f"picture/{name}": array for name, array in picture.items()}


def _from_arrays(file: Any) -> Measured:
    """The inverse of `_to_arrays`, to the last bit."""
    rows = [Row(*values) for values in json.loads(str(file["rows"]))]
    statistics, picture = {}, {}
    for region in map(str, file["regions"]):
        start = f"{region}/"
        state = {name.removeprefix(start): file[name] for name in file if name.startswith(start)}
        statistics[region] = VoxelStatistics.from_state(state)
    for name in file:
        if name.startswith("picture/"):
            picture[name.removeprefix("picture/")] = np.asarray(file[name])
    levels = ConfidenceLevels.from_state(file) if "level_count" in file else None
    return CaseResult(rows, statistics, levels), picture
