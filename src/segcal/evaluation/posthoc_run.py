"""Calibrate a trained run: fit on its validation cases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from segcal.config import EvaluationConfig
from segcal.core.errors import PathError
from segcal.data import verify_cases
from segcal.evaluation.finished_run import (
    FinishedRun,
    RunCases,
    identity,
    predicted_cases,
    require_logits,
)
from segcal.evaluation.predict import choose_device, reproducible_float32
from segcal.posthoc import Calibrator, HeldOut, load_calibrator, make_calibrator, short_name

FITTED_ON = "val"


def run_calibrator(
    run: FinishedRun,
    calibrator: Path | str,
    *,
    config: EvaluationConfig,
    data: Path | str | None,
    device: str,
    say: Callable[[str], None],
) -> Calibrator:
    """The calibrator of a file, or the named one, fitted on all voxels of the validation cases.

    A fitted one is saved in the run as calibrator_NAME.json; it is used again for the same weights.
    """
    if Path(calibrator).is_file():
        fitted = load_calibrator(calibrator)
        if fitted.num_classes != len(run.data_info.classes):
            problem = f"was fitted on {fitted.num_classes} classes, but {run.folder} has "
            problem += ", ".join(run.data_info.classes.values())
            raise PathError(Path(calibrator), problem, "give a calibrator of this network")
        return fitted
    path = run.folder / f"calibrator_{short_name(str(calibrator))}.json"
    with suppress(PathError):  # it does not exist, or is damaged
        fitted = load_calibrator(path)
        known = _identity(run, config)
        if {key: fitted.about.get(key) for key in known} == json.loads(json.dumps(known)):
            return fitted
    unfitted = make_calibrator(str(calibrator))
    run.checkpoint(config.checkpoint)
    dataset = run.open_data(data)
    cases = dataset.part(FITTED_ON, run.config.data.fold)
    run.check_unseen(cases, FITTED_ON)
    verify_cases(cases)
    seen = run.seen({case.name: case.properties.voxels_sha256 for case in cases}, FITTED_ON)
    if seen:
        say(run.describe_seen(seen))
    inputs = RunCases(run, dataset, cases)
    predicted = predicted_cases(run, inputs, config, choose_device(device))

    def held_out() -> Iterator[HeldOut]:
        for case in predicted:
            logits = require_logits(case.name, case.logits)
            yield HeldOut(logits, case.target, spacing_mm=case.spacing_mm)

    with reproducible_float32():
        fitted = unfitted.fit(held_out())
    fitted.about = {"region": "all", **_identity(run, config)}
    fitted.save(path)
    return fitted


def _identity(run: FinishedRun, config: EvaluationConfig) -> dict[str, Any]:
    """What a calibrator was fitted on: cases and weights; the fit is on the prepared grid."""
    weights = {key: value for key, value in identity(run, config).items() if key != "grid"}
    return {
        "split": FITTED_ON,
        "cases": list(run.info.cases[FITTED_ON]),
        "data_fingerprint": run.info.data_fingerprint,
        **weights,
    }
