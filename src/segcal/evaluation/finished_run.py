"""A training run, opened again: its network, its data, and its evaluation."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from segcal.config import EvaluationConfig, TrainConfig, check_config, read_yaml
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import DatasetInfo, PreparedCase, PreparedDataset, open_dataset
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluation_files import (
    Evaluation,
    epochs_done,
    read_evaluation,
    write_evaluation,
)
from segcal.evaluation.predict import choose_device, exactly, predict_case
from segcal.metrics import CaseOptions
from segcal.models import SegmentationNetwork, load_model

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class FinishedRun:
    """What `segcal train` left in a folder."""

    folder: Path
    config: TrainConfig
    about: dict[str, Any]

    @property
    def info(self) -> DatasetInfo:
        """What the run knows of the data it was trained on (without the cases)."""
        try:
            return DatasetInfo.model_validate({**self.about["data"], "cases": ()})
        except (KeyError, TypeError, ValidationError) as error:
            raise PathError(
                self.folder, "does not say how its data were prepared", "train it again"
            ) from error

    @property
    def patch_size(self) -> tuple[int, int, int] | None:
        return self.config.data.patch_size

    def checkpoint(self, name: str = "best") -> Path:
        path = self.folder / f"{name}.pt"
        if not path.is_file():
            raise PathError(
                self.folder, f"has no {name}.pt", "finish its training, or bring its weights back"
            )
        return path

    def network(self, name: str, device: torch.device) -> SegmentationNetwork:
        return load_model(self.checkpoint(name), device)

    def open_data(self, folder: Path | str | None = None) -> PreparedDataset:
        """The prepared set it was trained on, at its old place or in `folder`."""
        path = Path(folder) if folder is not None else Path(self.config.data.path)
        if folder is None and not path.is_dir():
            raise PathError(
                self.folder, f"was trained on {path}, which is not there", "give --data its folder"
            )
        dataset = open_dataset(path)
        if dataset.fingerprint != self.about.get("data_fingerprint"):
            raise PathError(
                self.folder, f"was trained on other data than {path}", "give --data its own"
            )
        return dataset

    def check_unseen(self, cases: Sequence[PreparedCase], split: str = "test") -> None:
        """Refuse test cases that training or the choice of the checkpoint has seen, and validation
        cases that training has seen."""
        for part, names in self.about.get("cases", {}).items():
            if part == split or split == "train":
                continue
            seen = sorted(set(names) & {case.name for case in cases})
            if seen:
                raise PathError(
                    self.folder,
                    f"used {split} case {seen[0]} in its {part} split (the set was split anew)",
                    "train it again on the present splits",
                )


def open_run(folder: Path | str) -> FinishedRun:
    """Open the folder of a run, or raise one line that says what it is instead."""
    folder = Path(folder)
    if not folder.is_dir():
        raise PathError(folder, "does not exist", "give the folder that `segcal train` wrote")
    if not (folder / "config.yaml").is_file() or not (folder / "run.json").is_file():
        raise PathError(folder, "is not a run", "give the folder that `segcal train` wrote")
    config = check_config(read_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PathError(folder, f"has a damaged run.json ({error})", "restore it") from error
    return FinishedRun(folder, config, about if isinstance(about, dict) else {})


def evaluate_run(
    run: Path | str,
    *,
    split: str = "test",
    config: EvaluationConfig | None = None,
    name: str | None = None,
    method: str | None = None,
    dataset: str | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    say: Callable[[str], None] | None = None,
) -> Evaluation:
    """Evaluate a run on a split of its data, on the grid of the prepared set (as the paper does).

    A finished evaluation of the same checkpoint with the same settings is given back as it is (also
    if the checkpoint was deleted since); one that differs is refused unless `overwrite`. It is made
    again if its files are damaged, or if the set was split anew since.

    Args:
        run: the folder that `segcal train` wrote.
        split: "train", "val" or "test".
        config: regions, units, checkpoint, flips and so on; by default all metrics.
        name, method, dataset: what the rows say; by default what an evaluation that is there says,
            else the folder, the loss, the set's name.
        data: where the prepared set is now, if it has moved.
        device: "auto", "cpu", "cuda", "cuda:1", …
        workers: threads that measure while the network predicts; by default by the cores.
        progress: called as (what, cases done, cases in total).
        say: called with the reason why a finished evaluation is made again.
    """
    config = config or EvaluationConfig()
    opened = open_run(run)
    told = _told(opened, split, {"run": name, "method": method, "dataset": dataset})
    done = None if overwrite else read_evaluation(opened.folder, split)
    if done is not None:
        for key in differences(done, config, told):
            there = done.about.get("options", {}).get(key, done.about.get(key))
            what = "an older checkpoint" if key == "checkpoint_sha256" else f"{key} {there!r}"
            raise ValueError(
                f"{done.path('evaluation.json')}: was made with {what}; say --overwrite to replace"
            )
        reason = _stale(done, opened, data)
        if reason is None:
            return replace(done, reused=True)
        if say is not None:
            say(f"{reason}; evaluating again")
        overwrite = True
    return measure_run(
        opened, opened.folder, split, config, told, data=data, device=device, workers=workers,
        overwrite=overwrite, progress=progress,
    )  # fmt: skip


def _told(run: FinishedRun, split: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    """What the rows say: as given, else as an evaluation that is there, else by the run itself.

    A run that was renamed or copied, or that belongs to a study, keeps its names so.
    """
    told: dict[str, Any] = {
        "run": run.folder.resolve().name,
        "method": run.config.loss.name,
        "dataset": str(run.about.get("dataset", "")),
    }
    for other in dict.fromkeys((split, "test", "val", "train")):
        try:
            there = read_evaluation(run.folder, other)
        except ValueError:  # damaged: it is replaced, or refused where it is asked for
            continue
        if there is not None:
            told.update({key: there.about[key] for key in told if key in there.about})
            break
    told.update({key: value for key, value in given.items() if value is not None})
    return {**told, "seed": run.config.seed}


def _stale(done: Evaluation, run: FinishedRun, data: Path | str | None) -> str | None:
    """Why a finished evaluation does not stand; None if it does.

    Where the data are gone, nobody can say that they were split anew.
    """
    damaged = done.damaged()
    if damaged is not None:
        return f"{damaged}: is missing or is not the file that was written"
    if data is None and not Path(run.config.data.path).is_dir():
        return None
    cases = run.open_data(data).part(done.split, run.config.data.fold)
    if sorted(case.name for case in cases) == sorted(done.case_names):
        return None
    return f"{done.path('evaluation.json')}: is of other cases (the set was split anew)"


def measure_run(
    run: FinishedRun,
    out: Path,
    split: str,
    config: EvaluationConfig,
    told: Mapping[str, Any],
    *,
    about: Mapping[str, Any] | None = None,
    change: Callable[[PredictedCase], PredictedCase] | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Evaluation:
    """Predict a split with the run's network and write its evaluation into `out`.

    `change` is done to each predicted case before it is measured, `about` added to what
    evaluation.json says; the rest as `evaluate_run`.
    """
    run.checkpoint(config.checkpoint)
    prepared = run.open_data(data)
    cases = prepared.part(split, run.config.data.fold)
    run.check_unseen(cases, split)
    place = choose_device(device)
    predicted = predicted_cases(run, cases, config, place)
    with exactly(), warnings.catch_warnings():
        # Ours were softmaxed once; a network that learnt little may look otherwise.
        warnings.filterwarnings("ignore", message=".*second softmax", category=UserWarning)
        return write_evaluation(
            predicted if change is None else map(change, predicted),
            out,
            **told,
            labels=[prepared.classes[k] for k in sorted(prepared.classes)],
            split=split,
            groups=prepared.info.regions or None,
            options=CaseOptions(**config.metric_options()),
            workers=default_workers() if workers is None else workers,
            about={
                **identity(run, config),
                "epochs": epochs_done(run.folder),
                "data_fingerprint": prepared.fingerprint,
                "device": _describe(place),
                **(about or {}),
            },
            overwrite=overwrite,
            progress=lambda done: progress("evaluating", done, len(cases)),
        )


def predicted_cases(
    run: FinishedRun,
    cases: Sequence[PreparedCase],
    config: EvaluationConfig,
    device: torch.device,
) -> Iterator[PredictedCase]:
    """The run's predictions, case after case, with all that is to be measured against."""
    network = run.network(config.checkpoint, device)
    for case in cases:
        image = case.image()
        try:
            found = predict_case(
                network,
                torch.from_numpy(image).to(device),
                patch_size=run.patch_size,
                flips=config.flips,
                average=config.average,
            )
        except ValueError as error:
            raise ValueError(f"{run.folder}: case {case.name}: {error}") from error
        yield PredictedCase(
            name=case.name,
            probs=found.probs,
            target=case.label(),
            spacing_mm=case.spacing_mm,
            image=image,
            logits=found.logits,
            true_probs=case.truth(),
        )


def default_workers() -> int:
    """Threads that measure: this process's share of the cores, but more than four bring nothing."""
    return max(1, min(4, torch.get_num_threads()))


def differences(
    done: Evaluation,
    config: EvaluationConfig,
    told: Mapping[str, Any] | None = None,
    run: Path | None = None,
) -> list[str]:
    """What a finished evaluation was told otherwise than asked now; its checkpoint included.

    `run` is the folder of the run, if the evaluation is not in it. A checkpoint that was deleted
    cannot differ.
    """
    options = config.metric_options()
    wanted = {
        **identity(open_run(run or done.folder), config),
        **(told or {}),
        **{key: list(options.pop(key)) for key in ("regions", "metrics")},
        **options,
    }
    there = {**done.about, **done.about.get("options", {})}
    return [key for key, value in wanted.items() if there.get(key) != value]


def identity(run: FinishedRun, config: EvaluationConfig) -> dict[str, Any]:
    """Which weights, if they are there, used how."""
    path = run.folder / f"{config.checkpoint}.pt"
    return {
        "checkpoint": config.checkpoint,
        **({"checkpoint_sha256": file_sha256(path)} if path.is_file() else {}),
        "flips": list(config.flips),
        "average": config.average,
    }


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
