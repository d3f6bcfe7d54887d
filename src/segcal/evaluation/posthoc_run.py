"""Calibrate a trained run: fit on its validation cases, evaluate its test cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from segcal.config import EvaluationConfig
from segcal.data import verify_cases
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.finished_run import (
    FinishedRun,
    identity,
    measure_run,
    open_run,
    predicted_cases,
)
from segcal.evaluation.predict import choose_device, reproducible_float32
from segcal.posthoc import Calibrator, HeldOut, make_calibrator, short_name
from segcal.study import Evaluation

FITTED_ON = "val"


def evaluate_calibrated(
    run: Path | str,
    calibrator: str,
    out: Path | str,
    *,
    name: str,
    method: str,
    dataset: str,
    config: EvaluationConfig | None = None,
    data: Path | str | None = None,
    device: str = "auto",
    workers: int | None = None,
    overwrite: bool = False,
) -> Evaluation:
    """Fit a calibrator on a run's validation cases, and evaluate the test cases with it.

    The calibrator is saved in the run as calibrator_NAME.json; evaluation.json in `out` contains
    its parameters.

    Args:
        calibrator: a name in `segcal.posthoc.CALIBRATORS`, or an import path.
        name, method, dataset: identify the rows of the table.
        run, out, config, data, device, workers, overwrite: as `evaluate_run`.
    """
    config = config or EvaluationConfig()
    opened = open_run(run)
    fitted = fit_run(opened, calibrator, config=config, data=data, device=device)
    assert fitted.report is not None
    fitted.save(opened.folder / f"calibrator_{short_name(calibrator)}.json")

    def calibrate(case: PredictedCase) -> PredictedCase:
        # The network's logits do not belong to the calibrated probabilities.
        return replace(case, probs=fitted.transform(_logits(case)), logits=None)

    about = {
        "method": calibrator,
        "fitted_on": FITTED_ON,
        "fitted_cases": fitted.about["cases"],
        "params": fitted.params(),
        "fit": asdict(fitted.report),
    }
    row = {"run": name, "method": method, "seed": opened.config.seed, "dataset": dataset}
    return measure_run(
        opened, Path(out), "test", config, row, about={"calibrator": about}, change=calibrate,
        data=data, device=device, workers=workers, overwrite=overwrite,
    )  # fmt: skip


def fit_run(
    run: FinishedRun,
    calibrator: str,
    *,
    config: EvaluationConfig,
    data: Path | str | None = None,
    device: str = "auto",
) -> Calibrator:
    """Fit on all voxels of the run's validation cases, which are predicted one at a time."""
    unfitted = make_calibrator(calibrator)
    run.checkpoint(config.checkpoint)
    cases = run.open_data(data).part(FITTED_ON, run.config.data.fold)
    run.check_unseen(cases, FITTED_ON)
    verify_cases(cases)
    predicted = predicted_cases(run, cases, config, choose_device(device))

    def held_out() -> Iterator[HeldOut]:
        for case in predicted:
            yield HeldOut(_logits(case), case.target)

    with reproducible_float32():
        fitted = unfitted.fit(held_out())
    fitted.about = {
        "region": "all",
        "split": FITTED_ON,
        "cases": [case.name for case in cases],
        "data_fingerprint": run.info.data_fingerprint,
        **identity(run, config),
    }
    return fitted


def _logits(case: PredictedCase) -> Any:
    if case.logits is None:
        raise ValueError(
            f"case {case.name} has no logits to calibrate, because the probabilities of mirrored "
            "images were averaged; set `average: logits`, or leave out `flips`"
        )
    return case.logits
