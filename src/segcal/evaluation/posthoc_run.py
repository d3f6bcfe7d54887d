"""Calibrate trained runs: fit on the validation cases of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segcal.config import EvaluationConfig
from segcal.core.arrays import to_numpy
from segcal.core.errors import PathError
from segcal.core.files import scratch_folder
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.text import count
from segcal.evaluation.finished_run import FinishedRun, identity, open_runs
from segcal.evaluation.posthoc_choice import AUTO, check_method, chose_none
from segcal.evaluation.posthoc_fit import Fitted, fit_pairs
from segcal.evaluation.posthoc_verdict import MIN_UNITS
from segcal.evaluation.predict import NO_LOGITS
from segcal.evaluation.predictor import make_predictor
from segcal.evaluation.run_cases import RunCases, checked_cases, predicted_cases
from segcal.posthoc import BaseCalibrator, Calibrator, HeadCalibrator, load_calibrator, short_name
from segcal.predictions import LoadedCase, Pair, Pairs, SoftmaxFile

FITTED_ON = "val"


@dataclass(frozen=True)
class ValidationPair(Pair):
    """The prediction of a validation case and its labels, in the temporary file `label`."""

    spacing_mm: tuple[float, ...] = ()

    def load(self) -> LoadedCase:
        with np.load(self.label) as file:
            return LoadedCase(self.name, file["logits"], file["target"], self.spacing_mm, None)


def run_calibrator(
    run: Path | str | Sequence[Path | str],
    calibrator: Path | str,
    *,
    config: EvaluationConfig,
    say: Callable[[str], None],
    **options: Any,
) -> BaseCalibrator:
    """The calibrator of a file, or the named one, fitted on all voxels of the validation cases.

    A fitted one is saved in the run as calibrator_NAME.json; it is used again for the same weights.
    `options` are those of `fit_run`.
    """
    runs = open_runs(run)
    if Path(calibrator).suffix == ".json" or Path(calibrator).is_file():
        fitted = load_calibrator(calibrator)
        outputs = [*(runs[0].heads or runs[0].data_info.classes.values())]
        kind = HeadCalibrator if runs[0].heads else Calibrator
        if fitted.num_classes != len(outputs) or not isinstance(fitted, kind):
            problem = f"was fitted on {fitted.num_classes} classes, but {runs[0].folder} has "
            problem += ", ".join(outputs)
            raise PathError(Path(calibrator), problem, "give a calibrator of this network")
        return fitted
    folders = [run] if isinstance(run, str | Path) else run
    if len(folders) > 1:
        problem = "is no file; several runs have no common validation cases to fit on"
        raise PathError(calibrator, problem, "give the file of a calibrator")
    known = saved_calibrator(folders[0], str(calibrator), config)
    if known is not None:
        return known
    new = fit_and_save(folders[0], str(calibrator), config=config, say=say, **options)
    cases, patients = len(new.calibrator.about["cases"]), new.calibrator.about["patients"]
    fitted_on = count(cases, "validation case")
    if patients < cases:
        fitted_on += f" of {count(patients, 'patient')}"
    text = f"{new.calibrator.method} was fitted on {fitted_on}"
    if new.choice is not None:
        text = f"auto chose “{new.choice.method}” on {fitted_on}"
    if patients < MIN_UNITS:
        needed = f"{MIN_UNITS} patients" if patients < cases else str(MIN_UNITS)
        text += f": too few to know whether it helps ({needed} are needed)"
    say(text)
    return new.calibrator


def requested_calibrator(
    run: Path | str | Sequence[Path | str],
    calibrator: Path | str | None,
    raw: bool,
    *,
    say: Callable[[str], None],
    **options: Any,
) -> BaseCalibrator | None:
    """The calibrator requested, else the one that the settings of a run name (`posthoc`).

    None if `raw`, if they name none, or if "auto" chose none for them. Several runs have none in
    common; a folder of folds has. `options` are those of `run_calibrator`.
    """
    if calibrator is not None:
        return run_calibrator(run, calibrator, say=say, **options)
    methods = set() if raw else {member.config.posthoc for member in open_runs(run)} - {None}
    if not methods:
        return None
    if len(methods) > 1 or (not isinstance(run, str | Path) and len(run) > 1):
        say("several runs have no common calibrator: not calibrated; --calibrator FILE gives one")
        return None
    found = run_calibrator(run, str(methods.pop()), say=say, **options)
    if chose_none(found):
        say("the calibrator of the run is “none”, which auto chose: not calibrated")
        return None
    return found


def saved_calibrator(
    run: Path | str, method: str, config: EvaluationConfig | None = None
) -> BaseCalibrator | None:
    """The calibrator that a run keeps, if it was fitted on the present weights and cases."""
    with suppress(PathError):  # it does not exist, or is damaged
        fitted = load_calibrator(calibrator_path(run, method))
        known = _identity(open_runs(run), config or EvaluationConfig())
        if {key: fitted.about.get(key) for key in known} == json.loads(json.dumps(known)):
            return fitted
    return None


def fit_and_save(run: Path | str, method: str, **options: Any) -> Fitted:
    """Fit a calibrator as `fit_run` does, with its default options, and keep it in the run.

    Only "auto" is cross-validated: it chooses by it. For the others this would take longer than
    the fit, for every run of a study.
    """
    check_method("--calibrator", method)  # before anything is predicted
    fitted = fit_run(run, method, folds=5 if method == AUTO else 0, **options)
    fitted.calibrator.save(calibrator_path(run, method))
    return fitted


def calibrator_path(run: Path | str, method: str) -> Path:
    """Where a run keeps its calibrator of a method."""
    return Path(run) / f"calibrator_{short_name(method)}.json"


def fit_run(
    run: Path | str,
    method: str,
    *,
    config: EvaluationConfig | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
    progress: ProgressCallback = no_progress,
    **options: Any,
) -> Fitted:
    """Fit a calibrator on the validation cases of a run; they are predicted first.

    In a folder with the runs fold0, fold1, … each fold predicts its own validation cases, so that
    every case is predicted by a network that was not trained on it.

    Args:
        run: the folder that `segcal train` wrote.
        config: checkpoint, flips and average of the prediction.
        data, device, say: as in `evaluate_run`.
        method, options, progress: as in `fit_pairs`; patients are by default those of the set.
    """
    config = config or EvaluationConfig()
    runs = open_runs(run)
    for member in runs:
        member.checkpoint(config.checkpoint)
    total = sum(len(member.info.cases[FITTED_ON]) for member in runs)
    patients: dict[str, str] = {}
    pairs: list[Pair] = []
    with scratch_folder() as folder:
        for member in runs:
            dataset = member.open_data(data)
            cases, _ = checked_cases([member], dataset, FITTED_ON, config, say)
            inputs = RunCases(member, dataset, cases)
            for case in predicted_cases(make_predictor([member], config, device), inputs):
                if case.logits is None:
                    raise ValueError(f"{member.folder}: case {case.name}: {NO_LOGITS}")
                path = folder / f"{case.name}.npz"
                np.savez(path, logits=to_numpy(case.logits), target=case.target.astype(np.int32))
                shape = tuple(case.logits.shape)
                file = SoftmaxFile(case.name, "npz", (member.folder,), shape)
                pairs.append(
                    ValidationPair(file, path, spacing_mm=case.spacing_mm, heads=member.heads)
                )
                patients[case.name] = dataset[case.name].patient
                progress("predicting", len(pairs), total)
        if len(set(patients.values())) < len(pairs):
            options.setdefault("patient", patients)
        found = Pairs(Path(run), tuple(pairs), ())
        fitted = fit_pairs(found, method, from_probs=False, progress=progress, **options)
    fitted.calibrator.about |= _identity(runs, config)
    return fitted


def _identity(runs: Sequence[FinishedRun], config: EvaluationConfig) -> dict[str, Any]:
    """What a calibrator was fitted on: cases and weights; the fit is on the prepared grid."""
    weights = {key: value for key, value in identity(runs, config).items() if key != "grid"}
    return {
        "split": FITTED_ON,
        "cases": [name for run in runs for name in run.info.cases[FITTED_ON]],
        "data_fingerprint": runs[0].info.data_fingerprint,
        **weights,
    }
