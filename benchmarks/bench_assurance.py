"""`segcal assure` beside simpler ways, cross-validated over patients, on saved predictions.

python benchmarks/bench_assurance.py --labels DIR --patient '(patient\\d+)' NAME=PROBS[,PROBS…] …
                                     [--readers DIR] [--folds 5] [--calibrator temperature]
                                     [--out assurance_cpu.json]

For each fold of patients everything is fitted on the other folds: the calibrator, the intervals,
the correlation ρ. Compared are, of the held-out scans:
volumes: the interval that `fit` chooses, all kinds that it chooses from, conformalized quantile
  regression of the volume on expected volume, argmax volume and doubt (scikit-learn); for a
  method with several networks also the mean of their expected volumes ± a conformal multiple of
  their standard deviation;
Dice of a scan: expected Dice and mean confidence as predictors of the true Dice; and of a method
  with several networks (NAME=PROBS,PROBS,…: the same scans, other seeds) their mean pairwise Dice;
masks: argmax, {p ≥ t} with the largest expected Dice, and RankSEG's mask (if installed): their Dice
  where the structure exists, how often they are empty where it does not, and the Dice of all scans,
  which is 1 where both are empty;
readers: with `--readers` (a folder of label maps per reader), how often the chosen interval
  contains the volume of a reader.
Writes results/OUT, keeping the results of other names, and prints Markdown tables.
"""

import argparse
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _common import RESULTS, environment, write_results
from sklearn.linear_model import QuantileRegressor

from segcal.assurance import (
    conformal_quantile,
    dice_optimal_threshold,
    fit_assurance,
    fit_calibrator,
    risk_coverage,
)
from segcal.assurance.check import measure
from segcal.assurance.histogram import EDGES
from segcal.assurance.intervals import METHODS
from segcal.assurance.summary import CaseSummary, read_labeled, units_of
from segcal.core.progress import show_progress
from segcal.data import read_labels
from segcal.predictions import IGNORED, Pair, Pairs, class_names, find_pairs
from segcal.stats import make_folds, mean_interval

try:
    import torch
    from rankseg import rankdice_ba
except ImportError:
    rankdice_ba = None
COVERAGE = 0.9
KINDS = ("chosen", *METHODS, "quantile regression", "ensemble", "independent", "nested")


def features(case: CaseSummary, s: int) -> list[float]:
    """Expected volume, argmax volume and summed variance of the voxels, in ml."""
    hist, ml = case.histogram(s), case.voxel_ml
    doubt = float(hist.count @ (hist.prob * (1 - hist.prob)))
    return [ml * hist.expected, ml * case.hard_volume(s), ml * doubt]


def quantile_regression(
    fit: list[CaseSummary], units: np.ndarray, held_out: list[CaseSummary], s: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper volumes: fitted on half of the patients, made conformal on the others."""
    x, y = (
        np.array([features(c, s) for c in fit]),
        np.array([c.voxel_ml * c.true_volume(s) for c in fit]),
    )
    scale = x.mean(axis=0) + 1e-9
    part = np.isin(units, np.unique(units)[::2])
    low, high = (
        QuantileRegressor(quantile=q, alpha=0.0, solver="highs").fit(x[part] / scale, y[part])
        for q in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
    )
    rest = x[~part] / scale
    scores = np.maximum(low.predict(rest) - y[~part], y[~part] - high.predict(rest))
    wider = conformal_quantile(scores, COVERAGE, units[~part])
    new = np.array([features(c, s) for c in held_out]) / scale
    return np.maximum(low.predict(new) - wider, 0), np.maximum(high.predict(new) + wider, 0)


def member_volumes(members: list[Pairs]) -> dict[str, list[np.ndarray]]:
    """Case → expected volumes of the structures by each network, in ml, not calibrated."""
    found: dict[str, list[np.ndarray]] = {}
    for pairs in members:
        for pair in pairs:
            case = pair.load()
            ml = float(np.prod(case.spacing_mm)) / 1000
            counted = case.values[1:, case.target != IGNORED]
            found.setdefault(pair.name, []).append(ml * counted.sum(axis=1, dtype=np.float64))
    return found


def ensemble_interval(
    fit: np.ndarray, truth: np.ndarray, units: np.ndarray, new: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper volumes of `new` (scans, networks): mean ± a multiple of the standard
    deviation, which is chosen on the scans `fit`. A standard deviation is at least 1 % of the mean.
    """

    def center_and_spread(volumes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        center = volumes.mean(axis=1)
        return center, np.maximum(volumes.std(axis=1, ddof=1), 0.01 * center + 1e-9)

    center, spread = center_and_spread(fit)
    factor = conformal_quantile(np.abs(truth - center) / spread, COVERAGE, units)
    center, spread = center_and_spread(new)
    return np.maximum(center - factor * spread, 0), center + factor * spread


def dice(size: float, hits: float, truth: float) -> float:
    return 2 * hits / (size + truth) if size + truth else np.nan


def mask_rows(
    case: CaseSummary, s: int, rho: float, pair: Pair, calibrator: Any
) -> dict[str, float]:
    """Of several masks of one structure: Dice, 1 if both are empty; Dice where the structure
    exists; otherwise whether they are empty.
    """
    size, hits = case.above(s)
    truth = case.true_volume(s)
    found = {"argmax": (case.hard_volume(s), case.overlap[s])}
    for name, correlation in (("dice-optimal", rho), ("dice-optimal, independent", 0.0)):
        threshold, _ = dice_optimal_threshold(case.histogram(s), correlation)
        b = int(np.searchsorted(EDGES, threshold))
        found[f"{name}, never empty"] = (0, 0) if np.isinf(threshold) else (size[b], hits[b])
        found[name] = found[f"{name}, never empty"] if case.hard_volume(s) else (0, 0)
    if rankdice_ba is not None:
        loaded = pair.load()
        probs = calibrator.transform(
            loaded.values, from_probs=True, spacing_mm=loaded.spacing_mm
        ).reshape(len(loaded.values), -1)
        one = torch.from_numpy(np.ascontiguousarray(probs[s + 1 : s + 2][None], np.float32))
        mask = rankdice_ba(one).numpy().reshape(-1) > 0
        found["RankSEG"] = (mask.sum(), (mask & (loaded.target.reshape(-1) == s + 1)).sum())
    return {
        key: value
        for name, (n, overlap) in found.items()
        for key, value in (
            (f"all {name}", dice(n, overlap, truth) if n + truth else 1.0),
            (f"mask {name}", dice(n, overlap, truth) if truth else np.nan),
            (f"empty {name}", np.nan if truth else float(n == 0)),
        )
    }


def labels_of(pair: Pair) -> np.ndarray:
    return np.asarray(pair.load().values).argmax(axis=0)


def pairwise_dice(pairs: list[Pair], classes: int) -> float:
    """Mean Dice between the masks of each two networks, over structures that one of them found."""
    masks = [labels_of(pair) for pair in pairs]
    found = []
    for a, b in combinations(masks, 2):
        for c in range(1, classes):
            one, other = a == c, b == c
            found.append(dice(one.sum(), (one & other).sum(), other.sum()))
    return float(np.nanmean(found)) if not np.isnan(found).all() else np.nan


def read_share(readers: list[Path], case: CaseSummary, s: int, low: float, high: float) -> float:
    """Share of the readers whose volume is in the interval."""
    maps = [read_labels(path)[0] for path in readers if path.name.startswith(f"{case.name}.")]
    volumes = [case.voxel_ml * np.count_nonzero(one == s + 1) for one in maps]
    return float(np.mean([low <= volume <= high for volume in volumes])) if volumes else np.nan


def cross_validate(
    pairs: Pairs,
    members: list[Pairs],
    readers: list[Path],
    patient: str,
    folds: int,
    names: list[str],
    method: str,
    volumes_of: dict[str, list[np.ndarray]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of volumes (scan × structure) and of scans, each from the fold that held it out."""
    units = units_of(pairs, patient)
    volumes, scans = [], []
    with show_progress() as progress:
        for number, part in enumerate(make_folds(pairs.names, folds, patient), start=1):
            out = set(part)
            inside = [i for i in range(len(pairs)) if i not in out]
            fit_part = replace(pairs, pairs=tuple(pairs.pairs[i] for i in inside))
            calibrator = fit_calibrator(fit_part, method)
            assurance = fit_assurance(
                fit_part, names, calibrator=calibrator, coverage=COVERAGE, patient=patient
            )
            fitted = [read_labeled(pair, calibrator) for pair in fit_part]
            held = [read_labeled(pairs.pairs[i], calibrator) for i in part]
            _, rows, case_rows = measure(assurance, held, units[part])
            table = pd.DataFrame(rows)
            for s, fit in enumerate(assurance.structures):
                low, high = quantile_regression(fitted, units[inside], held, s)
                own = table.index[table["structure"] == fit.name]
                true = table.loc[own, "true_ml"].to_numpy()
                table.loc[own, "chosen_covered"] = table.loc[own, "covered"]
                table.loc[own, "chosen_width"] = table.loc[own, "upper"] - table.loc[own, "lower"]
                table.loc[own, "quantile regression_covered"] = (
                    (low <= true) & (true <= high)
                ).astype(float)
                table.loc[own, "quantile regression_width"] = high - low
                if volumes_of:
                    fit_ml, new_ml = (
                        np.array([volumes_of[case.name] for case in cases])[..., s]
                        for cases in (fitted, held)
                    )
                    true_ml = np.array([c.voxel_ml * c.true_volume(s) for c in fitted])
                    low, high = ensemble_interval(fit_ml, true_ml, units[inside], new_ml)
                    within = (low <= true) & (true <= high)
                    table.loc[own, "ensemble_covered"] = within.astype(float)
                    table.loc[own, "ensemble_width"] = high - low
                table.loc[own, "method"] = fit.method
                for row, case, i in zip(own, held, part, strict=True):
                    table.loc[row, "expected_ml"] = case.voxel_ml * case.histogram(s).expected
                    ends = table.loc[row, "lower"], table.loc[row, "upper"]
                    table.loc[row, "readers"] = read_share(readers, case, s, *ends)
                    for key, value in mask_rows(
                        case, s, fit.rho, pairs.pairs[i], calibrator
                    ).items():
                        table.loc[row, key] = value
            volumes.append(table)
            cases = pd.DataFrame(case_rows).assign(fold=number)
            if len(members) > 1:
                by_name = [{pair.name: pair for pair in one} for one in members]
                cases["pairwise"] = [
                    pairwise_dice([one[name] for one in by_name], pairs.num_classes)
                    for name in cases["case"]
                ]
            scans.append(cases)
            progress("folds", number, folds)
    volume_table, scan_table = pd.concat(volumes), pd.concat(scans)
    of = dict(zip(scan_table["case"], scan_table["patient"], strict=True))
    return volume_table.assign(patient=volume_table["case"].map(of)), scan_table


def estimate(values: pd.Series, units: pd.Series) -> list[float]:
    return [float(v) for v in mean_interval(values.to_numpy(float), units.to_numpy(str))]


def summarize_network(volumes: pd.DataFrame, scans: pd.DataFrame) -> dict[str, Any]:
    """Means with 95 % intervals over patients."""
    out: dict[str, Any] = {
        "scans": len(scans),
        "patients": int(scans["patient"].nunique()),
        "structures": {},
    }
    for name, table in volumes.groupby("structure", sort=False):
        units = table["patient"]
        thirds, sizes = (
            np.array_split(np.argsort(table[key].to_numpy(), kind="stable"), 3)
            for key in ("difficulty", "expected_ml")
        )
        out["structures"][name] = {
            "intervals": {
                kind: {
                    "coverage": estimate(table[f"{kind}_covered"], units),
                    "width_ml": estimate(table[f"{kind}_width"], units),
                    "median_width_ml": float(table[f"{kind}_width"].median()),
                    "coverage_by_volume": [
                        float(table[f"{kind}_covered"].iloc[third].mean()) for third in sizes
                    ],
                }
                for kind in KINDS
                if f"{kind}_covered" in table
            },
            "chosen": table["method"].value_counts().to_dict(),
            "coverage_by_third": [float(table["chosen_covered"].iloc[t].mean()) for t in thirds],
            "readers_covered": estimate(table["readers"], units),
            "masks": {
                key.removeprefix("mask "): estimate(table[key], units)
                for key in table if key.startswith("mask ")
            },
            "masks_all_scans": {
                key.removeprefix("all "): estimate(table[key], units)
                for key in table if key.startswith("all ")
            },
            "empty_where_absent": {
                key.removeprefix("empty "): float(table[key].mean())
                for key in table if key.startswith("empty ") and table[key].notna().any()
            },
        }  # fmt: skip
    known = scans.dropna(subset=["expected_dice", "dice"])
    error = known["expected_dice"] - known["dice"]
    out["expected_dice"] = {
        "absolute_error": estimate(error.abs(), known["patient"]),
        "bias": estimate(error, known["patient"]),
        "correlation": float(known["expected_dice"].corr(known["dice"])),
    }
    scores = {
        "expected Dice": "expected_dice",
        "mean confidence": "confidence",
        "pairwise Dice": "pairwise",
        "best": "dice",
    }
    # Of each fold: scans of several folds, whose expected Dice is corrected by different lines,
    # have no common order.
    folds = [part.fillna(dict.fromkeys(scores.values(), 0)) for _, part in known.groupby("fold")]
    out["aurc"] = {
        title: float(np.mean([risk_coverage(part[key], 1 - part["dice"]).aurc for part in folds]))
        for title, key in scores.items() if key in known
    }  # fmt: skip
    return out


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n## {name}: {found['scans']} scans of {found['patients']} patients\n")
    print("| structure | interval | coverage | by volume | mean, median width, ml |")
    print("|---|---|---:|---:|---:|")
    for structure, one in found["structures"].items():
        for kind, values in one["intervals"].items():
            mean, low, high = values["coverage"]
            by_volume = ", ".join(f"{share:.2f}" for share in values["coverage_by_volume"])
            width = f"{values['width_ml'][0]:.3g}, {values['median_width_ml']:.3g}"
            spread = f"{mean:.3f} [{low:.3f}, {high:.3f}]"
            print(f"| {structure} | {kind} | {spread} | {by_volume} | {width} |")
        print(f"| {structure} | by difficulty | {one['coverage_by_third']} | {one['chosen']} |")
        masks = ", ".join(f"{key} {value[0]:.4f}" for key, value in one["masks"].items())
        print(f"\nreaders in the chosen interval: {one['readers_covered']}")
        print(f"Dice of masks of {structure}: {masks}")
        masks = ", ".join(f"{key} {value[0]:.4f}" for key, value in one["masks_all_scans"].items())
        print(f"of all scans, both empty = 1: {masks}")
        print(f"empty where it is absent: {one['empty_where_absent']}\n")
    print("expected Dice:", found["expected_dice"], "\nAURC:", found["aurc"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="+", metavar="NAME=PROBS[,PROBS…]")
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument(
        "--patient", required=True, help="regular expression of the patient in a case name"
    )
    parser.add_argument("--readers", type=Path)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--calibrator", default="temperature", help="method to fit in each fold")
    parser.add_argument("--out", default="assurance_cpu.json")
    args = parser.parse_args()
    out = RESULTS / args.out
    results = json.loads(out.read_text())["results"] if out.is_file() else {}
    readers = [] if args.readers is None else sorted(args.readers.glob("*/*.nii*"))
    for text in args.methods:
        method, _, folders = text.partition("=")
        members = [find_pairs(Path(folder), args.labels) for folder in folders.split(",")]
        volumes_of = member_volumes(members) if len(members) > 1 else {}
        for number, pairs in enumerate(members):
            names = list(class_names(pairs.folder, pairs.num_classes, None))
            found = cross_validate(
                pairs,
                members,
                readers,
                args.patient,
                args.folds,
                names,
                args.calibrator,
                volumes_of,
            )
            name = f"{method}_{number}"
            results[name] = summarize_network(*found) | {"networks": len(members)}
            show(name, results[name])
    write_results(out, {"environment": environment(), "folds": args.folds, "results": results})


if __name__ == "__main__":
    main()
