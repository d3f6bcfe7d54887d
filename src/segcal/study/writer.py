"""Write a study folder: study.json, cases.csv with the rows of all finished runs, ranks.csv."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from segcal.core.documents import read_json
from segcal.core.errors import write_errors
from segcal.core.files import atomic_path, write_json
from segcal.stats import bootstrap_ranks, collect, find_eligible
from segcal.study.evaluation_files import CASES
from segcal.study.ranks import RANKS, write_ranks
from segcal.study.schema import StudyFile

if TYPE_CHECKING:
    import pandas as pd

STUDY = "study.json"


class StudyWriter:
    """Keeps study.json and cases.csv up to date while the runs of a study finish.

    The rows of a run are appended to cases.csv once it is done. study.json is then replaced and
    states how many bytes of cases.csv are valid, so a kill at any moment leaves a readable study.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tabulated: list[str] = []
        self._bytes = 0

    def write(self, content: StudyFile, *, complete: bool = False) -> None:
        """Write `content` to study.json, and the rows of runs that became done to cases.csv.

        Args:
            complete: no runs follow; cases.csv is brought into the order of `content.runs`.
        """
        done = [run.folder for run in content.runs if run.state == "done"]
        new = [folder for folder in done if folder not in self._tabulated]
        if not self._tabulated or (complete and self._tabulated != done):
            self._rewrite(done)
        elif new:
            self._append(new)
        valid = {"table_bytes": None if complete else self._bytes}
        write_json(self.folder / STUDY, {**content.model_dump(mode="json"), **valid})

    def _rewrite(self, folders: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / STUDY).is_file():
            # Its number of valid bytes does not apply to the table that follows.
            old = read_json(self.folder / STUDY)
            write_json(self.folder / STUDY, {**old, "table_bytes": None})
        with atomic_path(self.folder / CASES) as partial, partial.open("wb") as table:
            for number, folder in enumerate(folders):
                self._copy(folder, table, header=number == 0)
            self._bytes = table.tell()
        self._tabulated = folders

    def _append(self, folders: list[str]) -> None:
        with write_errors(self.folder / CASES), (self.folder / CASES).open("r+b") as table:
            table.seek(self._bytes)
            table.truncate()
            for folder in folders:
                self._copy(folder, table, header=False)
            self._bytes = table.tell()
        self._tabulated = self._tabulated + folders

    def _copy(self, folder: str, table: BinaryIO, *, header: bool) -> None:
        with (self.folder / folder / CASES).open("rb") as rows:
            line = rows.readline()
            if header:
                table.write(line)
            shutil.copyfileobj(rows, table)


def rank_study(
    folder: Path, table: pd.DataFrame, methods: Sequence[str], metrics: Sequence[str], region: str
) -> pd.DataFrame:
    """Rank methods by sum-rank and mean-case-rank, with intervals; write ranks.csv, rank.json.

    Only methods with rows of every dataset and metrics with values on every dataset count; see
    `segcal.stats.find_eligible`. Undefined values count as the worst.

    Raises:
        ValueError: nothing can be ranked; an old ranks.csv, which is of other rows, is removed.
    """
    (folder / RANKS).unlink(missing_ok=True)
    chosen = find_eligible(table, methods, metrics, region)
    if len(chosen.methods) < min(len(methods), 2):
        raise ValueError("fewer than two methods have rows of every dataset")
    if not chosen.metrics:
        raise ValueError("no metric has values on every dataset")
    rows = table[table["method"].isin(chosen.methods) & table["dataset"].isin(chosen.datasets)]
    scores = collect(rows, metrics=chosen.metrics, region=region, missing="worst")
    ranks = bootstrap_ranks(scores)
    write_ranks(folder, ranks, scores, [folder / CASES])
    return ranks
