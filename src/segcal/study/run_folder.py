"""The run folder that `segcal train` writes: config.yaml, run.json, log.jsonl and checkpoints."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from segcal.config import TrainConfig, changed_values, check_config, read_yaml, to_yaml
from segcal.core.documents import read_model
from segcal.core.errors import PathError
from segcal.core.files import write_json, write_text
from segcal.core.locks import folder_lock, holds_work
from segcal.core.provenance import git_commit, versions
from segcal.study.schema import Course, Training

CONFIG, INFO, LOG = "config.yaml", "run.json", "log.jsonl"
BEST, LAST, PREVIOUS, REFUSED = "best.pt", "last.pt", "last.prev.pt", "last.refused.pt"


class TrainingSpace(BaseModel, frozen=True, extra="forbid"):
    """Orientation and spacing of the cases that a network was trained on, stored in `run.json`.

    `orientations` counts the cases by the axis codes (x, y, z) of their files, such as "RAS";
    files whose affine is a placeholder count as "unknown". `spacing_mm` has the smallest and the
    largest spacing of the stored grids, axes (Z, Y, X).
    """

    orientations: dict[str, int]
    spacing_mm: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


class RunInfo(BaseModel):
    """The content of run.json.

    Attributes:
        data: description of the prepared set, without its cases.
        space: orientations and spacing of the training cases.
        cases: names of the training and validation cases.
        voxels_sha256: hash of the original voxels of each of these cases, by part and name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    run_id: str
    started: str
    dataset: str
    data_fingerprint: str
    data: dict[str, Any]
    space: TrainingSpace
    cases: dict[str, tuple[str, ...]]
    voxels_sha256: dict[str, dict[str, str]] = {}
    device: str
    commit: str | None
    versions: dict[str, str]


@dataclass(frozen=True)
class RunRecord:
    """The settings and the description of a run."""

    folder: Path
    config: TrainConfig
    info: RunInfo


def read_run(folder: Path) -> RunRecord:
    """Read config.yaml and run.json of a run folder."""
    remedy = "give the folder that `segcal train` wrote"
    if not folder.is_dir():
        raise PathError(folder, "does not exist", remedy)
    config = read_run_config(folder)
    if config is None or not (folder / INFO).is_file():
        if any((place / "plans.json").is_file() for place in (folder, folder.parent)):
            problem = "is of nnU-Net, not a run of segcal"
            remedy = (
                "calibrate its predictions with `segcal nnunet`, measure them with `segcal audit`"
            )
            raise PathError(folder, problem, remedy)
        raise PathError(folder, "is not a run", remedy)
    return RunRecord(folder, config, read_run_info(folder))


def read_run_config(folder: Path) -> TrainConfig | None:
    """The settings of the run in a folder; None without a run."""
    path = folder / CONFIG
    return check_config(read_yaml(path), str(path)) if path.is_file() else None


def read_run_info(folder: Path) -> RunInfo:
    """The content of run.json; a PathError if it is missing or damaged."""
    remedy = "restore it, or train the run again"
    return read_model(folder / INFO, RunInfo, "the description of a run", remedy)


def epochs_done(folder: Path) -> int:
    """The number of finished epochs: the log has one line per epoch."""
    try:
        return (folder / LOG).read_bytes().count(b"\n")
    except OSError:
        return 0


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl; a line that a kill cut off is left out."""
    path, rows = folder / LOG, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def training_seconds(folder: Path) -> float:
    """The time that the epochs of a run took, by its log."""
    return math.fsum(float(row.get("seconds", 0)) for row in read_log(folder))


def read_training(folder: Path, checkpoint: str = "best") -> Training | None:
    """Summarize the validation of a run; None if the log has none.

    `checkpoint` is the one that was evaluated, "best" or "last".
    """
    rows = read_log(folder)
    try:
        validated = [(epoch, row["val"]) for epoch, row in enumerate(rows, 1) if "val" in row]
        epochs = [epoch for epoch, _ in validated]
        dsc = [float(val["dsc"]) for _, val in validated]
        # ECE is undefined if no validation case has foreground.
        ece = [None if val.get("ece") is None else round(val["ece"], 4) for _, val in validated]
    except (TypeError, KeyError, ValueError):  # a damaged log costs the curve, not the study
        return None
    if not validated:
        return None
    best = dsc.index(max(dsc))
    # Validation selects best.pt by DSC, unless the rows tell otherwise.
    selected = [epoch for epoch, row in enumerate(rows, 1) if row.get("selected")]
    restarts = [epoch for epoch, row in enumerate(rows, 1) if "restarted_from" in row]
    tested = selected[-1] if selected else epochs[best]
    return Training(
        epochs=len(rows),
        best_epoch=epochs[best],
        best_dsc=dsc[best],
        last_dsc=dsc[-1],
        tested_epoch=tested if checkpoint == "best" else len(rows),
        restarted_epoch=restarts[0] if restarts else None,
        course=Course(
            epochs=tuple(epochs), dsc=tuple(round(value, 4) for value in dsc), ece=tuple(ece)
        ),
    )


def free_to_change(config: TrainConfig) -> set[str]:
    """Settings in which an existing run may differ from the requested config.

    More epochs continue it, the data may have moved (a fingerprint detects other data), CUDA graphs
    do not change what a step computes, and a calibrator is fitted after the training. The run has
    the precision that "auto" meant then.
    """
    return {"epochs", "data.path", "device", "cuda_graph", "posthoc"} | (
        {"precision"} if config.precision == "auto" else set()
    )


def check_same_settings(folder: Path, config: TrainConfig) -> None:
    """Refuse to continue a run with other settings, or with fewer epochs."""
    old, free = read_run(folder).config, free_to_change(config)
    changed = {key: both for key, both in changed_values(old, config).items() if key not in free}
    if config.epochs < old.epochs:
        changed["epochs"] = (old.epochs, config.epochs)
    if changed:
        shown = ", ".join(
            f"`{key}` ({json.dumps(was)}, not {json.dumps(now)})"
            for key, (was, now) in changed.items()
        )
        remedy = "restore what the run had, or choose another --out"
        raise PathError(folder, f"was started with another {shown}", remedy)


def check_same_data(
    folder: Path, config: TrainConfig, fingerprint: str, cases: Mapping[str, Iterable[str]]
) -> None:
    """Refuse to continue a run with data of another fingerprint, or other cases in a part.

    A case that was trained on must not become a validation or test case.
    """
    info, path = read_run_info(folder), config.data.path
    if info.data_fingerprint != fingerprint:
        remedy = "give its own data with --data, or choose another --out"
        raise PathError(folder, f"was trained on other data than {path}", remedy)
    for part, names in info.cases.items():
        moved = sorted(set(names) ^ set(cases.get(part, ())))
        if moved:
            problem = f"was trained with other {part} cases than {path} has now"
            remedy = "restore the old splits, or choose another --out"
            raise PathError(folder, f"{problem}, such as {moved[0]}", remedy)


class RunFolder(ExitStack):
    """A run folder that a training writes; it is locked from `hold` until the block ends.

    `resume`: whether the folder may hold a run already.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        super().__init__()
        self.path, self.resume, self.run_id = path, resume, ""

    def check(
        self, config: TrainConfig, fingerprint: str, cases: Mapping[str, Iterable[str]]
    ) -> None:
        """Refuse a folder with other files, or with a run of other settings, data or splits."""
        if holds_work(self.path, (CONFIG, INFO), "run", resume=self.resume):
            check_same_settings(self.path, config)
            check_same_data(self.path, config, fingerprint, cases)

    def hold(self) -> Self:
        """Create the folder and lock it."""
        self.enter_context(folder_lock(self.path))
        return self

    def describe(self, config: TrainConfig, about: Mapping[str, Any]) -> None:
        """Write config.yaml and run.json; a resumed run keeps its identity."""
        old = read_run_info(self.path) if (self.path / CONFIG).is_file() else None
        self.run_id = old.run_id if old else uuid.uuid4().hex
        info = RunInfo.model_validate({
            "run_id": self.run_id,
            "started": old.started if old else time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **about,
            "commit": git_commit(),
            "versions": versions(),
        })  # fmt: skip
        write_json(self.path / INFO, info.model_dump(mode="json"))
        write_text(self.path / CONFIG, to_yaml(config))

    def log(self, row: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        with (self.path / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def trim_log(self, epochs: int) -> list[dict[str, Any]]:
        """Keep the lines of the first `epochs` epochs: the others will be written again."""
        rows = [row for row in read_log(self.path) if row.get("epoch", epochs) < epochs]
        write_text(self.path / LOG, "".join(json.dumps(row) + "\n" for row in rows))
        return rows
