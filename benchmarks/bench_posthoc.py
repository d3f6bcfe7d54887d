"""Fits on 50 million voxels in bounded memory; comparisons with netcal and scipy on one sample.

    python benchmarks/bench_posthoc.py [--voxels 50000000] [--out FILE]
    python benchmarks/bench_posthoc.py --one optimizers     # Newton's method against scipy

Every fit runs in a separate process, so its peak memory is that of the fit. Cases are generated one
at a time, as files would be read, so no process ever holds all voxels.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, environment, summary, time_once, write_results

CLASSES = 4
CASE = (50, 100, 100)  # half a million voxels
TRUE_TEMPERATURE = 2.5
SAMPLE = 1_000_000
METHODS = ("temperature", "vector", "dirichlet", "matrix")


class Cases:
    """Calibrated logits times the true temperature, generated again in every pass; float32."""

    def __init__(self, voxels: int) -> None:
        self.count = max(voxels // int(np.prod(CASE)), 1)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (make_case(seed) for seed in range(self.count))


def make_case(seed: int, shape: tuple[int, ...] = CASE) -> tuple[Any, Any]:
    """Mostly background, as scans are; labels drawn from the softmax."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((CLASSES, *shape), dtype=np.float32) * 1.5
    logits[0] += 3
    e = np.exp(logits)
    cdf = e.cumsum(0) / e.sum(0)
    target = (rng.random(shape, dtype=np.float32) > cdf).sum(0).clip(max=CLASSES - 1)
    return logits * np.float32(TRUE_TEMPERATURE), target.astype(np.uint8)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit_many(method: str, voxels: int, sampled: bool) -> dict[str, Any]:
    """One fit on generated cases."""
    from segcal.posthoc import make_calibrator

    cases = Cases(voxels)
    next(iter(cases))  # the memory of one case is the generator's, not the fit's
    start_mib = peak_mib()
    generating = time_once(lambda: [None for _ in cases])
    calibrator = make_calibrator(method)
    start = time.perf_counter()
    calibrator.fit(cases, max_voxels=SAMPLE if sampled else None)
    seconds = time.perf_counter() - start
    report = calibrator.report
    assert report is not None
    return {
        "method": method,
        "voxels": report.voxels,
        "used": report.used,
        "mode": "sample" if sampled else "stream",
        "seconds": seconds,
        "seconds_to_generate_one_pass": generating,
        "iterations": report.iterations,
        "peak_mib": peak_mib(),
        "peak_mib_before": start_mib,
        "params": calibrator.params(),
        "nll": [report.nll_before, report.nll_after],
    }


def sample_rows(size: int) -> tuple[Any, Any]:
    logits, target = make_case(0, (size,))
    return logits.astype(np.float64), target.astype(np.int64)


def compare_netcal(size: int, repeats: int) -> list[dict[str, Any]]:
    """Each method and netcal on the same sample in memory."""
    from netcal.scaling import TemperatureScaling as Netcal

    from segcal.posthoc import make_calibrator

    logits, target = sample_rows(size)
    e = np.exp(logits - logits.max(0))
    probs = e / e.sum(0)
    rows = np.ascontiguousarray(probs.T)

    def nll(calibrated: Any) -> float:
        picked = np.take_along_axis(calibrated, target[None], 0)
        return float(-np.log(np.maximum(picked, 1e-12)).mean())

    out = []
    for method in ("temperature", "vector", "dirichlet"):

        def run(method: str = method) -> Any:
            return make_calibrator(method).fit(
                [(probs, target)], from_probs=True, max_voxels=2 * size
            )

        found = run()
        times = [time_once(run) for _ in range(repeats)]
        after = nll(found.transform(probs, from_probs=True))
        out.append({"library": "segcal", "method": method, **summary(times), "nll": after})

    def fit_netcal() -> Any:
        other = Netcal()
        other.fit(rows, target)
        return other

    other = fit_netcal()
    times = [time_once(fit_netcal) for _ in range(repeats)]
    after = nll(other.transform(rows).T)
    out.append({"library": "netcal", "method": "temperature", **summary(times), "nll": after})
    return out


class Problem:
    """The objective of one method on one sample, and the optimizers to compare."""

    def __init__(self, method: str, logits: Any, target: Any) -> None:
        from segcal.posthoc import Sample, make_calibrator

        self.calibrator: Any = make_calibrator(method)
        sample = Sample(max_voxels=2 * len(target), space=self.calibrator.space)
        self.voxels = sample.add((logits, target)).select()
        parameters = self.calibrator._parameters(CLASSES)
        _, self.start, self.lower, self.upper, self.penalty = parameters
        self.passes = 0

    def second_order(self, theta: Any) -> tuple[float, Any, Any]:
        self.passes += 1
        value, gradient, hessian = self.calibrator._mean(theta, self.voxels)
        return (
            value + float(self.penalty @ theta**2),
            gradient + 2 * self.penalty * theta,
            hessian + np.diag(2 * self.penalty),
        )

    def first_order(self, theta: Any) -> tuple[float, Any]:
        """Without the Hessian, which L-BFGS-B does not need."""
        self.passes += 1
        value = total = 0.0
        gradient = np.zeros(len(theta))
        for rows, labels, weights in self.voxels.blocks():
            logits = self.calibrator._logits(theta, rows)
            logits = logits - logits.max(0)
            e = np.exp(logits)
            normalizer, index = e.sum(0), np.arange(len(labels))
            value += float(weights @ (np.log(normalizer) - logits[labels, index]))
            residual = e / normalizer
            residual[labels, index] -= 1
            residual *= weights
            if len(theta) == 1:
                gradient += (residual * rows).sum()
            elif len(theta) == 2 * CLASSES:
                gradient += np.concatenate([(residual * rows).sum(1), residual.sum(1)])
            else:
                inputs = np.concatenate([rows, np.ones((1, rows.shape[1]))])
                gradient += (residual @ inputs.T).ravel()
            total += float(weights.sum())
        return (
            value / total + float(self.penalty @ theta**2),
            gradient / total + 2 * self.penalty * theta,
        )

    def newton(self) -> Any:
        from segcal.posthoc._newton import minimize

        return minimize(self.second_order, self.start, self.lower, self.upper).theta

    def lbfgs(self) -> Any:
        from scipy.optimize import minimize

        return minimize(
            self.first_order, self.start, jac=True, method="L-BFGS-B",
            bounds=list(zip(self.lower, self.upper, strict=True)),
            options={"maxiter": 5000, "maxfun": 5000, "ftol": 1e-15, "gtol": 1e-9},
        ).x  # fmt: skip

    def trust(self) -> Any:
        from scipy.optimize import Bounds, minimize

        memory: dict[bytes, Any] = {}

        def cached(theta: Any) -> Any:
            key = theta.tobytes()
            if key not in memory:
                memory.clear()
                memory[key] = self.second_order(theta)
            return memory[key]

        return minimize(
            lambda theta: cached(theta)[:2], self.start, jac=True,
            hess=lambda theta: cached(theta)[2], method="trust-constr",
            bounds=Bounds(self.lower, self.upper, keep_feasible=True),
            options={"gtol": 1e-9, "xtol": 1e-12, "maxiter": 500},
        ).x  # fmt: skip


def compare_optimizers(size: int, repeats: int) -> list[dict[str, Any]]:
    """Newton's method against scipy, on a sample in memory; separable labels end at the bounds."""
    import scipy.optimize  # noqa: F401  its import is not measured

    logits, target = sample_rows(size)
    out = []
    for labels, truth in (("drawn", target), ("separable", logits.argmax(0))):
        for method in METHODS:
            problem = Problem(method, logits, truth)
            runs = {
                "newton": problem.newton,
                "L-BFGS-B": problem.lbfgs,
                "trust-constr": problem.trust,
            }
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(repeats):  # interleaved, so that a busy machine affects all alike
                for name, run in runs.items():
                    times[name].append(time_once(run))
            best = problem.newton()
            for name, run in runs.items():
                problem.passes = 0
                theta = run()
                row = {"labels": labels, "method": method, "optimizer": name}
                ratio = float(np.median(times[name]) / np.median(times["newton"]))
                row |= {"time_relative_to_newton": ratio, "passes": problem.passes}
                value, least = problem.second_order(theta)[0], problem.second_order(best)[0]
                row |= {"nll_above_newton": value - least}
                row |= {"max_parameter_difference": float(np.abs(theta - best).max())}
                out.append({**row, **summary(times[name])})
    return out


def in_own_process(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voxels", type=int, default=50_000_000)
    parser.add_argument(
        "--sample",
        type=int,
        default=500_000,
        help="voxels of the comparisons with netcal and scipy",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "posthoc_cpu.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one == "netcal":
        print(json.dumps(compare_netcal(options.sample, options.repeats)))
        return
    if options.one == "optimizers":
        print(json.dumps(compare_optimizers(options.sample, options.repeats), indent=1))
        return
    if options.one:
        print(json.dumps(fit_many(options.one, options.voxels, not options.stream)))
        return
    large = []
    for method in METHODS:
        large.append(in_own_process("--one", method, "--voxels", options.voxels))
        print(large[-1], flush=True)
    for voxels in (options.voxels // 10, options.voxels):
        large.append(in_own_process("--one", "temperature", "--voxels", voxels, "--stream"))
        print(large[-1], flush=True)
    size = ("--sample", options.sample, "--repeats", options.repeats)
    netcal = in_own_process("--one", "netcal", *size)
    optimizers = in_own_process("--one", "optimizers", *size)
    for row in (*netcal, *optimizers):
        print(row, flush=True)
    write_results(
        options.out,
        {
            "what": f"fits on {options.voxels:,} voxels, K = {CLASSES}, true temperature "
            f"{TRUE_TEMPERATURE}; and on {options.sample:,} voxels, with netcal and scipy",
            "environment": environment(),
            "large": large,
            "netcal": {"voxels": options.sample, "rows": netcal},
            "optimizers": {"voxels": options.sample, "rows": optimizers},
        },
    )


if __name__ == "__main__":
    main()
