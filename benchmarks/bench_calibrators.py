"""Calibrators of segcal, netcal and Fiducio on the same predictions.

    python benchmarks/bench_calibrators.py --probs PROBS --labels LABELS --network "what it is"
    python benchmarks/bench_calibrators.py --probs TEST --fit-probs VALIDATION --labels LABELS

Every case is calibrated by fits that did not see its patient: by cross-validation, or with
`--fit-probs` by fits on other cases. Prints a table (means over cases) and writes its values.
Packages that are not installed are left out.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import RESULTS, environment, write_results
from rich.console import Console
from rich.table import Table

from segcal.evaluation.posthoc_choice import AUTO
from segcal.evaluation.posthoc_fit import fit_pairs, region_mask
from segcal.metrics import REGIONS, predicted_labels, voxel_statistics
from segcal.posthoc import HeldOut, make_calibrator
from segcal.predictions import IGNORED, LoadedCase, Pairs, find_pairs
from segcal.stats import make_folds, mean_interval, patients_of

warnings.filterwarnings("ignore")
METRICS = ("nll", "brier", "ece")
# A fit returns what maps a case to its calibrated probabilities (K, *S).
Transform = Callable[[LoadedCase], np.ndarray]


@dataclass
class FitData:
    """The cases to fit on, and the largest number of their voxels."""

    pairs: Pairs
    cases: list[LoadedCase]
    voxels: int
    patient: str | None

    def select(self, chosen: list[int]) -> "FitData":
        pairs = replace(self.pairs, pairs=tuple(self.pairs.pairs[i] for i in chosen))
        return replace(self, pairs=pairs, cases=[self.cases[i] for i in chosen])


Fit = Callable[[FitData], Transform]


def no_calibrator(data: FitData) -> Transform:
    return lambda case: case.values


def fit_segcal(name: str, options: dict[str, Any], data: FitData) -> Transform:
    cases = [HeldOut(c.values, c.target, c.target >= 0, c.spacing_mm) for c in data.cases]
    fitted = make_calibrator(name, **options)
    fitted.fit(cases, from_probs=True, max_voxels=data.voxels)
    return lambda case: fitted.transform(case.values, from_probs=True, spacing_mm=case.spacing_mm)


def fit_auto(data: FitData) -> Transform:
    """What `segcal calibrate` does by default, with its own cross-validation inside."""
    found = fit_pairs(
        data.pairs, AUTO, from_probs=True, patient=data.patient, max_voxels=data.voxels
    )
    assert found.choice is not None
    print("auto:", found.choice.method, flush=True)
    calibrator = found.calibrator
    return lambda case: calibrator.transform(
        case.values, from_probs=True, spacing_mm=case.spacing_mm
    )


def draw(data: FitData) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (n, K) and labels (n,), drawn evenly from all cases."""
    cases, voxels = data.cases, data.voxels
    rng = np.random.default_rng(0)
    counted = [c.target.ravel() >= 0 for c in cases]
    share = min(1.0, voxels / sum(int(each.sum()) for each in counted))
    chosen = [each & (rng.random(each.size) < share) for each in counted]
    probs = [c.values.reshape(len(c.values), -1).T[i] for c, i in zip(cases, chosen, strict=True)]
    labels = [c.target.ravel()[i] for c, i in zip(cases, chosen, strict=True)]
    return np.concatenate(probs).astype(np.float64), np.concatenate(labels).astype(np.int64)


def by_voxel(transform: Callable[[np.ndarray], Any]) -> Transform:
    """A function of (n, K) as one of a case; sums are made 1, which binning does not ensure."""

    def apply(case: LoadedCase) -> np.ndarray:
        rows = case.values.reshape(len(case.values), -1).T.astype(np.float64)
        found = np.clip(np.asarray(transform(rows), np.float64), 1e-12, 1)
        found = (found / found.sum(1, keepdims=True)).T
        return found.reshape(case.values.shape).astype(np.float32)

    return apply


def fit_netcal(module: str, name: str, data: FitData) -> Transform:
    import importlib

    kind = getattr(importlib.import_module(f"netcal.{module}"), name)
    fitted = kind()
    fitted.fit(*draw(data))
    return by_voxel(fitted.transform)


def fit_fiducio(name: str, data: FitData) -> Transform:
    import fiducio

    probs, labels = map(torch.from_numpy, draw(data))
    fitted = getattr(fiducio, name)(optimizer="lbfgs", input_type="probs")
    fitted.fit(probs.float(), labels)
    return by_voxel(lambda rows: fitted.transform(torch.from_numpy(rows).float()).detach().numpy())


def methods() -> dict[str, Fit]:
    keep = {"keep_argmax": True}
    out: dict[str, Fit] = {"none": no_calibrator, "segcal auto": fit_auto}
    for name, options in (
        ("temperature", {}), ("distance", {}), ("mixture", {}), ("class_affine", {}),
        ("vector", keep), ("dirichlet", keep), ("vector", {}), ("dirichlet", {}),
    ):  # fmt: skip
        kept = " (keep_argmax)" if options else ""
        out[f"segcal {name}{kept}"] = partial(fit_segcal, name, options)
    if find_spec("netcal"):
        for module, name in (
            ("scaling", "TemperatureScaling"), ("scaling", "LogisticCalibration"),
            ("scaling", "BetaCalibration"), ("binning", "HistogramBinning"),
            ("binning", "IsotonicRegression"),
        ):  # fmt: skip
            out[f"netcal {name}"] = partial(fit_netcal, module, name)
    if find_spec("fiducio"):
        for name in ("TS", "ETS", "VS", "MSc", "DC", "CDC", "CMSap", "CMSop"):
            out[f"Fiducio {name}"] = partial(fit_fiducio, name)
    return out


def judge(case: LoadedCase, probs: np.ndarray, masks: dict[str, np.ndarray]) -> dict[str, float]:
    out: dict[str, float] = {}
    for region, mask in masks.items():
        found = voxel_statistics(
            probs, case.target, len(probs), mask, ignore_index=IGNORED, batched=False
        )
        values = (found.scores.nll(), found.scores.brier(), found.bins.ece())
        out |= {f"{region}/{m}": v for m, v in zip(METRICS, values, strict=True)}
    counted = case.target != IGNORED
    changed = predicted_labels(probs) != predicted_labels(case.values)
    return {**out, "changed": float((changed & counted).sum() / counted.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--probs", type=Path, required=True, help="the cases to judge")
    parser.add_argument("--fit-probs", type=Path, help="the cases to fit on, none of them in PROBS")
    parser.add_argument("--labels", type=Path, required=True, help="of all of them")
    parser.add_argument("--network", default="", help="what predicted them, for the results")
    parser.add_argument("--patient", help="a regular expression, as in segcal calibrate")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--voxels", type=int, default=300_000, help="to fit on")
    parser.add_argument("--only", default="", help="methods whose names contain it; others stay")
    parser.add_argument("--out", type=Path, default=RESULTS / "calibrators_cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judged = read(options, options.probs)
    count = len(judged.cases)
    if options.fit_probs is None:
        folds = make_folds(judged.pairs.names, options.folds, options.patient)
        fits = [judged.select([i for i in range(count) if i not in fold]) for fold in folds]
    else:
        folds, fits = [list(range(count))], [read(options, options.fit_probs)]
    chosen = {name: fit for name, fit in methods().items() if options.only in name}
    results = {}
    if options.only and options.out.is_file():
        results = json.loads(options.out.read_text())["results"]
    results |= compare(judged, folds, fits, chosen)
    show(results)
    found = {name: version(name) for name in ("netcal", "fiducio") if find_spec(name)}
    payload = {
        "environment": environment(), "packages": found, "network": options.network,
        "cases": count, "fitted_on": "folds" if options.fit_probs is None else len(fits[0].cases),
        "folds": len(folds), "voxels": options.voxels, "results": results,
    }  # fmt: skip
    write_results(options.out, payload)


def read(options: argparse.Namespace, folder: Path) -> FitData:
    pairs = find_pairs(folder, options.labels)
    return FitData(pairs, [pair.load() for pair in pairs], options.voxels, options.patient)


def compare(
    judged: FitData, folds: list[list[int]], fits: list[FitData], chosen: dict[str, Fit]
) -> dict[str, Any]:
    """Means of each method over cases, with intervals over patients."""
    cases = judged.cases
    names = judged.pairs.names
    units = None if judged.patient is None else list(patients_of(names, judged.patient).values())
    masks = [{region: region_mask(case, region) for region in REGIONS} for case in cases]
    results: dict[str, dict[str, Any]] = {}
    for name, fit in chosen.items():
        rows: list[dict[str, float]] = [{} for _ in cases]
        fit_s = apply_s = 0.0
        for fold, data in zip(folds, fits, strict=True):
            start = time.process_time()
            transform = fit(data)
            fit_s += time.process_time() - start
            for i in fold:
                start = time.process_time()
                probs = transform(cases[i])
                apply_s += time.process_time() - start
                rows[i] = judge(cases[i], probs, masks[i])
        means = {key: mean_interval([row[key] for row in rows], units) for key in rows[0]}
        results[name] = {key: dict(found._asdict()) for key, found in means.items()}
        results[name] |= {"fit_s": fit_s / len(folds), "apply_s": apply_s / len(cases)}
        print(name, f"{fit_s:.1f} s", flush=True)
    return results


def show(results: dict[str, dict[str, Any]]) -> None:
    keys = [f"{r}/{m}" for r in ("all", "predicted_boundary") for m in METRICS]
    keys += [f"{r}/ece" for r in REGIONS if r not in ("all", "predicted_boundary")]
    grid = Table("calibrator", *keys, "changed", "fit s", "apply s")
    for name, row in results.items():
        values = [f"{row[key]['mean']:.4f}" for key in keys]
        changed = f"{100 * row['changed']['mean']:.2f} %"
        grid.add_row(name, *values, changed, f"{row['fit_s']:.2f}", f"{row['apply_s']:.3f}")
    Console(width=220).print(grid)


if __name__ == "__main__":
    main()
