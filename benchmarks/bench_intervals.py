"""How often intervals over patients contain the true value, by simulation. One run:

python benchmarks/bench_intervals.py

Compares the intervals of segcal with the percentile bootstrap (1,000 draws of patients), for the
pooled ECE of an audit, the accuracy at a stated confidence, and the difference between two test
sets. Prints a table and writes benchmarks/results/intervals_cpu.json.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from _common import RESULTS, environment, write_results
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import expit, logit

from segcal.report.findings.verdict import judge
from segcal.stats import pooled_proportion, unpaired_difference

Floats = NDArray[np.float64]
Ends = tuple[float, float]
CONFIDENCE = (np.arange(15) + 0.5) / 15
# Shares of the bins in an organ that a network calls with mostly high confidence.
SHARES = np.array([0, 0, 0, 0, 0, 5, 10, 10, 15, 20, 20, 30, 50, 100, 740]) / 1000
TRIALS, DRAWS = 2000, 1000
# Spread of log volume over patients, of their error, and the correlation of both.
PATIENTS = {
    "equal": (0.0, 0.5, 0.0),
    "different": (0.5, 1.0, 0.0),
    "large are worse": (1.0, 1.0, -0.5),
    "large are better": (1.0, 1.0, 0.5),
}


def draw_patients(rng: np.random.Generator, n: int, kind: str) -> tuple[Floats, Floats]:
    """Relative volumes, and standard normal qualities that may depend on them."""
    spread, scale, correlation = PATIENTS[kind]
    z, own = rng.normal(size=(2, n))
    quality = correlation * z + np.sqrt(1 - correlation**2) * own
    return np.exp(spread * z), scale * quality


def organ_bins(rng: np.random.Generator, n: int, kind: str, gap: float) -> Floats:
    """Sums (3, n, 15) of patients whose confidence exceeds their accuracy by `gap` on average."""
    volume, quality = draw_patients(rng, n, kind)
    shares = SHARES * np.where(np.arange(15) < 14, np.exp(0.5 * rng.normal(size=(n, 1))), 1)
    count = np.round(20_000 * volume[:, None] * shares / shares.sum(axis=1, keepdims=True))
    right = np.clip(CONFIDENCE - gap + 0.05 * quality[:, None], 0, 1)
    return np.stack([count, count * CONFIDENCE, rng.binomial(count.astype(int), right)])


def accuracies(rng: np.random.Generator, n: int, kind: str, mean: float) -> Floats:
    """Sums (2, n) of voxels and of right ones."""
    volume, quality = draw_patients(rng, n, kind)
    count = np.maximum(np.round(2000 * volume), 1)
    return np.stack([count, rng.binomial(count.astype(int), expit(logit(mean) + 0.7 * quality))])


def pooled_ece(sums: Floats) -> Any:
    """Of sums (…, 3, 15)."""
    return np.abs(sums[..., 1, :] - sums[..., 2, :]).sum(-1) / sums[..., 0, :].sum(-1)


def bootstrap(rng: np.random.Generator, rows: Floats, statistic: Callable[[Floats], Any]) -> Ends:
    """The percentile interval of a statistic of sums over patients, the first axis of `rows`."""
    n = len(rows)
    times = rng.multinomial(n, np.full(n, 1 / n), DRAWS)
    low, high = np.quantile(statistic(np.tensordot(times, rows, 1)), [0.025, 0.975])
    return low, high


def cover(truth: float, ends: Sequence[Ends]) -> dict[str, float]:
    """Coverage in percent, and how often the truth is below or above the interval."""
    low, high = np.array(ends).T
    below, above = 100 * np.mean(truth < low), 100 * np.mean(truth > high)
    return {
        "coverage": round(100 - below - above, 1), "below": round(below, 1),
        "above": round(above, 1), "width": float(np.mean(high - low)),
    }  # fmt: skip


def simulate_ece(rng: np.random.Generator, n: int, kind: str, gap: float) -> dict[str, Any]:
    truth = float(pooled_ece(organ_bins(rng, 400_000, kind, gap).sum(axis=1)))
    own, other = [], []
    for _ in range(TRIALS):
        sums = organ_bins(rng, n, kind, gap)
        own.append(judge(sums).error[1:])
        other.append(bootstrap(rng, np.moveaxis(sums, 1, 0), pooled_ece))
    trusted = np.mean([high <= 0.05 for _, high in own])
    return {
        "quantity": "pooled ECE", "patients": n, "kind": kind, "truth": truth,
        "segcal": cover(truth, own), "bootstrap": cover(truth, other), "trusted": float(trusted),
        "trusted_by_bootstrap": float(np.mean([high <= 0.05 for _, high in other])),
    }  # fmt: skip


def simulate_accuracy(rng: np.random.Generator, n: int, kind: str, mean: float) -> dict[str, Any]:
    count, right = accuracies(rng, 1_000_000, kind, mean).sum(axis=1)
    truth, own, other = float(right / count), [], []
    for _ in range(TRIALS):
        sums = accuracies(rng, n, kind, mean)
        own.append(pooled_proportion(sums[1], sums[0])[1:])
        other.append(bootstrap(rng, sums.T, lambda drawn: drawn[:, 1] / drawn[:, 0]))
    return {
        "quantity": "accuracy", "patients": n, "kind": kind, "truth": truth,
        "segcal": cover(truth, own), "bootstrap": cover(truth, other),
    }  # fmt: skip


def simulate_change(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Two sets of `n` and 40 patients, with one or two scans each, and another spread."""
    own, other = [], []
    for _ in range(TRIALS):
        sides, units, drawn = [], [], []
        for patients, spread, mean in ((40, 0.05, 0.9), (n, 0.15, 0.8)):
            scans = rng.integers(1, 3, patients)
            values = np.repeat(mean + spread * rng.normal(size=patients), scans)
            values += 0.03 * rng.normal(size=len(values))
            names = np.repeat(np.arange(patients), scans)
            sides.append(values)
            units.append(names.astype(str))
            rows = np.stack([np.bincount(names, values), scans.astype(float)], 1)
            times = rng.multinomial(patients, np.full(patients, 1 / patients), DRAWS)
            total, number = (times @ rows).T
            drawn.append(total / number)
        own.append(unpaired_difference(*sides, tuple(units))[1:])
        other.append(tuple(np.quantile(drawn[1] - drawn[0], [0.025, 0.975])))
    return {
        "quantity": "change", "patients": n, "kind": "one or two scans", "truth": -0.1,
        "segcal": cover(-0.1, own), "bootstrap": cover(-0.1, other),
    }  # fmt: skip


def main() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for n in (5, 10, 20, 40):
        if n > 5:
            rows += [simulate_ece(rng, n, kind, 0.06) for kind in PATIENTS]
        rows += [simulate_accuracy(rng, n, kind, 0.97) for kind in PATIENTS]
        rows.append(simulate_change(rng, n))
    table = Table("quantity", "patients", "kind", "truth", "segcal, %", "bootstrap, %")
    for row in rows:
        cells = [f"{row[key]['coverage']:.1f}" for key in ("segcal", "bootstrap")]
        patients, truth = str(row["patients"]), f"{row['truth']:.3f}"
        table.add_row(row["quantity"], patients, row["kind"], truth, *cells)
    Console().print(table)
    results = {"environment": environment(), "trials": TRIALS, "draws": DRAWS, "rows": rows}
    write_results(RESULTS / "intervals_cpu.json", results)


if __name__ == "__main__":
    main()
