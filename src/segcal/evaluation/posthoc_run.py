"""A run, calibrated after its training: fitted on its validation cases, measured on others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from segcal.config import EvaluationConfig
from segcal.core.checks import check_choice
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluation_files import Evaluation
from segcal.evaluation.finished_run import (
    FinishedRun,
    identity,
    measure_run,
    open_run,
    predicted_cases,
)
from segcal.evaluation.posthoc_fit import AFTER_TRAINING
from segcal.evaluation.predict import choose_device, exactly
from segcal.posthoc import Calibrator, HeldOut, make_calibrator

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

    The calibrator is saved in the run as calibrator_NAME.json; evaluation.json in `out` holds
    what it found.

    Args:
        run: the folder that `segcal train` wrote.
        calibrator: one of `AFTER_TRAINING`.
        out: folder of the four files of the evaluation.
        name, method, dataset: what the rows say.
        config, data, device, workers, overwrite: as `evaluate_run`.
    """
    config = config or EvaluationConfig()
    opened = open_run(run)
    fitted = fit_run(opened, calibrator, config=config, data=data, device=device)
    assert fitted.report is not None
    fitted.save(opened.folder / f"calibrator_{calibrator}.json")

    def calibrate(case: PredictedCase) -> PredictedCase:
        # The logits are the network's own: their size says nothing of these probabilities.
        return replace(case, probs=fitted.transform(_logits(case)), logits=None)

    found = {
        "method": calibrator,
        "fitted_on": FITTED_ON,
        "fitted_cases": fitted.about["cases"],
        "params": fitted.params(),
        "fit": fitted.report.as_dict(),
    }
    told = {"run": name, "method": method, "seed": opened.config.seed, "dataset": dataset}
    return measure_run(
        opened, Path(out), "test", config, told, about={"calibrator": found}, change=calibrate,
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
    """Fit on all voxels of the run's validation cases, predicted one after another."""
    check_choice("calibrator", calibrator, AFTER_TRAINING)
    run.checkpoint(config.checkpoint)
    cases = run.open_data(data).part(FITTED_ON, run.config.data.fold)
    run.check_unseen(cases, FITTED_ON)
    predicted = predicted_cases(run, cases, config, choose_device(device))

    def held_out() -> Iterator[HeldOut]:
        for case in predicted:
            yield HeldOut(_logits(case), case.target)

    with exactly():
        fitted = make_calibrator(calibrator).fit(held_out())
    fitted.about = {
        "region": "all",
        "split": FITTED_ON,
        "cases": [case.name for case in cases],
        "data_fingerprint": run.about.get("data_fingerprint"),
        **identity(run, config),
    }
    return fitted


def _logits(case: PredictedCase) -> Any:
    if case.logits is None:
        raise ValueError(
            f"Expected case {case.name} to have logits to calibrate, but probabilities of mirror "
            "images were averaged; say `average: logits`, or no `flips`."
        )
    return case.logits
