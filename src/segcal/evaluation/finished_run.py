"""Open a finished training run, predict with its network, and evaluate it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import DatasetInfo, PreparedCase, PreparedDataset, open_dataset, verify_cases
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.predict import choose_device, predict_case, reproducible_float32
from segcal.metrics import CaseOptions
from segcal.models import SegmentationNetwork, load_model
from segcal.study import Evaluation, RunRecord, epochs_done, read_evaluation, read_run

SPLITS = ("train", "val", "test")


class FinishedRun(RunRecord):
    """A run folder with the means to use its network and its data."""

    @property
    def data_info(self) -> DatasetInfo:
        """The description of the training data (without the cases)."""
        return DatasetInfo.model_validate({**self.info.data, "cases": ()})

    @property
    def patch_size(self) -> tuple[int, int, int] | None:
        return self.config.data.patch_size

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
        remedy = "give the folder of its data with --data"
        if folder is None and not path.is_dir():
            problem = f"was trained on {path}, which does not exist"
            raise PathError(self.folder, problem, remedy)
        dataset = open_dataset(path)
        if dataset.fingerprint != self.info.data_fingerprint:
            raise PathError(self.folder, f"was trained on other data than {path}", remedy)
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


def open_run(folder: Path | str) -> FinishedRun:
    """Open the folder of a run; an error says what is wrong with it."""
    return FinishedRun(**vars(read_run(Path(folder))))


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

    An existing evaluation of the same checkpoint with the same settings is returned (even if the
    checkpoint was deleted since). If its settings differ, an error asks for `overwrite`. It is
    computed again if a file is missing or modified, or if the splits have changed.

    Args:
        run: the folder that `segcal train` wrote.
        split: "train", "val" or "test".
        config: regions, units, checkpoint, flips and so on; by default all metrics.
        name, method, dataset: columns of the rows; by default those of an existing evaluation, else
            the name of the folder, of the loss and of the prepared set.
        data: the folder of the prepared set, if it has moved.
        device: "auto", "cpu", "cuda", "cuda:1", "mps", …
        workers: threads that measure while the network predicts; by default by the cores.
        overwrite: whether an existing evaluation is replaced.
        progress: called as (what, cases done, cases in total).
        say: called with the reason why an existing evaluation is computed again.
    """
    config = config or EvaluationConfig()
    opened = open_run(run)
    names = _row_names(opened, split, {"run": name, "method": method, "dataset": dataset})
    existing = None if overwrite else read_evaluation(opened.folder, split)
    if existing is not None:
        for key in differences(existing, config, names):
            value = existing.info.options.get(key, getattr(existing.info, key, None))
            what = "an older checkpoint" if key == "checkpoint_sha256" else f"{key} {value!r}"
            path, remedy = existing.path("evaluation.json"), "pass --overwrite to replace it"
            raise PathError(path, f"was computed with {what}", remedy)
        reason = _outdated(existing, opened, data)
        if reason is None:
            return replace(existing, reused=True)
        if say is not None:
            say(f"{reason}; evaluating again")
        overwrite = True
    return measure_run(
        opened, opened.folder, split, config, names, data=data, device=device, workers=workers,
        overwrite=overwrite, progress=progress,
    )  # fmt: skip


def _row_names(run: FinishedRun, split: str, given: Mapping[str, str | None]) -> dict[str, Any]:
    """The columns of the rows: as given, else as in an existing evaluation, else by the run."""
    names: dict[str, Any] = {
        "run": run.folder.resolve().name,
        "method": run.config.loss.name,
        "dataset": run.info.dataset,
    }
    for other in dict.fromkeys((split, "test", "val", "train")):
        try:
            existing = read_evaluation(run.folder, other)
        except ValueError:  # damaged: it is replaced, or refused where it is needed
            continue
        if existing is not None:
            names = {key: getattr(existing.info, key) for key in names}
            break
    names.update({key: value for key, value in given.items() if value is not None})
    return {**names, "seed": run.config.seed}


def _outdated(existing: Evaluation, run: FinishedRun, data: Path | str | None) -> str | None:
    """Why an existing evaluation has to be computed again; None if it is up to date."""
    damaged = existing.damaged()
    if damaged is not None:
        return f"{damaged}: is missing or was modified"
    if data is None and not Path(run.config.data.path).is_dir():
        return None  # Without the data, a change of the splits cannot be detected.
    cases = run.open_data(data).part(existing.split, run.config.data.fold)
    if sorted(case.name for case in cases) == sorted(existing.info.case_names):
        return None
    return f"{existing.path('evaluation.json')}: covers other cases (the splits have changed)"


def measure_run(
    run: FinishedRun,
    out: Path,
    split: str,
    config: EvaluationConfig,
    names: Mapping[str, Any],
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

    `names` are columns of the rows, `about` further entries of evaluation.json; `change` is applied
    to each predicted case before it is measured. The other arguments are those of `evaluate_run`.
    """
    run.checkpoint(config.checkpoint)
    prepared = run.open_data(data)
    cases = prepared.part(split, run.config.data.fold)
    run.check_unseen(cases, split)
    verify_cases(cases)
    chosen = choose_device(device)
    on_cuda = chosen.type == "cuda"
    name = torch.cuda.get_device_name(chosen) if on_cuda else chosen.type.upper()
    predicted = predicted_cases(run, cases, config, chosen)
    with reproducible_float32(), warnings.catch_warnings():
        # There was one softmax; an undertrained network may look as if there were two.
        warnings.filterwarnings("ignore", message=".*second softmax", category=UserWarning)
        return write_evaluation(
            predicted if change is None else map(change, predicted),
            out,
            **names,
            labels=[prepared.classes[k] for k in sorted(prepared.classes)],
            split=split,
            groups=prepared.info.regions or None,
            options=CaseOptions(**config.metric_options()),
            # This process's share of the cores; more than four threads do not help.
            workers=max(1, min(4, torch.get_num_threads())) if workers is None else workers,
            about={
                **identity(run, config),
                "epochs": epochs_done(run.folder),
                "data_fingerprint": prepared.fingerprint,
                "device": name,
                **(about or {}),
            },
            overwrite=overwrite,
            progress=lambda done: progress("evaluating", done, len(cases)),
        )


def predicted_cases(
    run: FinishedRun, cases: Sequence[PreparedCase], config: EvaluationConfig, device: torch.device
) -> Iterator[PredictedCase]:
    """The predictions of one case after another, with everything they are measured against."""
    network = run.network(config.checkpoint, device)
    # Metrics count in float64, which MPS does not have.
    target_device = torch.device("cpu") if device.type == "mps" else device
    for case in cases:
        image = case.image()
        try:
            found = predict_case(
                network, torch.from_numpy(image).to(device), patch_size=run.patch_size,
                flips=config.flips, average=config.average,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"{run.folder}: case {case.name}: {error}") from error
        yield PredictedCase(
            name=case.name,
            probs=found.probs.to(target_device),
            target=case.target(),
            spacing_mm=case.spacing_mm,
            image=image,
            logits=None if found.logits is None else found.logits.to(target_device),
            true_probs=case.truth(),
            annotated=case.properties.annotated,
        )


def differences(
    existing: Evaluation,
    config: EvaluationConfig,
    names: Mapping[str, Any] | None = None,
    run: Path | None = None,
) -> list[str]:
    """The settings, names or checkpoint in which an evaluation differs from what is requested.

    A checkpoint that was deleted does not count as different. `run` is the folder of the run, if
    the evaluation is in another one.
    """
    options = config.metric_options()
    wanted = {
        **identity(open_run(run or existing.folder), config),
        **(names or {}),
        **{key: tuple(options.pop(key)) for key in ("regions", "metrics")},
        **options,
    }
    known = {**dict(existing.info), **existing.info.options}
    return [key for key, value in wanted.items() if known.get(key) != value]


def identity(run: FinishedRun, config: EvaluationConfig) -> dict[str, Any]:
    """Which weights are used, and how; without a checksum if the checkpoint does not exist."""
    path = run.folder / f"{config.checkpoint}.pt"
    return {
        "checkpoint": config.checkpoint,
        **({"checkpoint_sha256": file_sha256(path)} if path.is_file() else {}),
        "flips": config.flips,
        "average": config.average,
    }
