"""Study folders made of synthetic volumes, measured by the real metrics: what reports read.

A true field of probabilities is drawn per case, and labels from it. A fake method distorts the
field: sharper logits are over-confident, flatter ones under-confident, noise costs accuracy.
"""

import csv
import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

from segcal.metrics import COLUMNS, REGIONS, CalibrationBins, Row, evaluate_case, pool_cases

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
    """What to make."""

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
    """Write a study as the contract says; runs named in `fail` ("acdc/ls/seed1") have failed."""
    recipe = recipe or Recipe()
    rows: list[Row] = []
    runs = []
    for dataset in recipe.datasets:
        for method in recipe.methods:
            for seed in recipe.seeds:
                name = f"{dataset.name}/{method.name}/seed{seed}"
                run = {
                    "run": name, "method": method.name, "dataset": dataset.name, "seed": seed,
                    "folder": f"runs/{name}", "state": "done", "error": "", "seconds": 40.1,
                }  # fmt: skip
                if name in recipe.fail:
                    run |= {"state": "failed", "error": "loss became NaN in epoch 3 <b>here</b>"}
                else:
                    rows += write_run(folder / "runs" / name, name, method, dataset, seed, recipe)
                runs.append(run)
    write_rows(folder / "cases.csv", rows)
    study = {
        "format": "segcal-study", "version": 1, "kind": recipe.kind, "title": recipe.title,
        "note": "Made of synthetic volumes.", "split": "test", "region": "foreground",
        "metrics": ["dsc", "hd95_mm", "ece", "cece"],
        "datasets": [
            {
                "name": d.name, "title": d.title, "source": d.source, "labels": d.labels,
                "structures": d.labels[1:], "fingerprint": "0123456789abcdef",
            }
            for d in recipe.datasets
        ],
        "methods": [
            {
                "name": m.name, "title": m.title, "paper": m.paper, "group": m.group,
                "options": {"sharp": m.sharp},
                "chosen_from": [{"options": {"sharp": s}, "val_dsc": 0.8 + s / 100} for s in (1, 2)]
                if m is LS else [],
            }
            for m in recipe.methods
        ],
        "runs": runs, "tables": ["main", "classes", "ablation", "priors"],
        "environment": {
            "device": "cpu", "versions": {"numpy": np.__version__}, "commit": "abc1234",
            "segcal": "0.1",
        },
    } | recipe.extra  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study, indent=1), encoding="utf-8")
    return folder


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def write_run(
    folder: Path, run: str, method: Fake, dataset: FakeSet, seed: int, recipe: Recipe
) -> list[Row]:
    """One run folder: cases.csv, bins.npz, slices.npz, evaluation.json."""
    folder.mkdir(parents=True)
    results, more, names, truth_bins = [], [], [], []
    slices: dict[str, Array] = {}
    for index in range(recipe.cases):
        case = case_name(dataset, index, recipe)
        volume = make_case(dataset, index, recipe.shape)
        logits = distort(volume.field, method, seed, index)
        probs = softmax(logits)
        who = (run, method.name, seed, dataset.name, case)
        result = evaluate_case(
            probs, volume.target, volume.spacing_mm, case=case, run=run, method=method.name,
            seed=seed, dataset=dataset.name,
            groups={n: [k] for k, n in enumerate(dataset.labels) if k},
        )  # fmt: skip
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
        z = int(np.argmax((volume.target > 0).sum((1, 2))))
        slices |= {
            f"image_{index}": to_bytes(volume.image[z]),
            f"truth_{index}": volume.target[z].astype(np.uint8),
            f"labels_{index}": probs.argmax(0)[z].astype(np.uint8),
            f"confidence_{index}": np.round(255 * probs.max(0)[z]).astype(np.uint8),
            f"spacing_{index}": np.asarray(volume.spacing_mm[1:], float),
        }
    rows = [row for result in results for row in result.rows] + more + pool_cases(results)
    write_rows(folder / "cases.csv", rows)
    if recipe.bins:
        write_bins(folder / "bins.npz", names, dataset, results, truth_bins)
    if recipe.slices:
        np.savez_compressed(folder / "slices.npz", cases=np.array(names), **slices)
    (folder / "evaluation.json").write_text(
        json.dumps({"format": "segcal-evaluation", "version": 1, "run": run}), encoding="utf-8"
    )
    return rows


def write_bins(
    path: Path, names: list[str], dataset: FakeSet, results: list[Any], truth: list[Any]
) -> None:
    keys = list(CalibrationBins(2).state())
    states = [[r.statistics[region].bins.state() for region in REGIONS] for r in results]
    stacks = {key: np.stack([[state[key] for state in case] for case in states]) for key in keys}
    if truth:
        stacks |= {f"truth_{key}": np.stack([[state[key]] for state in truth]) for key in keys}
    np.savez_compressed(
        path, cases=np.array(names), regions=np.array(list(REGIONS)),
        labels=np.array(dataset.labels), **stacks,
    )  # fmt: skip


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


def to_bytes(image: Array) -> Array:
    low, high = np.percentile(image, (1, 99))
    return np.round(255 * np.clip((image - low) / (high - low), 0, 1)).astype(np.uint8)


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
