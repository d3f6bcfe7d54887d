"""A finished training run: its network, its data, and which scans it has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.heads import Heads, nnunet_regions
from segcal.core.text import first_few
from segcal.data import DatasetInfo, PreparedCase, PreparedDataset, check_fits, open_dataset
from segcal.models import SegmentationNetwork, load_model
from segcal.study import RunRecord, epochs_done, read_run


class FinishedRun(RunRecord):
    """A run folder with the means to use its network and its data."""

    @property
    def data_info(self) -> DatasetInfo:
        """The description of the training data (without the cases)."""
        return DatasetInfo.model_validate({**self.info.data, "cases": ()})

    @property
    def heads(self) -> Heads:
        """The regions of its sigmoid heads; empty for a softmax."""
        return self.config.data.heads

    @property
    def dataset_json(self) -> dict[str, Any]:
        """Names of classes or regions, in the form of nnU-Net's dataset.json."""
        if self.heads:
            return nnunet_regions(self.heads)
        return {"labels": {name: label for label, name in self.data_info.classes.items()}}

    def checkpoint(self, name: str = "best") -> Path:
        path = self.folder / f"{name}.pt"
        if not path.is_file():
            remedy = "finish its training, or restore its weights"
            raise PathError(self.folder, f"has no {name}.pt", remedy)
        return path

    def network(self, name: str, device: torch.device) -> SegmentationNetwork:
        return load_model(self.checkpoint(name), device)

    def open_data(self, folder: Path | str | None = None) -> PreparedDataset:
        """The prepared set of the training, at its old path or in `folder`."""
        path = Path(folder) if folder is not None else Path(self.config.data.path)
        remedy = "give its data with --data to `segcal evaluate` or `segcal calibrate`"
        if folder is None and not path.is_dir():
            problem = f"was trained on {path}, which does not exist"
            raise PathError(self.folder, problem, remedy)
        dataset = open_dataset(path)
        if dataset.fingerprint != self.info.data_fingerprint:
            raise PathError(self.folder, f"was trained on other data than {path}", remedy)
        return dataset

    def external_data(self, folder: Path | str | None) -> PreparedDataset | None:
        """The set in `folder` if it is not that of the training; its scans must fit the network."""
        dataset = None if folder is None else open_dataset(folder)
        if dataset is None or dataset.fingerprint == self.info.data_fingerprint:
            return None
        check_fits(dataset, self.data_info, self.folder)
        return dataset

    def check_unseen(self, cases: Sequence[PreparedCase], split: str = "test") -> None:
        """Refuse cases of `split` that the run used in another one."""
        for part, names in self.info.cases.items():
            if part == split or split == "train":
                continue
            seen = sorted(set(names) & {case.name for case in cases})
            if seen:
                problem = f"used {split} case {seen[0]} in its {part} split"
                remedy = "train it again with the present splits"
                raise PathError(self.folder, f"{problem} (the splits have changed)", remedy)

    def seen(self, scans: Mapping[str, str], split: str = "test") -> tuple[str, ...]:
        """The cases of `scans` (name → hash of the voxels) that the run used, under any name.

        Scans of its own split `split` do not count.
        """
        used = {
            value
            for part, hashes in self.info.voxels_sha256.items()
            if part != split and split != "train"
            for value in hashes.values()
        }
        return tuple(name for name, value in scans.items() if value in used)

    def describe_seen(self, names: Sequence[str]) -> str:
        """One line about scans that the run was trained or validated on."""
        scans = f"{len(names)} of these scans ({first_few(names)})"
        return f"{self.folder}: was trained or validated on {scans}; results on them are optimistic"


def unfinished(runs: Sequence[FinishedRun]) -> list[str]:
    """One line for each run whose training was stopped; a run without a log counts as finished."""
    return [
        f"{run.folder}: its training stopped after {done} of {run.config.epochs} epochs; "
        f"`segcal train --out {quote(str(run.folder))} --resume` continues it"
        for run in runs
        if 0 < (done := epochs_done(run.folder)) < run.config.epochs
    ]


def open_run(folder: Path | str) -> FinishedRun:
    """Open the folder of a run; an error says what is wrong with it."""
    return FinishedRun(**vars(read_run(Path(folder))))


def open_runs(folders: Path | str | Sequence[Path | str]) -> list[FinishedRun]:
    """Open one run, or several that can be averaged.

    A folder with the runs fold0, fold1, … (`segcal train --folds`) stands for these.
    """
    runs: list[FinishedRun] = []
    for folder in [folders] if isinstance(folders, str | Path) else folders:
        path = Path(folder)
        folds = [p.parent for p in path.glob("fold[0-9]*/config.yaml")]
        folds.sort(key=lambda p: (len(p.name), p.name))
        runs += (
            [open_run(path)]
            if (path / "config.yaml").is_file() or not folds
            else map(open_run, folds)
        )
    if not runs:
        raise ValueError("Expected argument `runs` to name a run, but got none.")
    first, *others = runs
    for other in others:
        for what in ("classes", "channels", "grid", "intensity", "dtype"):
            if getattr(other.data_info, what) != getattr(first.data_info, what):
                problem = f"was trained on data with another `{what}` than {first.folder}"
                raise PathError(other.folder, problem, "average runs of one data set only")
        if other.heads != first.heads:
            problem = f"was trained with other `data.heads` than {first.folder}"
            raise PathError(other.folder, problem, "average runs with the same outputs only")
    return runs


def identity(runs: Sequence[FinishedRun], config: EvaluationConfig) -> dict[str, Any]:
    """Which weights are used, and how; without a checksum if a checkpoint does not exist."""
    paths = [run.folder / f"{config.checkpoint}.pt" for run in runs]
    exist = all(path.is_file() for path in paths)
    return {
        "checkpoint": config.checkpoint,
        **({"checkpoint_sha256": " ".join(map(file_sha256, paths))} if exist else {}),
        "flips": config.flips,
        "average": config.average,
        "grid": config.grid,
    }
