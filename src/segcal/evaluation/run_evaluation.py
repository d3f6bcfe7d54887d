"""Evaluate a run, or the average of several: `segcal evaluate`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.core.jobs import RayJobs
from segcal.core.progress import ProgressCallback, no_progress
from segcal.data import PreparedDataset
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.finished_run import FinishedRun, identity, open_runs, unfinished
from segcal.evaluation.posthoc_choice import method_of
from segcal.evaluation.posthoc_run import requested_calibrator
from segcal.evaluation.predict import choose_device
from segcal.evaluation.predictor import Predictor, make_predictor
from segcal.evaluation.run_cases import RunCases, cases_of, checked_cases, predicted_cases
from segcal.metrics import CaseOptions
from segcal.posthoc import BaseCalibrator, short_name
from segcal.study import EXTERNAL, Evaluation, epochs_done, read_evaluation

SPLITS = ("train", "val", "test")
# How an error calls these differences of an existing evaluation.
_WHAT = {
    "checkpoint_sha256": "another checkpoint",
    "data_fingerprint": "other data",
    "calibrator": "another calibrator",
}


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
    raw: bool = False,
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
            in it as calibrator_NAME.json. Members are calibrated before they are averaged. None
            is the one that the settings of the run name (`posthoc`), if they do.
        raw: whether to evaluate without a calibrator.
        out: where results are written; by default the run, or its folder calibrated/NAME. Required
            for several runs.
        device: "auto", "cpu", "cuda", "cuda:1", "mps", …
        jobs: threads that measure while the network predicts; by default by the cores. `RayJobs`
            predict and measure cases on a Ray cluster.
        overwrite: whether an existing evaluation is replaced.
        progress: called as (what, cases done, cases in total).
        say: called with one line about scans that the run was trained on, and with the reason why
            an existing evaluation is computed again.
    """
    config = config or EvaluationConfig()
    opened = open_runs(run)
    for line in unfinished(opened):
        say(line)
    other = opened[0].external_data(data)
    folders = [run] if isinstance(run, str | Path) else list(run)
    if len(folders) > 1 and out is None:
        raise ValueError("--out is required: the folder for the evaluation of several runs")
    home = Path(out if len(folders) > 1 and out is not None else folders[0])
    part = split or ("test" if other is None else "all")
    own_data = data if other is None else None
    fitted = requested_calibrator(
        run, calibrator, raw, config=config, data=own_data, device=device, say=say
    )
    suffix, folder = "", home
    if fitted is not None:
        short = short_name(method_of(fitted))
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
        _check_same(existing, fitted, differences(existing, config, requested, run))
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


def _check_same(existing: Evaluation, fitted: BaseCalibrator | None, different: list[str]) -> None:
    """Refuse to replace an evaluation that was computed with something else than requested."""
    params = (existing.info.calibrator or {}).get("params")
    if fitted is not None and params != json.loads(json.dumps(fitted.params())):
        different = [*different, "calibrator"]
    for key in different:
        value = existing.info.options.get(key, getattr(existing.info, key, None))
        what = _WHAT.get(key, f"{key} {value!r}")
        path, remedy = existing.path("evaluation.json"), "pass --overwrite to replace it"
        raise PathError(path, f"was computed with {what}", remedy)


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
    cases = cases_of(runs, other or runs[0].open_data(data), existing.split)
    if sorted(case.name for case in cases) == sorted(existing.info.case_names):
        return None
    return f"{existing.path('evaluation.json')}: covers other cases (the splits have changed)"


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
    cases, seen = checked_cases(runs, dataset, split, config, say)
    on_ray = isinstance(jobs, RayJobs)
    predictor = make_predictor(runs, config, device, fitted)
    inputs = RunCases(run, dataset, cases, original=config.grid == "original")
    classes = [run.data_info.classes[k] for k in sorted(run.data_info.classes)]
    with warnings.catch_warnings():
        # There was one softmax; an undertrained network may look as if there were two.
        warnings.filterwarnings("ignore", message=".*second softmax", category=UserWarning)
        return write_evaluation(
            {c.name: partial(_predict, predictor, replace(inputs, cases=[c])) for c in cases}
            if on_ray
            else predicted_cases(predictor, inputs),
            out,
            **names,
            labels=["background", *run.heads] if run.heads else classes,
            split=split,
            groups=run.heads or run.data_info.regions or None,
            options=CaseOptions(**config.metric_options()),
            # This process's share of the cores; more than four threads do not help.
            jobs=max(1, min(4, torch.get_num_threads())) if jobs is None else jobs,
            about={
                **identity(runs, config),
                **({"members": [str(member.folder) for member in runs]} if len(runs) > 1 else {}),
                "external": dataset.fingerprint != run.info.data_fingerprint,
                "seen": seen,
                "epochs": epochs_done(run.folder),
                "data_fingerprint": dataset.fingerprint,
                "device": "Ray" if on_ray else _device_name(device),
                "calibrator": None if fitted is None else _describe_calibrator(fitted),
            },
            overwrite=overwrite,
            progress=lambda done: progress("evaluating", done, len(cases)),
        )


def _predict(predictor: Predictor, cases: RunCases) -> PredictedCase:
    (found,) = predicted_cases(predictor, cases)
    return found


def _device_name(device: str) -> str:
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
    return chosen.type.upper()


def _describe_calibrator(fitted: BaseCalibrator) -> dict[str, Any]:
    return {
        "method": method_of(fitted),
        "fitted_on": fitted.about.get("split", ""),
        "fitted_cases": fitted.about.get("cases", ()),
        "params": fitted.params(),
        "fit": asdict(fitted.report) if fitted.report else None,
    }


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
