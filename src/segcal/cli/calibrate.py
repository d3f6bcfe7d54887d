"""`segcal calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from segcal.cli import _options as opt
from segcal.core.progress import show_progress


def calibrate(
    labels: opt.Labels,
    out: Annotated[Path, typer.Option(help="File of the calibrator.")],
    logits: opt.Logits = None,
    probs: opt.Probs = None,
    images: opt.Images = None,
    method: Annotated[
        str, typer.Option(help="temperature, vector, dirichlet, matrix or local.")
    ] = "temperature",
    region: Annotated[
        str, typer.Option(help="Voxels to fit on: all, foreground, union or boundary.")
    ] = "all",
    balance: Annotated[str, typer.Option(help="none, or class: weigh classes alike.")] = "none",
    folds: Annotated[int, typer.Option(help="Of the cross-validation; 0 does not judge.")] = 5,
    patient: opt.Patient = None,
    max_voxels: Annotated[int, typer.Option(help="Voxels drawn to fit on, about.")] = 1_000_000,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the method, such as odir=0.01; repeat for several."),
    ] = None,
    axes: opt.Axes = "auto",
    ignore_label: opt.IgnoreLabel = None,
    seed: Annotated[int, typer.Option(help="Seed of sample and folds.")] = 0,
    overwrite: opt.Overwrite = False,
) -> None:
    """Fit a calibrator on held-out cases, and say by cross-validation whether it helps."""
    from segcal.core.checks import check_choice
    from segcal.evaluation.posthoc_fit import fit_pairs
    from segcal.posthoc import CALIBRATORS
    from segcal.posthoc.files import check_ending
    from segcal.predictions.pairing import find_pairs
    from segcal.predictions.writer import check_free

    check_choice("method", method, CALIBRATORS)
    folder, from_probs = opt.one_folder(logits, probs)
    check_free([out], overwrite)
    check_ending(method, out)
    if images is not None and method != "local":
        raise ValueError(f"Expected no --images: {method} does not look at them, local does.")
    pairs = find_pairs(folder, labels, images, axes=axes, ignore_label=ignore_label)
    opt.warn_unused(pairs.unused)
    with show_progress() as step:
        fitted = fit_pairs(
            pairs, method,
            from_probs=from_probs, region=region, balance=balance, folds=folds, patient=patient,
            max_voxels=max_voxels, seed=seed, options=_options(override), progress=step,
        )  # fmt: skip
    fitted.calibrator.save(out)
    _say_fit(fitted, out)


def _options(pairs: list[str] | None) -> dict[str, Any]:
    """key=value as numbers; several numbers by commas."""
    out: dict[str, Any] = {}
    for text in pairs or ():
        key, equals, value = text.partition("=")
        try:
            found = [int(v) if v.strip().isdigit() else float(v) for v in value.split(",")]
        except ValueError:
            equals = ""
        if not equals or not key.isidentifier():
            raise ValueError(f"Expected argument `--set` to be key=number, but got {text!r}.")
        out[key] = found if len(found) > 1 else found[0]
    return out


def _say_fit(fitted: Any, out: Path) -> None:
    calibrator, report = fitted.calibrator, fitted.calibrator.report
    typer.echo(
        f"{out}: {calibrator.method} fitted on {report.cases} cases, {report.voxels:,} voxels "
        f"({report.used:,} drawn), NLL {report.nll_before:.4f} → {report.nll_after:.4f}"
    )
    if calibrator.method == "temperature":
        typer.echo(f"temperature {calibrator.temperature:.4f}")
    for words in report.at_bound:
        typer.echo(f"{words}: the best value may lie beyond", err=True)
    if not report.converged:
        typer.echo("the search was cut off before it converged", err=True)
    verdict = fitted.verdict
    for words in (*report.notes, *(verdict.notes if verdict is not None else ())):
        typer.echo(words, err=True)
    if verdict is None:
        typer.echo("not judged: no cross-validation was asked for")
        return
    typer.echo(
        f"{'region':<11}{'metric':<7}{'before':>9}{'after':>9}   95 % interval of the change"
    )
    for c in verdict.changes:
        if not c.cases:
            typer.echo(f"{c.region:<11}{c.metric:<7}  has no voxels")
            continue
        typer.echo(
            f"{c.region:<11}{c.metric:<7}{c.before:>9.4f}{c.after:>9.4f}   "
            f"[{c.low:+.4f}, {c.high:+.4f}]  {c.direction}"
        )
    kept = "keeps every label" if not calibrator.changes_labels else "can change labels"
    typer.echo(
        f"{calibrator.method} {kept}: {opt.changed_labels(verdict.changed_labels, verdict.voxels)}"
    )
    typer.echo(verdict.words())
