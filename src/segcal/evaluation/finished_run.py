"""Open a finished training run, predict with its network, and evaluate it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.core.files import file_sha256
from segcal.core.heads import Heads, head_masks
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import (
    IGNORED,
    DatasetInfo,
    GridRecipe,
    OriginalScans,
    PreparedCase,
    PreparedDataset,
    check_fits,
    open_dataset,
    place,
    turned_grid,
    verify_cases,
    write_case,
)
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.predict import (
    calibrated,
    choose_device,
    predict_case,
    reproducible_float32,
    restore_probs,
)
from segcal.evaluation.scan_checks import Space
from segcal.metrics import CaseOptions, predicted_labels
from segcal.models import SegmentationNetwork, load_model
from segcal.posthoc import BaseCalibrator, short_name
from segcal.study import (
    EXTERNAL,
    Evaluation,
    RunRecord,
    epochs_done,
    read_evaluation,
    read_run,
)

SPLITS = ("train", "val", "test")
# How an error calls these differences of an existing evaluation.
_WHAT = {
    "checkpoint_sha256": "another checkpoint",
    "data_fingerprint": "other data",
    "calibrator": "another calibrator",
}


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
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        scans = f"{len(names)} of these scans ({', '.join(names[:3])}{more})"
        return f"{self.folder}: was trained or validated on {scans}; results on them are optimistic"


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


def evaluate_run(
    run: Path | str | Sequence[Path | str],
    *,
    split: str | None = None,
    config: EvaluationConfig | None = None,
    name: str | None = None,
    method: str | None = None,
    dataset: str | None = None,
    data: Path | str | None = None,
    calibrator: Path | str | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    jobs: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    say: Callable[[str], None] = warnings.warn,
) -> Evaluation:
    """Evaluate a run, or the average of several, on a split of its own data or an external set.

    An existing evaluation of the same checkpoint with the same settings is returned (even if the
    checkpoint was deleted since). If its settings differ, an error asks for `overwrite`. It is
    computed again if a file is missing or modified, or if the splits have changed.

    An external set is one that the run was not trained on, with the same classes and channels. Its
    scans are turned, resampled and normalized like the training set. If it was prepared
    differently, they are read again from its source files. Results are written to
    `out`/external/NAME.

    Args:
        run: the folder that `segcal train` wrote; or several of one data set, to average, of which
            the cases are evaluated that are in the split of each. They add the metric
            `pairwise_dice`. A folder with the runs fold0, fold1, … stands for these.
        split: "train", "val" or "test"; None is "test", or all cases of an external set.
        config: regions, units, checkpoint, flips, grid and so on; by default all metrics.
        name, method, dataset: columns of the rows; by default those of an existing evaluation, else
            the name of the folder, of the loss and of the prepared set (of its folder, if it is
            external).
        data: a prepared set: that of the training, if it has moved, or an external one.
        calibrator: a file that `segcal calibrate` wrote, or the name of a calibrator, which is
            fitted on the validation cases of the run (or of each fold, with its network) and saved
            in it as calibrator_NAME.json. Members are calibrated before they are averaged.
        out: where results are written; by default the run, or its folder calibrated/NAME. Required
            for several runs.
        device: "auto", "cpu", "cuda", "cuda:1", "mps", …
        jobs: threads that measure while the network predicts; by default by the cores.
        overwrite: whether an existing evaluation is replaced.
        progress: called as (what, cases done, cases in total).
        say: called with one line about scans that the run was trained on, and with the reason why
            an existing evaluation is computed again.
    """
    config = config or EvaluationConfig()
    opened = open_runs(run)
    other = opened[0].external_data(data)
    folders = [run] if isinstance(run, str | Path) else list(run)
    if len(folders) > 1 and out is None:
        raise ValueError("--out is required: the folder for the evaluation of several runs")
    home = Path(folders[0] if len(folders) == 1 or out is None else out)
    part = split or ("test" if other is None else "all")
    fitted, suffix, folder = None, "", home
    if calibrator is not None:
        from segcal.evaluation.posthoc_run import run_calibrator

        own = data if other is None else None
        fitted = run_calibrator(run, calibrator, config=config, data=own, device=device, say=say)
        short = short_name(fitted.method)
        suffix, folder = f"+{short}", folder / "calibrated" / short
    folder = folder if out is None else Path(out)
    if other is not None:
        dataset = dataset or other.root.resolve().name
        folder = folder / EXTERNAL / dataset
    given = {"run": name, "method": method, "dataset": dataset}
    names = _row_names(opened, home, part, given, suffix)
    existing = None if overwrite else read_evaluation(folder, part)
    if existing is not None:
        requested = {**names, "split": part}
        if other is not None:
            requested["data_fingerprint"] = other.fingerprint
        different = differences(existing, config, requested, run)
        params = (existing.info.calibrator or {}).get("params")
        if fitted is not None and params != json.loads(json.dumps(fitted.params())):
            different.append("calibrator")
        for key in different:
            value = existing.info.options.get(key, getattr(existing.info, key, None))
            what = _WHAT.get(key, f"{key} {value!r}")
            path, remedy = existing.path("evaluation.json"), "pass --overwrite to replace it"
            raise PathError(path, f"was computed with {what}", remedy)
        reason = _outdated(existing, opened, other, data)
        if reason is None:
            if existing.info.seen:
                say(opened[0].describe_seen(existing.info.seen))
            return replace(existing, reused=True)
        say(f"{reason}; evaluating again")
    return _measure(
        opened, other or opened[0].open_data(data), folder, part, config, names, fitted=fitted,
        device=device, jobs=jobs, overwrite=overwrite or existing is not None,
        progress=progress, say=say,
    )  # fmt: skip


def _row_names(
    runs: Sequence[FinishedRun],
    home: Path,
    split: str,
    given: Mapping[str, str | None],
    suffix: str,
) -> dict[str, Any]:
    """The columns of the rows: as given, else as in an existing evaluation, else by the run.

    `suffix` of the method names a calibrator.
    """
    losses = list(dict.fromkeys(run.config.loss.name for run in runs))
    names: dict[str, Any] = {
        "run": home.resolve().name,
        "method": "+".join(losses) + ("_ensemble" if len(runs) > 1 else ""),
        "dataset": runs[0].info.dataset,
    }
    for other in dict.fromkeys((split, "test", "val", "train")):
        try:
            existing = read_evaluation(home, other)
        except ValueError:  # damaged: it is replaced, or refused where it is needed
            continue
        if existing is not None:
            names = {key: getattr(existing.info, key) for key in names}
            break
    names["method"] += suffix
    names.update({key: value for key, value in given.items() if value is not None})
    return {**names, "seed": runs[0].config.seed}


def _outdated(
    existing: Evaluation,
    runs: Sequence[FinishedRun],
    other: PreparedDataset | None,
    data: Path | str | None,
) -> str | None:
    """Why an existing evaluation has to be computed again; None if it is up to date."""
    damaged = existing.damaged()
    if damaged is not None:
        return f"{damaged}: is missing or was modified"
    if data is None and not Path(runs[0].config.data.path).is_dir():
        return None  # Without the data, a change of the splits cannot be detected.
    cases = _part(runs, other or runs[0].open_data(data), existing.split)
    if sorted(case.name for case in cases) == sorted(existing.info.case_names):
        return None
    return f"{existing.path('evaluation.json')}: covers other cases (the splits have changed)"


def _part(runs: Sequence[FinishedRun], dataset: PreparedDataset, split: str) -> list[PreparedCase]:
    """The cases that are in the split of every run; folds count for their own data only."""
    own = dataset.fingerprint == runs[0].info.data_fingerprint
    folds = dict.fromkeys(run.config.data.fold if own else None for run in runs)
    first, *others = [dataset.part(split, fold) for fold in folds]
    return [case for case in first if all(case in part for part in others)]


def _measure(
    runs: Sequence[FinishedRun],
    dataset: PreparedDataset,
    out: Path,
    split: str,
    config: EvaluationConfig,
    names: Mapping[str, Any],
    *,
    fitted: BaseCalibrator | None,
    device: str,
    jobs: int | None,
    overwrite: bool,
    progress: ProgressCallback,
    say: Callable[[str], None],
) -> Evaluation:
    """Predict a split with the runs' networks and write its evaluation into `out`.

    `names` are columns of the rows. The other arguments are those of `evaluate_run`.
    """
    run = runs[0]
    external = dataset.fingerprint != run.info.data_fingerprint
    cases = _part(runs, dataset, split)
    for member in runs:
        member.checkpoint(config.checkpoint)
        if not external:
            member.open_data(dataset.root)
            member.check_unseen(cases, split)
    verify_cases(cases)
    scans = {case.name: case.properties.voxels_sha256 for case in cases}
    found = [name for member in runs for name in member.seen(scans, "test" if external else split)]
    seen = tuple(dict.fromkeys(found))
    if seen:
        say(run.describe_seen(seen))
    chosen = choose_device(device)
    on_cuda = chosen.type == "cuda"
    name = torch.cuda.get_device_name(chosen) if on_cuda else chosen.type.upper()
    inputs = RunCases(run, dataset, cases, original=config.grid == "original")
    names_of_classes = [run.data_info.classes[k] for k in sorted(run.data_info.classes)]
    with reproducible_float32(), warnings.catch_warnings():
        # There was one softmax; an undertrained network may look as if there were two.
        warnings.filterwarnings("ignore", message=".*second softmax", category=UserWarning)
        return write_evaluation(
            predicted_cases(runs, inputs, config, chosen, fitted),
            out,
            **names,
            labels=["background", *run.heads] if run.heads else names_of_classes,
            split=split,
            groups=run.heads or run.data_info.regions or None,
            options=CaseOptions(**config.metric_options()),
            # This process's share of the cores; more than four threads do not help.
            jobs=max(1, min(4, torch.get_num_threads())) if jobs is None else jobs,
            about={
                **identity(runs, config),
                **({"members": [str(member.folder) for member in runs]} if len(runs) > 1 else {}),
                "external": external,
                "seen": seen,
                "epochs": epochs_done(run.folder),
                "data_fingerprint": dataset.fingerprint,
                "device": name,
                "calibrator": None
                if fitted is None
                else {
                    "method": fitted.method,
                    "fitted_on": fitted.about.get("split", ""),
                    "fitted_cases": fitted.about.get("cases", ()),
                    "params": fitted.params(),
                    "fit": asdict(fitted.report) if fitted.report else None,
                },
            },
            overwrite=overwrite,
            progress=lambda done: progress("evaluating", done, len(cases)),
        )


@dataclass(frozen=True)
class RunCases:
    """Cases as the network of a run needs them, each with itself on the grid to measure on.

    Cases of an external set that were stored on another grid, in another orientation or with
    another normalization are read again from their source files, and so are the labels on the
    original grid. Such cases exist until the next one is drawn.
    """

    run: FinishedRun
    dataset: PreparedDataset
    cases: Sequence[PreparedCase]
    original: bool = False

    def __iter__(self) -> Iterator[tuple[PreparedCase, PreparedCase]]:
        own = self.dataset.fingerprint == self.run.info.data_fingerprint
        info, scans = self.run.data_info, OriginalScans(self.dataset)
        orientation = None if own else Space([self.run]).orientation
        same_intensity = self.dataset.info.intensity == info.intensity
        for case in self.cases:
            grid = case.grid if own else turned_grid(case.grid, info.grid, orientation)
            fits = grid == case.grid and same_intensity
            native = turned_grid(grid, GridRecipe(), None)
            if fits and (not self.original or grid == native):
                yield case, case
                continue
            scan = scans.read(case.name, info.intensity)
            with TemporaryDirectory() as folder:
                stored = case
                if not fits:
                    placed = place(scan, info.grid, orientation)
                    stored = write_case(placed, Path(folder, "stored"), info.dtype)
                measured = stored
                if self.original:
                    placed = place(scan, GridRecipe(), orientation)
                    measured = write_case(placed, Path(folder, "original"), info.dtype)
                yield stored, measured


def predicted_cases(
    runs: Sequence[FinishedRun],
    cases: Iterable[tuple[PreparedCase, PreparedCase]],
    config: EvaluationConfig,
    device: torch.device,
    calibrator: BaseCalibrator | None = None,
) -> Iterator[PredictedCase]:
    """The predictions of one case after another, with everything they are measured against.

    `cases` are those of `RunCases`: each as the network gets it, and on the grid to measure on.
    """
    networks = [run.network(config.checkpoint, device) for run in runs]
    heads = runs[0].heads
    label = head_masks if heads else predicted_labels
    # Metrics count in float64, which MPS does not have.
    target_device = torch.device("cpu") if device.type == "mps" else device
    for case, measured in cases:
        image = case.image()
        try:
            found = predict_case(
                networks, torch.from_numpy(image).to(device),
                patch_size=[run.patch_size for run in runs],
                flips=config.flips, average=config.average, sigmoid=bool(heads),
            )  # fmt: skip
            if calibrator is not None:
                # The networks' logits do not belong to the calibrated probabilities.
                found = calibrated(found, calibrator, case.spacing_mm)
        except ValueError as error:
            raise ValueError(f"{runs[0].folder}: case {case.name}: {error}") from error
        probs: Any = found.probs.to(target_device)
        logits = None if found.logits is None else found.logits.to(target_device)
        if measured is not case:
            probs, logits = restore_probs(case.grid, probs, bool(heads)), None
        labels = [
            label(p if measured is case else restore_probs(case.grid, p, bool(heads)))
            for p in (member.probs for member in found.members)
        ]
        readers = measured.readers
        raters = dict(zip(readers, measured.raters(), strict=True)) if readers else {}
        if heads:
            raters = {k: np.where(r == IGNORED, np.int16(-100), r) for k, r in raters.items()}
        yield PredictedCase(
            name=case.name,
            probs=probs,
            target=measured.target(),
            spacing_mm=measured.spacing_mm,
            image=image if measured is case else measured.image(),
            logits=logits,
            true_probs=measured.truth(),
            raters=raters or None,
            annotated=measured.properties.annotated,
            members=np.stack(labels) if labels else None,
            heads=heads,
        )


def differences(
    existing: Evaluation,
    config: EvaluationConfig,
    names: Mapping[str, Any] | None = None,
    run: Path | str | Sequence[Path | str] | None = None,
) -> list[str]:
    """The settings, names or checkpoint in which an evaluation differs from what is requested.

    A checkpoint that was deleted does not count as different. `run` is the folder of the run (or
    several), if the evaluation is in another one.
    """
    options = config.metric_options()
    wanted = {
        **identity(open_runs(run or existing.folder), config),
        **(names or {}),
        **{key: tuple(options.pop(key)) for key in ("regions", "metrics")},
        **options,
    }
    known = {**dict(existing.info), **existing.info.options}
    return [key for key, value in wanted.items() if known.get(key) != value]


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
