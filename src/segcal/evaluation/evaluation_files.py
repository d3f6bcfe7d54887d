"""Predicted cases in, the four files of an evaluation out. The writer for runs and audits alike."""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from segcal import __version__
from segcal.core.files import atomic_path, file_sha256, write_json
from segcal.core.provenance import git_commit, versions
from segcal.evaluation.case_metrics import EvaluatedCase, PredictedCase, evaluate_predicted_case
from segcal.metrics import DEFAULT_REGION, POOLED, CaseOptions, Row, is_whole_image, pool_cases
from segcal.study.cases_table import read_cases_table, write_cases_table

if TYPE_CHECKING:
    import pandas as pd

FORMAT, VERSION = "segcal-evaluation", 1
# What evaluation.json speaks for.
FILES = ("cases.csv", "bins.npz", "slices.npz")
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on disk: what evaluation.json says, and the way to its rows."""

    folder: Path
    split: str
    about: dict[str, Any]
    reused: bool = False

    def path(self, name: str) -> Path:
        """Where "cases.csv", "bins.npz", "slices.npz" or "evaluation.json" of this split is."""
        return file_of(self.folder, name, self.split)

    def table(self) -> pd.DataFrame:
        """The long table of all rows."""
        return read_cases_table(self.path("cases.csv"))

    def damaged(self) -> Path | None:
        """The first of its files that is not there, or not as it was written; None if all are.

        Evaluations of older versions do not say what their files held: those are only looked for.
        """
        known = self.about.get("files", {})
        for name in FILES:
            path = self.path(name)
            if not path.is_file() or (name in known and known[name] != describe_file(path)):
                return path
        return None

    @property
    def case_names(self) -> list[str]:
        """The cases that were measured, in order."""
        named = self.about.get("case_names")
        if named is not None:
            return list(named)
        return [name for name in dict.fromkeys(self.table()["case"]) if name != POOLED]

    def means(self, region: str = DEFAULT_REGION) -> dict[str, float]:
        """Mean over cases (and structures) of each metric, undefined values left out."""
        table = self.table()
        cases = table[(table["case"] != POOLED) & table["label"].isin(["all", *self.structures])]
        names = cases["metric"].unique()
        whole = cases["metric"].isin([name for name in names if is_whole_image(name)])
        chosen = cases[(cases["region"] == region) | whole]
        found = chosen.groupby("metric", sort=False, observed=True)["value"].mean()
        return {str(metric): float(value) for metric, value in found.items()}

    @property
    def structures(self) -> list[str]:
        return list(self.about["structures"])


def file_of(folder: Path, name: str, split: str) -> Path:
    """The test split's files have plain names; those of split X end in _X."""
    stem, dot, ending = name.partition(".")
    return folder / (name if split == "test" else f"{stem}_{split}{dot}{ending}")


def describe_file(path: Path) -> dict[str, Any]:
    """What tells that a file is as it was written; of a table, also its rows without the header."""
    content: dict[str, Any] = {"sha256": file_sha256(path)}
    if path.suffix == ".csv":
        content["rows"] = path.read_bytes().count(b"\n") - 1
    return content


def epochs_done(folder: Path) -> int:
    """How far a run is, by its log: one line per epoch."""
    try:
        return (folder / "log.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def read_evaluation(folder: Path | str, split: str = "test") -> Evaluation | None:
    """The finished evaluation in a folder, or None where there is none."""
    path = file_of(Path(folder), "evaluation.json", split)
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: is damaged ({error}); say --overwrite") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path}: is not an evaluation of segcal; say --overwrite")
    return Evaluation(Path(folder), split, about)


def write_evaluation(
    cases: Iterable[PredictedCase],
    out: Path | str,
    *,
    run: str,
    method: str,
    seed: int,
    dataset: str,
    labels: Sequence[str],
    split: str = "test",
    groups: Mapping[str, Sequence[int]] | None = None,
    options: CaseOptions | None = None,
    workers: int = 1,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Measure cases one after another and write cases.csv, bins.npz, slices.npz, evaluation.json.

    Arrays of a case are let go when it is measured: memory does not grow with the cases, but for
    their rows, bins and one slice each. evaluation.json comes last, so its presence says that
    the other files belong to it.

    Args:
        cases: predicted cases; drawn while earlier ones are being measured.
        out: folder; made if it is missing.
        run, method, seed, dataset: what the rows say.
        labels: names of the classes, background first.
        split: "test", or what the names of the files end in.
        groups: structures of the segmentation metrics, name → labels; None is each class but 0.
        options: how the metrics are computed; None for the defaults.
        workers: threads that measure.
        about: further entries of evaluation.json.
        overwrite: whether an evaluation of this split may be replaced.
        progress: called with the number of cases done.
    """
    started = time.monotonic()
    out = Path(out)
    if not overwrite and file_of(out, "evaluation.json", split).exists():
        raise ValueError(f"{out}: has an evaluation of split {split} already; say --overwrite")
    structures = dict(groups or {name: (k,) for k, name in enumerate(labels) if k > 0})
    options = CaseOptions() if options is None else options
    who = {"run": run, "method": method, "seed": seed, "dataset": dataset}
    evaluate = partial(evaluate_predicted_case, names=who, groups=structures, options=options)
    names: list[str] = []
    found: list[EvaluatedCase] = []

    def named() -> Iterator[PredictedCase]:
        for case in cases:
            if len(case.probs) != len(labels):
                raise ValueError(
                    f"Expected case {case.name} to have {len(labels)} classes "
                    f"({', '.join(labels)}), but got {len(case.probs)}."
                )
            if case.name in names or case.name == POOLED:
                raise ValueError(f"Expected case names to be unique, but got {case.name!r}.")
            names.append(case.name)
            yield case

    for measured in in_order(evaluate, named(), workers):
        found.append(measured)
        if progress is not None:
            progress(len(found))
    if not found:
        raise ValueError(f"Expected split {split} of {dataset} to have cases, but got none.")
    rows = [row for one in found for row in one.result.rows]
    undefined = Counter(row.metric for row in rows if math.isnan(row.value))
    rows += pool_cases(one.result for one in found)
    content = {
        "format": FORMAT,
        "version": VERSION,
        **who,
        "split": split,
        "regions": list(options.regions),
        "options": {k: v for k, v in asdict(options).items() if k not in ("regions", "metrics")},
        "metrics": list(options.metrics),
        "labels": list(labels),
        "structures": list(structures),
        "checkpoint": None,
        **(about or {}),
        "cases": len(found),
        "case_names": names,
        "undefined": dict(undefined),
        "seconds": round(time.monotonic() - started, 3),
        "segcal": __version__,
        "versions": versions(),
        "commit": git_commit(),
    }
    bins = _bins(names, options.regions, list(labels), found)
    _write(out, split, rows, bins, _pictures(names, found), content)
    return Evaluation(out, split, content)


def in_order(function: Callable[[T], U], items: Iterable[T], workers: int) -> Iterator[U]:
    """`function` of each item, in order, by threads; at most `workers` items wait."""
    if workers <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[U]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                del item
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _bins(
    names: Sequence[str],
    regions: Sequence[str],
    labels: Sequence[str],
    found: Sequence[EvaluatedCase],
) -> dict[str, Any]:
    """Statistics stacked over (case, region)."""
    out: dict[str, Any] = {
        "cases": np.array(names), "regions": np.array(regions), "labels": np.array(labels),
    }  # fmt: skip
    states = [[one.result.statistics[name].bins.state() for name in regions] for one in found]
    for key in states[0][0]:
        out[key] = np.stack([np.stack([state[key] for state in case]) for case in states])
    true = [one.result.true_bins.state() for one in found if one.result.true_bins is not None]
    if len(true) == len(found):
        for key in true[0]:
            out[f"truth_{key}"] = np.stack([state[key][None] for state in true])
    return out


def _pictures(names: Sequence[str], found: Sequence[EvaluatedCase]) -> dict[str, Any]:
    out: dict[str, Any] = {"cases": np.array(names)}
    for index, one in enumerate(found):
        for key, array in vars(one.picture).items():
            out[f"{key}_{index}"] = array
    return out


def _write(
    out: Path,
    split: str,
    rows: Sequence[Row],
    bins: dict[str, Any],
    pictures: dict[str, Any],
    content: dict[str, Any],
) -> None:
    """All files, evaluation.json last; an old one goes first, so that it never describes others."""
    out.mkdir(parents=True, exist_ok=True)
    file_of(out, "evaluation.json", split).unlink(missing_ok=True)
    write_cases_table(file_of(out, "cases.csv", split), rows)
    for name, arrays in (("bins.npz", bins), ("slices.npz", pictures)):
        with (
            atomic_path(file_of(out, name, split)) as partial_name,
            partial_name.open("wb") as file,
        ):
            np.savez_compressed(file, **arrays)
    content["files"] = {name: describe_file(file_of(out, name, split)) for name in FILES}
    write_json(file_of(out, "evaluation.json", split), content)
