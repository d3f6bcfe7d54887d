"""`segcal assure`: volumes, masks and referral with stated reliability."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from segcal.cli import _options as opt
from segcal.core.progress import ProgressCallback, show_progress

if TYPE_CHECKING:
    from segcal.assurance import Assurance, CheckResult
    from segcal.posthoc import Calibrator
    from segcal.predictions import Pairs

app = typer.Typer(
    help="Volumes with intervals, masks with a guarantee, and which scans to review.",
    no_args_is_help=True,
)

Probs = Annotated[Path, typer.Option(help="Folder of probabilities, such as nnU-Net's.")]
File = Annotated[Path, typer.Argument(help="A file that `segcal assure fit` wrote.")]
Jobs = Annotated[int, typer.Option(help="Processes.", min=1)]


@app.command()
def fit(
    probs: Probs,
    labels: opt.Labels,
    out: Annotated[Path, typer.Option(help="File to write (JSON).")],
    images: opt.Images = None,
    calibrator: Annotated[
        str, typer.Option(help="A file of `segcal calibrate`, a method to fit here, or none.")
    ] = "temperature",
    coverage: Annotated[
        float, typer.Option(help="Coverage of volume and Dice intervals.", min=0.01, max=0.999)
    ] = 0.9,
    risk: Annotated[
        float,
        typer.Option(
            help="Share that outer masks miss, and of inner masks that is wrong.",
            min=0.001,
            max=0.99,
        ),
    ] = 0.1,
    min_dice: Annotated[
        float, typer.Option(help="A mean Dice below it is a failure.", min=0.01, max=0.99)
    ] = 0.7,
    max_failures: Annotated[
        float, typer.Option(help="Failure rate among accepted scans.", min=0.001, max=0.99)
    ] = 0.1,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes, background first: background,RV,MYO.")
    ] = None,
    patient: opt.Patient = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    jobs: Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Learn from labeled scans, which the network was not trained on, what can be promised."""
    from segcal.assurance import fit_assurance
    from segcal.predictions import check_not_existing, class_names, find_pairs

    check_not_existing([out], overwrite)
    pairs = find_pairs(probs, labels, images, axes=axes, ignore_label=ignore_label)
    opt.warn_unused(pairs.unused)
    given = None if classes is None else [part.strip() for part in classes.split(",")]
    names = class_names(probs, pairs.num_classes, given)
    with show_progress() as progress:
        assurance = fit_assurance(
            pairs, names, calibrator=_calibrator(calibrator, pairs, progress), coverage=coverage,
            risk=risk, min_dice=min_dice, max_failures=max_failures, patient=patient, jobs=jobs,
            progress=progress,
        )  # fmt: skip
    assurance.save(out)
    _print_fit(assurance, out)


def _calibrator(text: str, pairs: "Pairs", progress: ProgressCallback) -> "Calibrator | None":
    from segcal.assurance import fit_calibrator
    from segcal.posthoc import CALIBRATORS, load_calibrator

    if text == "none":
        return None
    if Path(text).suffix == ".json":
        return load_calibrator(text)
    try:
        CALIBRATORS.get(text)
    except ValueError as error:
        raise ValueError(f"--calibrator {text}: {error}") from error
    fitted = fit_calibrator(pairs, text, progress)
    for line in fitted.report.warnings() if fitted.report is not None else ():
        typer.echo(f"warning: {line}", err=True)
    return fitted


def _print_fit(assurance: "Assurance", out: Path) -> None:
    from rich.table import Table

    patients = len({case.patient for case in assurance.cases})
    typer.echo(f"{out}: fitted on {len(assurance.cases)} scans of {patients} patients")
    table = Table("structure", "rho", "interval", "coverage", "width ml", "width of the others",
                  "outer t", "inner t", "best t")  # fmt: skip
    for one in assurance.structures:
        used = one.intervals.get(one.method)
        others = [f"{m} {f.width_ml:.3g}" for m, f in one.intervals.items() if f is not used]
        table.add_row(
            one.name, opt.number(one.rho), one.method if used else "–",
            opt.number(used.coverage if used else None),
            opt.number(used.width_ml if used else None),
            ", ".join(others), *map(opt.number, (one.outer, one.inner, one.threshold)),
        )  # fmt: skip
    opt.print_table(table)
    rule = assurance.referral
    if rule is not None:
        typer.echo(
            f"accept scans with expected Dice ≥ {rule.limit:.3f}: {rule.accepted} patients, "
            f"{rule.failures} with Dice < {assurance.min_dice:g} (bound {rule.bound:.3f})"
        )
    for line in assurance.refused:
        typer.echo(f"not promised: {line}", err=True)


@app.command()
def apply(
    file: File,
    probs: Probs,
    out: Annotated[Path, typer.Option(help="Folder for tables, masks and the page.")],
    images: opt.Images = None,
    masks: Annotated[
        str, typer.Option(help="Masks to write: argmax,dice,threshold,inner,outer.")
    ] = "",
    axes: opt.Axes = "auto",
    jobs: Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Volumes with intervals, expected Dice, masks, and which scans to review."""
    from segcal.assurance import apply_assurance, load_assurance
    from segcal.predictions import find_unlabeled
    from segcal.report import write_applied_page

    assurance = load_assurance(file)
    scans = find_unlabeled(probs, images, axes=axes)
    kinds = [kind.strip() for kind in masks.split(",") if kind.strip()]
    with show_progress() as progress:
        results = apply_assurance(
            assurance, scans, out,
            masks=kinds, jobs=jobs, overwrite=overwrite, progress=progress,  # type: ignore[arg-type]
        )  # fmt: skip
    if any(scan.header is None for scan in scans):
        typer.echo("no file states a voxel size: 1 mm is assumed", err=True)
    page = write_applied_page(out, assurance, results)
    counts = [f"{sum(r.status == s for r in results)} {s}" for s in ("accept", "refer", "no rule")]
    typer.echo(f"{out}: {len(results)} scans: {', '.join(counts)}")
    typer.echo(f"page: {page}")


@app.command()
def check(
    file: File,
    probs: Probs,
    labels: opt.Labels,
    out: Annotated[Path, typer.Option(help="Folder for tables and the page.")],
    images: opt.Images = None,
    patient: opt.Patient = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    jobs: Jobs = 1,
    overwrite: opt.Overwrite = False,
) -> None:
    """Measure on other labeled scans whether the promises hold; exit with 1 if one is broken."""
    from segcal.assurance import check_assurance, load_assurance
    from segcal.predictions import find_pairs
    from segcal.report import write_checked_page

    assurance = load_assurance(file)
    pairs = find_pairs(probs, labels, images, axes=axes, ignore_label=ignore_label)
    opt.warn_unused(pairs.unused)
    with show_progress() as progress:
        result = check_assurance(
            assurance, pairs, out,
            patient=patient, jobs=jobs, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    page = write_checked_page(out, assurance, result)
    _print_check(result)
    typer.echo(f"measures of each structure: {page}")
    for one in result.broken:
        text = f"{one.what} {one.measured:.3f} [{one.low:.3f}, {one.high:.3f}]"
        typer.echo(f"segcal: BROKEN {one.structure}: {text}, promised {one.promised:g}", err=True)
    if result.broken:
        raise typer.Exit(1)


def _print_check(result: "CheckResult") -> None:
    from rich.table import Table

    table = Table("structure", "promise", "promised", "measured", "interval", "verdict")
    for one in result.promises:
        table.add_row(
            one.structure, one.what, f"{'≥' if one.at_least else '≤'} {one.promised:g}",
            f"{one.measured:.3f}", f"{one.low:.3f} to {one.high:.3f}",
            "broken" if one.broken else "holds",
        )  # fmt: skip
    opt.print_table(table)
    table = Table("all structures", "measure", "value", "95 % interval")
    for m in result.measures:
        if m.structure == "all":
            span = f"{opt.number(m.low)} to {opt.number(m.high)}"
            table.add_row(m.method, m.what, opt.number(m.value), span)
    opt.print_table(table)
