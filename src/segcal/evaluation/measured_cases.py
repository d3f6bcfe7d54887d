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
        known: Measured | None = self._read(
            lambda file: (_from_arrays(file), _below(file, "picture/"))
        )
        if known is not None:
            return known
        result, picture = measure()
        buffer, arrays = io.BytesIO(), _to_arrays(result)
        arrays |= {f"picture/{name}": array for name, array in picture.items()}
        arrays["key"] = np.array(self.key)
        np.savez(buffer, **dict[str, Any](arrays))
        with suppress(OSError):  # it is only needed if the audit is killed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self.path, buffer.getvalue())
        return result, picture

    def _read(self, read: Callable[[Any], Any]) -> Any:
        if self.path.is_file():
            with suppress(PathError), open_arrays(self.path, "a measured case") as file:
                return read(file) if str(file["key"]) == self.key else None
        return None


def key_of(files: Iterable[Path], *settings: object) -> str:
    """A text that differs if a file, by size and time, a setting or the software differs."""
    stats = [(str(path), (s := path.stat()).st_size, s.st_mtime_ns) for path in files]
    return json.dumps([versions(), git_commit(), [repr(each) for each in settings], stats])


def _to_arrays(result: CaseResult, prefix: str = "") -> dict[str, NDArray[Any]]:
    out = {
        f"{prefix}rows": np.array(json.dumps([astuple(row) for row in result.rows])),
        f"{prefix}regions": np.array(list(result.statistics), str),
        f"{prefix}heads": np.array(list(result.heads), str),
    }
    states = {f"{region}/": each.state() for region, each in result.statistics.items()}
    if result.levels is not None:
        states["levels/"] = result.levels.state()
    for start, state in states.items():
        out |= {f"{prefix}{start}{name}": array for name, array in state.items()}
    for number, head in enumerate(result.heads.values()):
        out |= _to_arrays(head, f"{prefix}head{number}/")
    return out


def _from_arrays(file: Any, prefix: str = "") -> CaseResult:
    """The inverse of `_to_arrays`, to the last bit."""
    regions, heads = (map(str, file[f"{prefix}{name}"]) for name in ("regions", "heads"))
    levels = _below(file, f"{prefix}levels/")
    return CaseResult(
        rows=[Row(*values) for values in json.loads(str(file[f"{prefix}rows"]))],
        statistics={r: VoxelStatistics.from_state(_below(file, f"{prefix}{r}/")) for r in regions},
        levels=ConfidenceLevels.from_state(levels) if levels else None,
        heads={h: _from_arrays(file, f"{prefix}head{i}/") for i, h in enumerate(heads)},
    )


def _below(file: Any, start: str) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin with `start`, without it."""
    return {name.removeprefix(start): file[name] for name in file if name.startswith(start)}
