"""Study folders of synthetic volumes, measured by the real metrics and written by the real writers.

Each case has a field of true probabilities from which its labels are drawn. A fake method distorts
the field: sharper logits are over-confident, flatter ones under-confident, noise costs accuracy.
"""

import csv
import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from segcal.core.files import write_json
from segcal.evaluation.case_metrics import PredictedCase, evaluate_predicted_case
from segcal.metrics import COLUMNS, REGIONS, CalibrationBins, CaseOptions, Row, pool_cases
from segcal.study import (
    Candidate,
    Dataset,
    EvaluationInfo,
    Method,
    Run,
    StudyFile,
    StudyWriter,
    write_evaluation_files,
)

Array = npt.NDArray[Any]
EVIL = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Fake:
    """A method: how much its logits are sharpened and how noisy they are."""

    name: str
    title: str
    sharp: float = 1.0
    noise: float = 0.5
    group: str = "main"
    paper: str | None = None


CE = Fake("ce_dice", "CE+Dice", sharp=4.0, noise=0.9, paper="CE+DSC")
LS = Fake("ls", "LS (α = 0.1)", sharp=0.45, noise=0.7, paper="LS .1")
NACL = Fake("nacl", "NACL (λ = 0.1)", sharp=1.0, noise=0.45, paper="NACL .1")
SVLS = Fake("svls", "SVLS (σ = 2)", sharp=1.6, noise=0.6, paper="SVLS σ2")
L2 = Fake(
    "nacl_l2", "quadratic penalty", sharp=1.3, noise=0.5, group="ablation", paper="L2-penalty"
)
MAX = Fake("nacl_max", "max prior", sharp=0.8, noise=0.5, group="prior", paper="prior max")
TEMPERED = Fake("ce_dice+temperature", "CE+Dice, temperature", 1.1, 0.9, group="posthoc")
METHODS = (CE, LS, SVLS, NACL, L2, MAX, TEMPERED)


@dataclass(frozen=True)
class FakeSet:
    """A dataset: its source, classes and whether the truth is known."""

    name: str
    title: str
    source: str
    labels: tuple[str, ...]
    truth: bool = False


ACDC = FakeSet("acdc", "ACDC", "acdc", ("background", "RV", "MYO", "LV"))
PHANTOM = FakeSet(
    "phantom", "Phantom", "phantom", ("background", "liver", "kidney", "spleen"), truth=True
)


@dataclass
class Recipe:
    """The content of a study."""

    methods: tuple[Fake, ...] = METHODS
    datasets: tuple[FakeSet, ...] = (ACDC, PHANTOM)
    seeds: tuple[int, ...] = (0, 1)
    cases: int = 8
    shape: tuple[int, int, int] = (8, 40, 40)
    kind: str = "benchmark"
    title: str = "Calibration of synthetic methods"
    fail: tuple[str, ...] = ()
    slices: bool = True
    bins: bool = True
    logits: bool = True
    evil: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


def make_study(folder: Path, recipe: Recipe | None = None) -> Path:
    """Write a study; runs named in `fail` ("acdc/ls/seed1") have failed."""
    recipe = recipe or Recipe()
    runs = []
    for dataset in recipe.datasets:
        for method in recipe.methods:
            for seed in recipe.seeds:
                name = f"{dataset.name}/{method.name}/seed{seed}"
                run = Run(
                    run=name, method=method.name, dataset=dataset.name, seed=seed,
                    folder=f"runs/{name}", seconds=40.1,
                )  # fmt: skip
                if name in recipe.fail:
                    error = "loss became NaN in epoch 3 <b>here</b>"
                    run = run.model_copy(update={"state": "failed", "error": error})
                else:
                    write_run(folder / "runs" / name, name, method, dataset, seed, recipe)
                runs.append(run)
    content = StudyFile(
        format="segcal-study",
        version=1,
        kind=recipe.kind,
        title=recipe.title,
        note="Made of synthetic volumes.",
        region="foreground",
        datasets=tuple(
            Dataset(
                name=d.name, title=d.title, source=d.source, labels=d.labels,
                structures=d.labels[1:], fingerprint="0123456789abcdef",
            )
            for d in recipe.datasets
        ),
        methods=tuple(map(describe_method, recipe.methods)),
        runs=tuple(runs),
        tables=("main", "classes", "ablation", "priors"),
        environment={
            "device": "cpu", "versions": {"numpy": np.__version__}, "commit": "abc1234",
            "segcal": "0.1",
        },
    )  # fmt: skip
    write_study(folder, content, recipe.extra)
    return folder


def describe_method(method: Fake) -> Method:
    searched = [Candidate(options={"sharp": s}, val_dsc=0.8 + s / 100) for s in (1, 2)]
    return Method(
        name=method.name, title=method.title, paper=method.paper, group=method.group,
        options={"sharp": method.sharp}, chosen_from=tuple(searched) if method is LS else (),
    )  # fmt: skip


def write_study(folder: Path, content: StudyFile, extra: dict[str, Any]) -> None:
    """Write study.json and cases.csv; `extra` replaces keys of study.json, also by invalid ones."""
    StudyWriter(folder).write(content, complete=True)
    written = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    write_json(folder / "study.json", written | extra)


def write_run(
    folder: Path, run: str, method: Fake, dataset: FakeSet, seed: int, recipe: Recipe
) -> None:
    """Write the evaluation of one run."""
    results, more, names, truth_bins = [], [], [], []
    slices: dict[str, Array] = {}
    for index in range(recipe.cases):
        case = case_name(dataset, index, recipe)
        volume = make_case(dataset, index, recipe.shape)
        logits = distort(volume.field, method, seed, index)
        probs = softmax(logits)
        who = (run, method.name, seed, dataset.name, case)
        result, picture = evaluate_predicted_case(
            PredictedCase(case, probs, volume.target, volume.spacing_mm, volume.image),
            {"run": run, "method": method.name, "seed": seed, "dataset": dataset.name},
            groups={n: [k] for k, n in enumerate(dataset.labels) if k}, options=CaseOptions(),
        )  # fmt: skip
        slices |= {f"{key}_{index}": array for key, array in picture.items()}
        results.append(result)
        names.append(case)
        if recipe.logits:
            size = np.abs(logits).mean(0)
            for k in range(len(dataset.labels)):
                inside = size[volume.target == k]
                value = float(inside.mean()) if inside.size else float("nan")
                more.append(Row(*who, str(k), "all", "mean_abs_logit", value))
        if dataset.truth:
            true = softmax(volume.field)
            bins = CalibrationBins(len(dataset.labels)).update(
                probs[None].astype(np.float64), true[None], batched=True
            )
            truth_bins.append(bins.state())
            kl = float(
                (true * np.log(np.clip(true, 1e-12, 1) / np.clip(probs, 1e-12, 1))).sum(0).mean()
            )
            for metric, value in (
                ("truth_ece", bins.ece()), ("truth_cece", bins.cece()),
                ("truth_mae", float(np.abs(probs - true).mean())), ("truth_kl", kl),
            ):  # fmt: skip
                more.append(Row(*who, "all", "all", metric, value))
    rows = [row for result in results for row in result.rows] + more + pool_cases(results)
    info = EvaluationInfo(
        run=run, method=method.name, seed=seed, dataset=dataset.name, split="test",
        regions=tuple(REGIONS), options={}, labels=dataset.labels, structures=dataset.labels[1:],
        case_names=tuple(names), undefined={}, seconds=1.0, versions={}, commit=None,
    )  # fmt: skip
    stacked = stack_bins(names, dataset, results, truth_bins)
    write_evaluation_files(folder, info, rows, stacked, {"cases": np.array(names), **slices})
    for name, wanted in (("bins.npz", recipe.bins), ("slices.npz", recipe.slices)):
        if not wanted:
            (folder / name).unlink()


def stack_bins(
    names: list[str], dataset: FakeSet, results: list[Any], truth: list[Any]
) -> dict[str, Array]:
    """The arrays of bins.npz."""
    keys = list(CalibrationBins(2).state())
    states = [[r.statistics[region].bins.state() for region in REGIONS] for r in results]
    stacks = {key: np.stack([[state[key] for state in case] for case in states]) for key in keys}
    if truth:
        stacks |= {f"truth_{key}": np.stack([[state[key]] for state in truth]) for key in keys}
    levels = [result.levels.state() for result in results]
    stacks |= {key: np.stack([state[key] for state in levels]) for key in levels[0]}
    return {
        "cases": np.array(names), "regions": np.array(list(REGIONS)),
        "labels": np.array(dataset.labels), **stacks,
    }  # fmt: skip


def case_name(dataset: FakeSet, index: int, recipe: Recipe) -> str:
    return EVIL if recipe.evil and index == 1 else f"{dataset.name}_{index:03d}"


@dataclass
class Volume:
    field: Array
    target: Array
    image: Array
    spacing_mm: tuple[float, float, float]


@lru_cache(maxsize=64)
def make_case(dataset: FakeSet, index: int, shape: tuple[int, int, int]) -> Volume:
    """Blobs with soft rims; in case 2 the last structure is absent (its distance is undefined)."""
    rng = np.random.default_rng([index, *dataset.name.encode()])
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    logits = np.zeros((len(dataset.labels), *shape))
    angle = rng.uniform(0, 0.6)
    for k in range(1, len(dataset.labels)):
        turn = angle + 2 * np.pi * k / (len(dataset.labels) - 1)
        centre = 0.42 * np.array([np.sin(turn), np.cos(turn)])
        radius = rng.uniform(0.24, 0.36)
        distance = np.hypot(np.hypot(y - centre[0], x - centre[1]), 0.35 * z) - radius
        logits[k] = -30 * distance
        if index == 2 and k == len(dataset.labels) - 1:
            logits[k] = -12.0
    logits[1:] += (
        gaussian_filter(rng.normal(size=(len(dataset.labels) - 1, *shape)), (0, 1, 3, 3)) * 8
    )
    true = softmax(logits)
    # One threshold field per case, smooth: outlines as a rater draws them.
    noise = gaussian_filter(rng.gumbel(size=logits.shape), (0, 1, 2, 2))
    noise = noise / noise.std() * 1.2
    target = (np.log(np.clip(true, 1e-9, 1)) + noise).argmax(0)
    image = gaussian_filter(target * 0.5 + rng.normal(0, 0.35, shape), (0, 0.8, 0.8))
    return Volume(logits, target, image, (5.0, 1.5, 1.5))


def distort(field: Array, method: Fake, seed: int, index: int) -> Array:
    rng = np.random.default_rng([seed, index, *method.name.split("+")[0].encode()])
    noise = gaussian_filter(rng.normal(size=field.shape), (0, 1, 2, 2))
    return method.sharp * (field + method.noise * noise / noise.std())


def softmax(logits: Array) -> Array:
    e = np.exp(logits - logits.max(0))
    return np.asarray(e / e.sum(0))


def enlarge(folder: Path, source: Path, cases: int) -> Path:
    """A copy of a study (without pictures) whose cases are repeated, with jitter, up to `cases`."""
    rng = np.random.default_rng(0)
    study = json.loads((source / "study.json").read_text(encoding="utf-8"))
    with (source / "cases.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["case"] != "pooled"]
    names = list(dict.fromkeys(row["case"] for row in rows))
    times = -(-cases // len(names))
    factors = rng.uniform(0.97, 1.03, (times, len(rows)))
    folder.mkdir(parents=True)
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for t in range(times):
            kept = {f"{name}": f"{name}-{t}" for name in names[: cases - t * len(names)]}
            for row, factor in zip(rows, factors[t], strict=True):
                if row["case"] in kept:
                    head = [row[c] for c in COLUMNS[:-1]]
                    head[COLUMNS.index("case")] = kept[row["case"]]
                    writer.writerow([*head, min(float(row["value"]) * factor, 1e6)])
    for run in study["runs"]:
        with np.load(source / run["folder"] / "bins.npz") as file:
            arrays = dict(file)
        n = len(arrays["cases"])
        many = {
            k: np.concatenate([v] * times)[:cases]
            if len(v) == n and k not in ("regions", "labels")
            else v
            for k, v in arrays.items()
        }
        many["cases"] = np.array(
            [f"{c}-{t}" for t in range(times) for c in arrays["cases"]][:cases]
        )
        (folder / run["folder"]).mkdir(parents=True)
        np.savez_compressed(folder / run["folder"] / "bins.npz", **many)
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
    return folder
