"""Somebody else's predictions as a study that `segcal report` shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segcal import __version__
from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, write_json, write_text
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.provenance import git_commit, versions
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluation_files import Evaluation, write_evaluation
from segcal.metrics import REGIONS, confidence_verdict
from segcal.posthoc import to_probs
from segcal.predictions.pairing import Pairs, find_pairs
from segcal.stats import patients_of

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("dsc", "hd95_mm", "ece", "cece")


@dataclass(frozen=True)
class Audited:
    """A finished audit: the study's folder, and by title what was measured of each network."""

    folder: Path
    region: str
    networks: dict[str, Evaluation]
    unused: tuple[str, ...]
    has_spacing: bool = True

    def lines(self) -> Iterator[str]:
        """One line per network for people."""
        for title, found in self.networks.items():
            mean = found.means(self.region)
            gap = mean["signed_gap"]
            yield (
                f"{title}: {found.about['cases']} cases; region {self.region}: ECE "
                f"{mean['ece']:.4f}, CECE {mean['cece']:.4f}, NLL {mean['nll']:.4f}; confidence "
                f"{100 * abs(gap):.2f} points {'above' if gap > 0 else 'below'} accuracy "
                f"({confidence_verdict(gap)}); DSC {mean['dsc']:.4f}"
            )


def make_networks(texts: Sequence[str], name: str | None = None) -> dict[str, Path]:
    """Titles and folders from `NAME=FOLDER` or `FOLDER`; a folder is called by its own name.

    Example:
        >>> make_networks(["ours=runs/a", "runs/b"])
        {'ours': PosixPath('runs/a'), 'b': PosixPath('runs/b')}
    """
    out: dict[str, Path] = {}
    for text in texts:
        title, equals, folder = text.partition("=")
        bare = not equals or Path(text).exists()
        if name is not None and (len(texts) > 1 or not bare):
            raise ValueError(
                "Expected argument `--name` beside one --probs FOLDER; for others say --probs "
                "NAME=FOLDER."
            )
        if bare:
            title, folder = name or Path(text).resolve().name, text
        if not title or not folder or title in out:
            raise ValueError(
                f"Expected argument `--probs` to be FOLDER, or NAME=FOLDER with a different name "
                f"each, but got {text!r}."
            )
        out[title] = Path(folder)
    return out


def audit_predictions(
    networks: Mapping[str, Path],
    labels: Path,
    out: Path,
    *,
    images: Path | None = None,
    dataset: str = "audit",
    classes: Sequence[str] | None = None,
    region: str = "all",
    logits: bool = False,
    axes: str = "auto",
    ignore_label: int | None = None,
    patient: str | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Audited:
    """Measure networks on the same cases and write a study; it appears whole or not at all.

    Args:
        networks: title → folder of predictions.
        labels, images, axes, ignore_label: see `find_pairs`.
        out: folder of the study.
        dataset: what to call the data.
        classes: names, background first; by default nnU-Net's dataset.json beside the
            predictions, else numbers.
        region: where the report reads calibration; all regions are measured.
        logits: the folders hold logits.
        patient: a regular expression for the patient in a case's name, where some have several.
        overwrite: whether a study in `out` may be replaced.
        progress: called as (network, cases done, cases in total).
    """
    check_choice("region", region, REGIONS)
    _check_out(out, overwrite, [*networks.values(), labels, *([images] if images else [])])
    sets = {
        title: find_pairs(folder, labels, images, axes=axes, ignore_label=ignore_label)
        for title, folder in networks.items()
    }
    _check_same_cases(sets)
    first = next(iter(sets.values()))
    names = _class_names(first, classes)
    patients = {} if patient is None else patients_of(first.names, patient)
    slugs = _slugs(sets)
    data = slug_of(dataset)
    runs: list[dict[str, Any]] = []
    with atomic_path(out) as partial:
        partial.mkdir(parents=True)
        for title, pairs in sets.items():
            place = f"runs/{data}/{slugs[title]}/seed0"
            about = {"source": str(pairs.folder), "kind": "logits" if logits else "probs"}
            found = _evaluate(
                pairs, partial / place, logits, title, progress,
                run=f"{data}/{slugs[title]}/seed0", method=slugs[title], seed=0, dataset=data,
                labels=names, about=about,
            )  # fmt: skip
            runs.append(
                {
                    "run": f"{data}/{slugs[title]}/seed0", "method": slugs[title], "dataset": data,
                    "seed": 0, "folder": place, "state": "done", "error": "",
                    "seconds": found.about["seconds"],
                }
            )  # fmt: skip
        _write_tables(partial, [partial / str(run["folder"]) for run in runs], region)
        content = _study(data, dataset, slugs, names, runs, region, first, patients)
        write_json(partial / "study.json", content)
    done = {
        title: Evaluation(
            out / str(run["folder"]), "test",
            json.loads((out / str(run["folder"]) / "evaluation.json").read_text()),
        )
        for title, run in zip(sets, runs, strict=True)
    }  # fmt: skip
    return Audited(out, region, done, first.unused, all(pair.has_spacing for pair in first))


def _check_out(out: Path, overwrite: bool, inputs: Sequence[Path]) -> None:
    for folder in inputs:
        if folder.resolve().is_relative_to(out.resolve()):
            raise PathError(out, f"holds the input {folder}", "choose another --out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        study = json.loads((out / "study.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        study = None
    if not isinstance(study, dict) or study.get("format") != "segcal-study":
        raise PathError(out, "exists and is not a study", "choose another --out")
    if study.get("kind") != "audit":
        raise PathError(out, "holds a study that is no audit", "choose another --out")
    if not overwrite:
        raise PathError(out, "holds a study already", "say --overwrite to replace it")


def _check_same_cases(sets: Mapping[str, Pairs]) -> None:
    (first, reference), *others = sets.items()
    for title, pairs in others:
        missing = sorted(set(reference.names) ^ set(pairs.names))
        if missing:
            raise ValueError(
                f"Expected every network to have predicted the same cases, but {missing[0]} is "
                f"only in one of {first!r} and {title!r}."
            )
        if pairs.num_classes != reference.num_classes:
            raise ValueError(
                f"Expected every network to have the same classes, but {first!r} has "
                f"{reference.num_classes} and {title!r} has {pairs.num_classes}."
            )


def _class_names(pairs: Pairs, given: Sequence[str] | None) -> list[str]:
    k = pairs.num_classes
    names = list(given) if given is not None else _nnunet_names(pairs.folder, k)
    if len(names) != k or len(set(names)) != k:
        raise ValueError(
            f"Expected argument `--classes` to give {k} different names, background first, but "
            f"got {', '.join(names)}."
        )
    return names


def _nnunet_names(folder: Path, num_classes: int) -> list[str]:
    """Names from the dataset.json that nnU-Net leaves beside predictions, else numbers."""
    plain = ["background", *(f"class {k}" for k in range(1, num_classes))]
    try:
        labels = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))["labels"]
        numbers = {int(value): str(name) for name, value in labels.items() if name != "ignore"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return plain  # not there, or of region-based training: numbers say it as well
    names = [numbers.get(k, plain[k]) for k in range(num_classes)]
    return names if len(set(names)) == num_classes else plain


def slug_of(name: str) -> str:
    """A name that is safe as a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "network"


def _slugs(titles: Mapping[str, object]) -> dict[str, str]:
    out: dict[str, str] = {}
    for title in titles:
        slug, number = slug_of(title), 2
        while slug in out.values():
            slug, number = f"{slug_of(title)}-{number}", number + 1
        out[title] = slug
    return out


def _evaluate(
    pairs: Pairs,
    folder: Path,
    logits: bool,
    title: str,
    progress: ProgressCallback,
    **options: Any,
) -> Evaluation:
    now = pairs.pairs[0]

    def cases() -> Iterator[PredictedCase]:
        nonlocal now
        for pair in pairs:
            now = pair
            loaded = pair.load()
            yield PredictedCase(
                pair.name,
                to_probs(loaded.values, from_probs=not logits),
                loaded.target,
                loaded.spacing_mm,
                image=loaded.image,
                logits=loaded.values if logits else None,
            )

    try:
        return write_evaluation(
            cases(), folder, progress=lambda done: progress(title, done, None), **options
        )
    except PathError:
        raise
    except (ValueError, TypeError) as error:
        # Cases are measured as they are drawn: it is the last one.
        raise ValueError(f"{now.softmax.path}: {error}") from error


def _write_tables(folder: Path, runs: Sequence[Path], region: str) -> None:
    """cases.csv of all networks, and their ranks by the metrics that have values.

    A network that finds nothing has no distance.
    """
    from segcal.stats import bootstrap_ranks, collect, find_eligible
    from segcal.study.ranks import write_ranks

    parts = [(run / "cases.csv").read_text(encoding="utf-8").splitlines(True) for run in runs]
    write_text(folder / "cases.csv", "".join(parts[0][:1] + [x for p in parts for x in p[1:]]))
    table = _read(folder / "cases.csv")
    methods = list(dict.fromkeys(table["method"]))
    metrics = find_eligible(table, methods, METRICS, region).metrics
    ranks = bootstrap_ranks(collect(table, metrics=metrics, region=region, missing="worst"))
    write_ranks(folder / "ranks.csv", ranks)


def _read(path: Path) -> pd.DataFrame:
    return Evaluation(path.parent, "test", {}).table()


def _study(
    data: str,
    title: str,
    slugs: Mapping[str, str],
    names: Sequence[str],
    runs: list[dict[str, Any]],
    region: str,
    pairs: Pairs,
    patients: Mapping[str, str],
) -> dict[str, Any]:
    note = "Predictions of trained networks, measured as they are; nothing was trained."
    if pairs.unused:
        note += f" {len(pairs.unused)} label maps had no prediction and were left out."
    return {
        "format": "segcal-study",
        "version": 1,
        "kind": "audit",
        "title": f"Audit of {', '.join(slugs)}",
        "note": note,
        "split": "test",
        "region": region,
        "metrics": list(METRICS),
        "datasets": [
            {
                "name": data, "title": title, "source": "folder", "labels": list(names),
                "structures": list(names[1:]), "fingerprint": "", "patients": dict(patients),
            }
        ],
        "methods": [
            {"name": slug, "title": name, "paper": None, "group": "main", "options": {},
             "chosen_from": []}
            for name, slug in slugs.items()
        ],
        "runs": runs,
        "tables": ["main", "classes"],
        "environment": {
            "device": "cpu", "versions": versions(), "commit": git_commit(), "segcal": __version__,
        },
    }  # fmt: skip
