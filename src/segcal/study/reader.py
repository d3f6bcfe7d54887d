"""A study folder, read and checked: study.json, the long table, and the files of its runs."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.metrics import REGIONS, base_metric
from segcal.stats import ranked_methods
from segcal.study.cases_table import empty_cases_table, read_cases_table
from segcal.study.reference import Named, find_named
from segcal.study.schema import Dataset, Method, Run, StudyFile

if TYPE_CHECKING:
    import pandas as pd

# What helps when the long table of a study is not whole.
_AGAIN = "copy it again, or resume the study (`segcal benchmark PLAN --out STUDY --resume`)"
GROUPS = ("main", "ablation", "prior", "posthoc")
_Named = TypeVar("_Named", Dataset, Method)


@dataclass(frozen=True)
class Study:
    """What the report is made of. Only names and numbers are held; files of runs open when asked.

    Attributes:
        region: where the calibration of the printed tables was measured.
        regions: where calibration was measured at all.
        metrics: of the tables, as the rows name them.
        named: the method that the study is about, if somebody named one.
    """

    folder: Path
    info: StudyFile
    table: "pd.DataFrame"
    region: str
    regions: tuple[str, ...]
    metrics: tuple[str, ...]
    named: Named | None = None

    @cached_property
    def methods(self) -> dict[str, Method]:
        """By name, in the order of study.json; methods that only rows know come last."""
        out = {m.name: replace_title(m) for m in self.info.methods}
        for name in dict.fromkeys(self.table["method"]):
            out.setdefault(str(name), Method(name=str(name), title=str(name)))
        return out

    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """By name; datasets that only rows know come last."""
        out = {d.name: replace_title(d) for d in self.info.datasets}
        for name in dict.fromkeys(self.table["dataset"]):
            out.setdefault(str(name), Dataset(name=str(name), title=str(name)))
        return out

    @cached_property
    def present(self) -> set[tuple[str, str]]:
        """(dataset, method) that have rows."""
        pairs = self.table[["dataset", "method"]].drop_duplicates()
        return {(str(d), str(m)) for d, m in pairs.itertuples(index=False)}

    def in_group(self, *groups: str) -> list[str]:
        """Names of the methods of some groups; an unknown group counts as "main"."""
        return [
            m.name
            for m in self.methods.values()
            if (m.group if m.group in GROUPS else "main") in groups
        ]

    @property
    def compared(self) -> list[str]:
        """Methods that are ranked; see `segcal.stats.ranked_methods`."""
        return ranked_methods({name: method.group for name, method in self.methods.items()})

    @property
    def failed(self) -> list[Run]:
        """The runs that did not end."""
        return [run for run in self.info.runs if run.state != "done"]

    def files(self, name: str) -> Iterator[tuple[Run, Path]]:
        """The file `name` ("bins.npz") of each finished run that has it."""
        stem, dot, ending = name.partition(".")
        if self.info.split != "test":
            stem = f"{stem}_{self.info.split}"
        for run in self.info.runs:
            place = PurePosixPath(run.folder)
            if run.state != "done" or not run.folder:
                continue
            if place.is_absolute() or ".." in place.parts:
                raise ValueError(
                    f"Expected the folder of run {run.run!r} in {self.folder / 'study.json'} to "
                    f"be inside the study, but got {run.folder!r}."
                )
            path = self.folder / place / f"{stem}{dot}{ending}"
            if path.is_file():
                yield run, path


def replace_title(part: _Named) -> _Named:
    """A part without a title is called by its name."""
    return part if part.title else part.model_copy(update={"title": part.name})


def read_study(folder: Path, region: str | None = None, reference: str | None = None) -> Study:
    """The study in a folder; `region` overrides where its calibration is read, `reference` the
    method that it is about."""
    path = folder / "study.json"
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    if not path.is_file():
        raise ValueError(
            f"Expected {folder} to be a study (with study.json, as `segcal benchmark`, `segcal "
            "demo` and `segcal audit` write), but it has none."
        )
    info = _check(path)
    table = _read_rows(folder / "cases.csv")
    _check_runs(info, table, folder)
    regions = _regions(table)
    wanted = region if region is not None else info.region
    if region is not None and regions:
        check_choice("region", wanted, regions)
    elif regions and wanted not in regions:
        raise ValueError(
            f"Expected `region` of {path} to be one of {', '.join(map(repr, regions))}, where "
            f"calibration was measured, but got {wanted!r}; correct it, or say --region."
        )
    study = Study(folder, info, table, wanted, regions, ())
    metrics = _metrics(info.metrics, set(table["metric"]))
    return replace(study, metrics=metrics, named=find_named(study, reference))


def _check(path: Path) -> StudyFile:
    try:
        return StudyFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the top level"
        raise ValueError(
            f"{path}: Expected `{where}` to be valid ({first['msg']}), but got "
            f"{textwrap.shorten(repr(first['input']), 80)}."
        ) from error
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error


def _read_rows(path: Path) -> "pd.DataFrame":
    """The long table; a missing or empty file is a study without rows."""
    if not path.is_file() or path.stat().st_size == 0:
        return empty_cases_table()
    try:
        return read_cases_table(path)
    except PathError as error:
        raise PathError(path, error.problem, _AGAIN) from error


def _check_runs(info: StudyFile, table: "pd.DataFrame", folder: Path) -> None:
    """A run that is done has rows: a table without them is of another time, or cut off."""
    named = set(table["run"].unique())
    keys = table[["dataset", "method", "seed"]].drop_duplicates()
    there = set(keys.astype(str).itertuples(index=False, name=None))
    for run in info.runs:
        known = run.run in named or (run.dataset, run.method, str(run.seed)) in there
        if run.state == "done" and not known:
            raise ValueError(
                f"Expected {folder / 'cases.csv'} to have rows of run {run.run!r}, which "
                f"study.json calls done, but it has none; {_AGAIN}."
            )


def _regions(table: "pd.DataFrame") -> tuple[str, ...]:
    there = set(table.loc[table["metric"] == "ece", "region"])
    return tuple(name for name in REGIONS if name in there)


def _metrics(asked: tuple[str, ...], there: set[str]) -> tuple[str, ...]:
    """The asked metrics as the rows name them ("hd95" -> "hd95_voxel"); absent ones are left out.

    A study told to use "hd95_mm" whose rows are in voxels shows what the rows hold.
    """
    out: list[str] = []
    for metric in asked:
        same = [name for name in sorted(there) if base_metric(name) == base_metric(metric)]
        found = metric if metric in there else (same[0] if same else None)
        if found is not None and found not in out:
            out.append(found)
    return tuple(out)
