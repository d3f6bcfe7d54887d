"""Calibrators of segcal, netcal and Fiducio on the same predictions, cross-validated. One run:

python benchmarks/bench_calibrators.py --probs PROBS --labels LABELS --network "what predicted them"

Every case is calibrated by fits that did not see its patient. Prints a table (means over cases) and
writes benchmarks/results/calibrators_cpu.json. Packages that are not installed are left out.
"""

import argparse
import time
import warnings
from collections.abc import Callable
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

from segcal.evaluation.posthoc_fit import region_mask
from segcal.metrics import REGIONS, predicted_labels, voxel_statistics
from segcal.posthoc import HeldOut, make_calibrator
from segcal.predictions import IGNORED, LoadedCase, find_pairs
from segcal.stats import make_folds, mean_interval

warnings.filterwarnings("ignore")
METRICS = ("nll", "brier", "ece")
# A fit returns what maps a case to its calibrated probabilities (K, *S).
Transform = Callable[[LoadedCase], np.ndarray]
Fit = Callable[[list[LoadedCase], int], Transform]


def no_calibrator(cases: list[LoadedCase], voxels: int) -> Transform:
    return lambda case: case.values


def fit_segcal(
    name: str, options: dict[str, Any], cases: list[LoadedCase], voxels: int
) -> Transform:
    held_out = [HeldOut(c.values, c.target, c.target >= 0, c.spacing_mm) for c in cases]
    fitted = make_calibrator(name, **options).fit(held_out, from_probs=True, max_voxels=voxels)
    return lambda case: fitted.transform(case.values, from_probs=True, spacing_mm=case.spacing_mm)


def draw(cases: list[LoadedCase], voxels: int) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (n, K) and labels (n,), drawn evenly from all cases."""
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


def fit_netcal(module: str, name: str, cases: list[LoadedCase], voxels: int) -> Transform:
    import importlib

    kind = getattr(importlib.import_module(f"netcal.{module}"), name)
    fitted = kind()
    fitted.fit(*draw(cases, voxels))
    return by_voxel(fitted.transform)


def fit_fiducio(name: str, cases: list[LoadedCase], voxels: int) -> Transform:
    import fiducio

    probs, labels = map(torch.from_numpy, draw(cases, voxels))
    fitted = getattr(fiducio, name)(optimizer="lbfgs", input_type="probs")
    fitted.fit(probs.float(), labels)
    return by_voxel(lambda rows: fitted.transform(torch.from_numpy(rows).float()).detach().numpy())


def methods() -> dict[str, Fit]:
    keep = {"keep_argmax": True}
    out: dict[str, Fit] = {"none": no_calibrator}
    for name, options in (
        ("temperature", {}), ("distance", {}), ("class_affine", {}), ("vector", keep),
        ("dirichlet", keep), ("vector", {}), ("dirichlet", {}),
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probs", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--network", default="", help="what predicted them, for the results")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--voxels", type=int, default=300_000, help="to fit on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = find_pairs(options.probs, options.labels)
    cases = [pair.load() for pair in pairs]
    folds = make_folds(pairs.names, options.folds)
    masks = [{region: region_mask(case, region) for region in REGIONS} for case in cases]
    results: dict[str, dict[str, Any]] = {}
    for name, fit in methods().items():
        rows: list[dict[str, float]] = [{} for _ in cases]
        fit_s = apply_s = 0.0
        for fold in folds:
            start = time.process_time()
            transform = fit([c for i, c in enumerate(cases) if i not in fold], options.voxels)
            fit_s += time.process_time() - start
            for i in fold:
                start = time.process_time()
                probs = transform(cases[i])
                apply_s += time.process_time() - start
                rows[i] = judge(cases[i], probs, masks[i])
        means = {key: mean_interval([row[key] for row in rows]) for key in rows[0]}
        results[name] = {key: dict(found._asdict()) for key, found in means.items()}
        results[name] |= {"fit_s": fit_s / len(folds), "apply_s": apply_s / len(cases)}
    show(results)
    found = {name: version(name) for name in ("netcal", "fiducio") if find_spec(name)}
    payload = {
        "environment": environment(), "packages": found, "network": options.network,
        "cases": len(cases), "folds": len(folds), "voxels": options.voxels, "results": results,
    }  # fmt: skip
    write_results(RESULTS / "calibrators_cpu.json", payload)


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
