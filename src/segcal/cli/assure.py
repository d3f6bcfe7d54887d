"""`segcal assure`: volumes, masks and referral with stated reliability."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segcal.cli import _options as opt
from segcal.cli.calibrate import print_temperature
from segcal.core.files import scratch_folder
from segcal.core.progress import ProgressCallback, show_progress

if TYPE_CHECKING:
    from segcal.posthoc import BaseCalibrator
    from segcal.predictions import Pairs

app = typer.Typer(
    help="Volumes with intervals, masks with a guarantee, and which scans to review.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="A file that `segcal assure fit` wrote.")]
Run = Annotated[
    Path | None, typer.Option(help="A run or a folder of folds, in place of --probs and --labels.")
]


def _share(text: str) -> typer.models.OptionInfo:
    return typer.Option(help=f"{text} 0.001 to 0.999.", callback=_check_share)  # type: ignore[no-any-return]


def _check_share(value: float) -> float:
    if not 0.001 <= value <= 0.999:
        percent = f"; write {value / 100:g} for {value:g} %" if 1 < value < 100 else ""
        raise typer.BadParameter(
            f"expected a share from 0.001 to 0.999, but got {value:g}{percent}"
        )
    return value


@app.command()
def fit(
    out: Annotated[Path, typer.Option(help="File to write (JSON).")],
    probs: opt.Probs = None,
    labels: opt.OptionalLabels = None,
    run: Run = None,
    images: opt.Images = None,
    calibrator: Annotated[
        str, typer.Option(help="A file of `segcal calibrate`, a method to fit here, auto, or none.")
    ] = "temperature",
    coverage: Annotated[float, _share("Coverage of volume and Dice intervals.")] = 0.9,
    risk: Annotated[float, _share("Share that outer masks miss, or inner masks add.")] = 0.1,
    min_dice: Annotated[float, _share("A mean Dice below it is a failure.")] = 0.7,
    max_failures: Annotated[float, _share("Failure rate among accepted scans.")] = 0.1,
    classes: opt.Classes = None,
    patient: opt.Patient = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    heads: opt.Heads = None,
    jobs: opt.Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Learn what can be promised from labeled scans that the network was not trained on.

    Of a run, they are its validation cases; of a folder of folds, those of each fold.
    """
    from segcal.assurance import CHOICE_NEEDS, INTERVAL_TITLES, fit_assurance
    from segcal.evaluation import calibration_of
    from segcal.predictions import check_not_existing, class_names

    check_not_existing([out], overwrite)
    with (
        show_progress() as progress,
        _pairs(run, "val", probs, labels, images, patient, axes, ignore_label, heads, progress) as (
            pairs,
            patient_of,
        ),
    ):
        names: Sequence[str] = ("background", *pairs.heads)
        if not pairs.heads:
            names = class_names(pairs.folder, pairs.num_classes, opt.split_names(classes))
        model = _calibrator(calibrator, pairs, patient_of, jobs, progress)
        found = fit_assurance(
            pairs, names, calibrator=model, calibrated=calibration_of(pairs.folder),
            coverage=coverage, risk=risk, min_dice=min_dice, max_failures=max_failures,
            patient=patient_of, jobs=jobs, progress=progress,
        )  # fmt: skip
    found.save(out)
    if model is not None:
        print_temperature(model)
    patients = len({case.patient for case in found.cases})
    why = "chosen: smallest interval score"
    if patients < CHOICE_NEEDS:
        why = f"used: fewer than {CHOICE_NEEDS} patients are too few to choose"
    typer.echo(f"{out}: fitted on {len(found.cases)} scans of {patients} patients")
    for one in found.structures:
        what = "volume intervals (mean width and coverage, cross-validated)"
        if any(math.isnan(interval.coverage) for interval in one.intervals.values()):
            what = "volume intervals (mean width; too few patients to cross-validate the coverage)"
        typer.echo(f"{one.name}: {what if one.intervals else 'no volume interval'}")
        for method, interval in one.intervals.items():
            covered = "–" if math.isnan(interval.coverage) else f"{interval.coverage:.0%}"
            numbers = f"{interval.width_ml:>9.3g} ml {covered:>6}"
            used = f"  {why}" if method == one.method else ""
            typer.echo(f"  {INTERVAL_TITLES[method]:<42}{numbers}{used}")
        limits = map(opt.number, (one.outer, one.threshold, one.inner))
        typer.echo("  thresholds: outer {}, best {}, inner {}".format(*limits))
        typer.echo(f"  correction of expected Dice: {one.dice_line.describe()}")
    if (rule := found.referral) is not None:
        typer.echo(
            f"accept scans with expected Dice ≥ {rule.limit:.3f}: {rule.accepted} patients, "
            f"{rule.failures} with Dice < {min_dice:g} (bound {rule.bound:.3f})"
        )
    for line in found.refused:
        typer.echo(f"not promised: {line}", err=True)


@contextmanager
def _pairs(
    run: Path | None, split: str, probs: Path | None, labels: Path | None, images: Path | None,
    patient: str | None, axes: opt.AxisOrder, ignore_label: int | None, heads: str | None,
    progress: ProgressCallback,
) -> Iterator[tuple["Pairs", str | Mapping[str, str] | None]]:  # fmt: skip
    """Predictions with labels, and their patients: as given, or else those of the run."""
    from segcal.core.errors import PathError
    from segcal.evaluation import seen_cases
    from segcal.predictions import find_pairs

    if (run is None) == (probs is None) or (probs is None) != (labels is None):
        raise ValueError("give either --probs FOLDER with --labels FOLDER, or --run RUN")
    if run is None and probs is not None and labels is not None:
        pairs = find_pairs(
            probs,
            labels,
            images,
            axes=axes,
            ignore_label=ignore_label,
            heads=opt.given_heads(heads),
        )
        opt.warn_unused(pairs.unused)
        parts = ["train"] if split == "val" else ["train", "val"]
        opt.warn_seen(seen_cases(pairs, parts), fitting=split == "val")
        opt.warn_patients(pairs.names, patient)
        opt.warn_identical(pairs.identical())
        yield pairs, patient
        return
    from segcal.data import IGNORED
    from segcal.evaluation import export_predictions

    with scratch_folder() as folder:
        patients = export_predictions(str(run), split, folder, progress=progress)
        pairs = find_pairs(folder / "probs", folder / "labels", images, ignore_label=IGNORED)
        try:
            yield pairs, patient or patients
        except ValueError as error:  # the user knows the run, not its temporary files
            shown = str(PathError(pairs.folder, "").path)
            text = str(error).replace(f"{shown}/", f"{run}: case ")
            raise ValueError(text.replace(shown, str(run))) from error


def _calibrator(
    text: str, pairs: "Pairs", patient: str | Mapping[str, str] | None, jobs: int,
    progress: ProgressCallback,
) -> "BaseCalibrator | None":  # fmt: skip
    from segcal.assurance import fit_calibrator
    from segcal.evaluation import AUTO, check_method, fit_pairs
    from segcal.posthoc import load_calibrator

    if text == "none":
        return None
    if Path(text).suffix == ".json":
        return load_calibrator(text)
    check_method("--calibrator", text)
    if text == AUTO:
        chosen = fit_pairs(
            pairs, AUTO, from_probs=True, patient=patient, jobs=jobs, progress=progress
        )
        for line in chosen.choice.lines() if chosen.choice is not None else ():
            typer.echo(line)
        fitted = chosen.calibrator
    else:
        fitted = fit_calibrator(pairs, text, progress)
    for part in getattr(fitted, "parts", [fitted]):
        for line in part.report.warnings() if part.report is not None else ():
            typer.echo(f"warning: {line}", err=True)
    return fitted


@app.command()
def apply(
    file: File,
    probs: Annotated[Path, typer.Option(help="Folder of probabilities, such as nnU-Net's.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, masks and the page.")],
    images: opt.Images = None,
    masks: Annotated[
        str, typer.Option(help="Masks to write: argmax,dice,threshold,inner,outer.")
    ] = "",
    axes: opt.Axes = "auto",
    jobs: opt.Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Volumes with intervals, expected Dice, masks, and which scans to review."""
    from segcal.assurance import apply_assurance, load_assurance
    from segcal.evaluation import calibration_of
    from segcal.predictions import find_unlabeled
    from segcal.report import write_applied_page

    assurance = load_assurance(file)
    assurance.check_input(probs, calibration_of(probs))
    scans = find_unlabeled(probs, images, axes=axes, one_map=assurance.num_classes == 1)
    with show_progress() as progress:
        results = apply_assurance(
            assurance, scans, out, masks=opt.split_names(masks) or (),  # type: ignore[arg-type]
            jobs=jobs, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    if any(scan.header is None for scan in scans):
        order = "x, y, z" if axes == "xyz" else "z, y, x"
        assumed = f"voxels of 1 mm and axes in the order {order} are assumed"
        opt.warn(f"{probs} contains no position of its voxels: {assumed}; give NIfTI --images")
    page = write_applied_page(out, assurance, results)
    counts = [f"{sum(r.status == s for r in results)} {s}" for s in ("accept", "refer", "no rule")]
    review = "; without a rule for referral, review every scan" * (assurance.referral is None)
    typer.echo(f"{out}: {len(results)} scans: {', '.join(counts)}{review}")
    typer.echo(f"page: {page}")


@app.command()
def check(
    file: File,
    out: Annotated[Path, typer.Option(help="Folder for tables and the page.")],
    probs: opt.Probs = None,
    labels: opt.OptionalLabels = None,
    run: Run = None,
    images: opt.Images = None,
    patient: opt.Patient = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    heads: opt.Heads = None,
    jobs: opt.Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Measure on other labeled scans whether the promises hold; exit with 1 if one is broken.

    Of a run, they are its test cases; of a folder of folds, predicted by the mean of all.
    """
    from segcal.assurance import check_assurance, load_assurance
    from segcal.evaluation import calibration_of
    from segcal.report import write_checked_page

    assurance = load_assurance(file)
    assurance.check_input(probs or str(run), calibration_of(probs) if probs else "")
    with (
        show_progress() as progress,
        _pairs(
            run, "test", probs, labels, images, patient, axes, ignore_label, heads, progress
        ) as (pairs, patient_of),
    ):
        result = check_assurance(
            assurance, pairs, out, patient=patient_of, jobs=jobs, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    page = write_checked_page(out, assurance, result)
    for one in result.promises:
        sign = "≥" if one.at_least else "≤"
        text = f"{one.what} {one.measured:.3f} [{one.low:.3f}, {one.high:.3f}]"
        line = f"{one.structure}: {text}, promised {sign} {one.promised:g}"
        typer.echo(f"segcal: BROKEN {line}" if one.broken else line, err=one.broken)
    together = "; their intervals hold together with 95 % (simultaneous)"
    typer.echo(result.conclusion + together * (len(result.promises) > 1))
    for m in result.measures:
        if m.structure == "all":
            span = f"[{opt.number(m.low)}, {opt.number(m.high)}]"
            typer.echo(f"{m.method}: {m.what} {opt.number(m.value)} {span}")
    typer.echo(f"measures of each structure: {page}")
    if result.broken:
        raise typer.Exit(1)
