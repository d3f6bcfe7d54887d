"""Audit predictions of any network: measure them and write a study that `segcal report` shows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote

from segcal.core.checks import check_choice
from segcal.core.errors import PathError
from segcal.core.files import atomic_path, remove, remove_drafts
from segcal.core.heads import Heads
from segcal.core.progress import ProgressCallback, no_progress
from segcal.core.provenance import git_commit, versions
from segcal.core.text import count
from segcal.evaluation.case_metrics import PredictedCase
from segcal.evaluation.evaluate_cases import write_evaluation
from segcal.evaluation.measured_cases import KeptCase, key_of
from segcal.evaluation.predict_manifest import calibration_of, seen_cases
from segcal.metrics import POOLED, REGIONS, CaseOptions, confidence_verdict, find_metric
from segcal.posthoc import to_probs
from segcal.predictions import Axes, Pair, Pairs, class_names, find_pairs, name_file_in_errors
from segcal.stats import clustered_interval, patients_of
from segcal.study import (
    FORMAT,
    STUDY,
    VERSION,
    Dataset,
    Evaluation,
    Method,
    Run,
    StudyFile,
    StudyWriter,
    rank_study,
    read_study_file,
)

METRICS = ("dsc", "hd95_mm", "ece", "cece")
# Names of folders that do not tell whose predictions they hold.
GENERIC = ("probs", "predictions", "softmax", "all", "test", "val")


@dataclass(frozen=True)
class Audited:
    """A finished audit: the folder of the study, and the evaluation of each network by title.

    `reused` cases were measured by an audit that was stopped. `seen` are cases
    that `segcal predict` recognized as scans of the training, `identical` two cases each of the
    first network with the same prediction.
    """

    folder: Path
    region: str
    networks: dict[str, Evaluation]
    unused: tuple[str, ...]
    has_spacing: bool = True
    seen: tuple[str, ...] = ()
    patients: Mapping[str, str] = field(default_factory=dict)
    reused: int = 0
    identical: tuple[tuple[str, str], ...] = ()

    def lines(self) -> Iterator[str]:
        """One line per network for the terminal."""
        for title, evaluation in self.networks.items():
            mean = evaluation.means(self.region)
            yield (
                f"{title}: {count(len(evaluation.info.case_names), 'case')}, original grid; "
                f"region {self.region}: ECE {mean['ece']:.4f}{self._interval(evaluation)}, "
                f"CECE {mean['cece']:.4f}, NLL {mean['nll']:.4f}; "
                f"{_describe_gap(mean['signed_gap'])}; DSC {mean['dsc']:.4f}"
            )

    def absent(self) -> list[str]:
        """The structures that no label map contains."""
        table = next(iter(self.networks.values())).table()
        volumes = table[table["metric"] == "true_volume_ml"].groupby("label", observed=True)
        most = volumes["value"].max()
        return [str(label) for label in most[most == 0].index]

    def _interval(self, evaluation: Evaluation) -> str:
        """95 % interval of the ECE over patients, such as " [0.0102, 0.0131]"."""
        table = evaluation.table()
        chosen = (table["metric"] == "ece") & (table["region"] == self.region)
        cases = table[chosen & (table["case"] != POOLED)]
        found = clustered_interval(cases["value"], [self.patients.get(c, c) for c in cases["case"]])
        found = found.within(find_metric("ece").limits)
        return "" if math.isnan(found.low) else f" [{found.low:.4f}, {found.high:.4f}]"


def _describe_gap(gap: float) -> str:
    """Such as "over-confident: on average 1.8 percentage points more confident than right"."""
    verdict = confidence_verdict(gap)
    if verdict == "undefined":
        return "confidence undefined"
    points = f"{100 * abs(gap):.1f} percentage points {'more' if gap > 0 else 'less'}"
    return f"{verdict}: on average {points} confident than right"


def make_networks(texts: Sequence[str], name: str | None = None) -> dict[str, Path]:
    """Titles and folders from `NAME=FOLDER` or `FOLDER`; without a name, the folder's own is used.

    A generic one, such as "probs", follows that of its parent.

    Example:
        >>> make_networks(["ours=runs/a", "runs/b"])
        {'ours': PosixPath('runs/a'), 'b': PosixPath('runs/b')}
        >>> list(make_networks(["first/probs", "second/probs"]))
        ['first/probs', 'second/probs']
    """
    out: dict[str, Path] = {}
    for text in texts:
        title, equals, folder = text.partition("=")
        bare = not equals or Path(text).exists()
        if name is not None and (len(texts) > 1 or not bare):
            raise ValueError("--name needs one FOLDER; name several by NAME=FOLDER")
        if bare:
            title, folder = name or _title_of(Path(text)), text
        if not title or not folder:
            raise ValueError(f"{text}: expected FOLDER or NAME=FOLDER")
        if title in out:
            problem = f"is named {title}, as {out[title]} is"
            raise PathError(folder, problem, "give NAME=FOLDER with a different name for each")
        out[title] = Path(folder)
    return out


def _title_of(folder: Path) -> str:
    """The name of a folder, after that of its parent if it is generic."""
    *_, parent, name = ("", *folder.resolve().parts)
    parent = Path(parent).name  # of the root: empty
    return f"{parent}/{name}" if parent and name.lower() in GENERIC else name


def audit_predictions(
    networks: Mapping[str, Path],
    labels: Path,
    out: Path,
    *,
    images: Path | None = None,
    dataset: str = "audit",
    classes: Sequence[str] | None = None,
    region: str = "predicted",
    logits: bool = False,
    axes: Axes = "auto",
    ignore_label: int | None = None,
    heads: Heads | None = None,
    patient: str | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Audited:
    """Measure networks on the same cases and write a study to `out`; it is complete or not there.

    Measured cases are kept in the hidden folder `.NAME.measured` beside `out` until the study is
    complete: after a kill, the same call continues with the cases whose files have not changed.

    Args:
        networks: title → folder of predictions, or of logits if `logits`.
        labels, images, axes, ignore_label, heads: see `find_pairs`.
        dataset: title of the data.
        classes: names, background first; by default those of nnU-Net's dataset.json beside the
            predictions, else numbers.
        region: where the report reads calibration; all regions are measured.
        patient: a regular expression that finds the patient in a case name, if some patients have
            several cases.
        jobs: processes, each with one case at a time; the result does not depend on it.
        overwrite: whether an audit in `out` may be replaced.
        progress: called as (network, cases done, cases in total).
    """
    import pandas as pd

    check_choice("--region", region, REGIONS)
    _check_out(out, overwrite, [*networks.values(), labels, *([images] if images else [])])
    pairs_of = {
        title: find_pairs(folder, labels, images, axes=axes, ignore_label=ignore_label, heads=heads)
        for title, folder in networks.items()
    }
    _check_same_cases(pairs_of)
    first = next(iter(pairs_of.values()))
    described = _describe_dataset(dataset, first, classes, patient)
    slugs, kind = _slugs(pairs_of), "logits" if logits else "probs"
    done: dict[str, Evaluation] = {}
    if out.parent.is_dir():
        remove_drafts(out.parent)
    measured = out.with_name(f".{out.name}.measured")
    reused = 0
    with _removed_on_error(measured), atomic_path(out, replace=overwrite) as draft:
        draft.mkdir(parents=True)
        for title, pairs in pairs_of.items():
            run = f"{described.name}/{slugs[title]}/seed0"
            kept = _kept_cases(measured / slugs[title], pairs, logits, run, described.labels)
            reused += sum(each.exists for each in kept.values())
            evaluation = write_evaluation(
                {pair.name: partial(_read, pair, logits) for pair in pairs},
                draft / "runs" / run, jobs=jobs, kept=kept,
                progress=partial(_report, progress, title, len(pairs)),
                run=run, method=slugs[title], seed=0, dataset=described.name,
                labels=described.labels, groups=pairs.heads or None,
                about={
                    "source": str(pairs.folder), "kind": kind, "grid": "original",
                    "seen": seen_cases(pairs),
                },
            )  # fmt: skip
            done[title] = replace(evaluation, folder=out / "runs" / run)
        content = _study_file(networks, slugs, described, done, kind, region, len(first.unused))
        StudyWriter(draft).write(content, complete=True)
        table = pd.concat([one.table() for one in done.values()], ignore_index=True)
        rank_study(draft, table, list(slugs.values()), METRICS, region)
    remove(measured)
    has_spacing = all(pair.has_spacing for pair in first)
    seen = dict.fromkeys(case for one in done.values() for case in one.info.seen)
    return Audited(
        out, region, done, first.unused, has_spacing, tuple(seen), described.patients, reused,
        tuple(first.identical()),
    )  # fmt: skip


def _kept_cases(
    folder: Path, pairs: Pairs, logits: bool, run: str, labels: Sequence[str]
) -> dict[str, KeptCase]:
    """Where each measured case of a network is kept, and what its result depends on."""
    return {
        pair.name: KeptCase(
            folder / f"{pair.name}.npz",
            key_of(pair.files, pair, logits, run, labels, CaseOptions()),
        )
        for pair in pairs
    }


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    """Invalid input leaves nothing behind; a kill or an interrupt leaves the folder."""
    try:
        yield
    except (ValueError, TypeError):
        remove(folder)
        raise


def _check_out(out: Path, overwrite: bool, inputs: Sequence[Path]) -> None:
    remedy = "choose another --out"
    for folder in inputs:
        if folder.resolve().is_relative_to(out.resolve()):
            raise PathError(out, f"holds the input {folder}", remedy)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        study = read_study_file(out / STUDY)
    except (ValueError, OSError) as error:
        raise PathError(out, "exists and is not a study", remedy) from error
    if study.kind != "audit":
        raise PathError(out, "holds a study that is not an audit", remedy)
    if not overwrite:
        if not (out / "report").exists():  # stopped while the page was written
            remedy = f"write it with `segcal report {quote(str(out))}`, or pass --overwrite"
            raise PathError(out, "holds an audit without its page", remedy)
        raise PathError(out, "holds an audit already", "pass --overwrite to replace it")


def _check_same_cases(pairs_of: Mapping[str, Pairs]) -> None:
    (first, reference), *others = pairs_of.items()
    for title, pairs in others:
        missing = sorted(set(reference.names) ^ set(pairs.names))
        if missing:
            where = f"{missing[0]} is only in one of {first!r} and {title!r}"
            raise ValueError(f"Expected every network to have the same cases, but {where}.")
        if (pairs.num_classes, pairs.heads) != (reference.num_classes, reference.heads):
            both = [", ".join(p.heads) or p.num_classes for p in (reference, pairs)]
            given = f"{first!r} has {both[0]} and {title!r} {both[1]}"
            raise ValueError(f"Expected every network to have the same classes, but {given}.")


def _describe_dataset(
    title: str, pairs: Pairs, classes: Sequence[str] | None, patient: str | None
) -> Dataset:
    if pairs.heads and classes is not None:
        raise ValueError("--classes: predictions of overlapping regions have names by --heads")
    names = ("background", *pairs.heads)
    if not pairs.heads:
        names = class_names(pairs.folder, pairs.num_classes, classes)
    patients = {} if patient is None else patients_of(pairs.names, patient)
    return Dataset(
        name=slug_of(title), title=title, source="folder", labels=names, structures=names[1:],
        patients=patients,
    )  # fmt: skip


def slug_of(name: str) -> str:
    """A name that is safe as a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "network"


def _slugs(titles: Mapping[str, object]) -> dict[str, str]:
    out: dict[str, str] = {}
    for title in titles:
        slug, number = slug_of(title), 2
        while slug in out.values():
            slug, number = f"{slug_of(title)}-{number}", number + 1
        out[title] = slug
    return out


def _report(progress: ProgressCallback, title: str, total: int, done: int) -> None:
    progress(title, done, total)


def _read(pair: Pair, logits: bool) -> PredictedCase:
    path = pair.softmax.path
    loaded = pair.load()
    with name_file_in_errors(path):
        probs = to_probs(loaded.values, from_probs=not logits, heads=bool(pair.heads))
    return PredictedCase(
        pair.name, probs, loaded.target, loaded.spacing_mm, image=loaded.image,
        logits=loaded.values if logits else None, path=path, heads=pair.heads,
    )  # fmt: skip


def _study_file(
    networks: Mapping[str, Path], slugs: Mapping[str, str], dataset: Dataset,
    done: Mapping[str, Evaluation], kind: str, region: str, unused: int,
) -> StudyFile:  # fmt: skip
    note = "Predictions of trained networks, measured as they are; nothing was trained."
    if unused:
        note += f" Skipped: {count(unused, 'label map')} without a prediction."
    return StudyFile(
        format=FORMAT,
        version=VERSION,
        kind="audit",
        title=f"Audit of {', '.join(slugs)}",
        note=note,
        region=region,
        grid="original",
        metrics=METRICS,
        datasets=(dataset,),
        methods=tuple(
            Method(
                name=slug,
                title=title,
                options={
                    "predictions": str(networks[title]),
                    "kind": kind,
                    **({"calibrated": known} if (known := calibration_of(networks[title])) else {}),
                },
            )
            for title, slug in slugs.items()
        ),
        runs=tuple(
            Run(
                **one.info.model_dump(include={"run", "method", "dataset", "seconds"}),
                folder=f"runs/{one.info.run}",
            )
            for one in done.values()
        ),
        tables=("main", "classes"),
        environment={"device": "cpu", "versions": versions(), "commit": git_commit()},
    )
