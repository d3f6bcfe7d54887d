"""`segcal calibrate`, `segcal apply` and `segcal audit`: thin commands over `segcal.evaluation`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Logits = Annotated[Path | None, typer.Option(help="Folder of logits.")]
Probs = Annotated[Path | None, typer.Option(help="Folder of probabilities, such as nnU-Net's.")]
Labels = Annotated[Path, typer.Option(help="Folder of label maps, named as the cases.")]
Images = Annotated[Path | None, typer.Option(help="Folder of images, named as the cases.")]
Axes = Annotated[str, typer.Option(help="Order of plain arrays: auto, zyx or xyz.")]
IgnoreLabel = Annotated[int | None, typer.Option(help="Label of voxels that do not count.")]
Patient = Annotated[
    str | None, typer.Option(help="Regular expression for the patient in a case's name.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def calibrate(
    labels: Labels,
    out: Annotated[Path, typer.Option(help="File of the calibrator.")],
    logits: Logits = None,
    probs: Probs = None,
    images: Images = None,
    method: Annotated[
        str, typer.Option(help="temperature, vector, dirichlet, matrix or local.")
    ] = "temperature",
    region: Annotated[
        str, typer.Option(help="Voxels to fit on: all, foreground, union or boundary.")
    ] = "all",
    balance: Annotated[str, typer.Option(help="none, or class: weigh classes alike.")] = "none",
    folds: Annotated[int, typer.Option(help="Of the cross-validation; 0 does not judge.")] = 5,
    patient: Patient = None,
    max_voxels: Annotated[int, typer.Option(help="Voxels drawn to fit on, about.")] = 1_000_000,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", help="Option of the method, such as odir=0.01; repeat for several."),
    ] = None,
    axes: Axes = "auto",
    ignore_label: IgnoreLabel = None,
    seed: Annotated[int, typer.Option(help="Seed of sample and folds.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Fit a calibrator on held-out cases, and say by cross-validation whether it helps."""
    from segcal.core.checks import check_choice
    from segcal.evaluation.posthoc_fit import fit_pairs
    from segcal.posthoc import CALIBRATORS
    from segcal.posthoc.files import check_ending
    from segcal.predictions.pairing import find_pairs
    from segcal.predictions.writer import check_free

    check_choice("method", method, CALIBRATORS)
    folder, from_probs = _which(logits, probs)
    check_free([out], overwrite)
    check_ending(method, out)
    if images is not None and method != "local":
        raise ValueError(f"Expected no --images: {method} does not look at them, local does.")
    pairs = find_pairs(folder, labels, images, axes=axes, ignore_label=ignore_label)
    _say_unused(pairs)
    with _progress(len(pairs)) as step:
        fitted = fit_pairs(
            pairs, method,
            from_probs=from_probs, region=region, balance=balance, folds=folds, patient=patient,
            max_voxels=max_voxels, seed=seed, options=_options(override), progress=step,
        )  # fmt: skip
    fitted.calibrator.save(out)
    _say_fit(fitted, out)


def apply(
    calibrator: Annotated[Path, typer.Argument(help="A file that `segcal calibrate` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the calibrated probabilities.")],
    logits: Logits = None,
    probs: Probs = None,
    images: Images = None,
    axes: Axes = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Calibrate a folder of predictions; files keep their form and their names."""
    from segcal.evaluation.posthoc_apply import apply_folder
    from segcal.posthoc import load_calibrator
    from segcal.predictions.softmax_files import find_softmax

    folder, from_probs = _which(logits, probs)
    loaded = load_calibrator(calibrator)
    if images is not None and not getattr(loaded, "channels", 0):
        raise ValueError(f"Expected no --images: {calibrator} was fitted without images.")
    done = []
    with _progress(len(find_softmax(folder))) as step:
        for one in apply_folder(
            loaded, folder, out,
            from_probs=from_probs, images=images, axes=axes, overwrite=overwrite,
        ):  # fmt: skip
            done.append(one)
            step("applied", len(done))
    voxels, changed = sum(one.voxels for one in done), sum(one.changed for one in done)
    typer.echo(f"{out}: {len(done)} cases, {_say_changed(changed, voxels)}")


def audit(
    probs: Annotated[
        list[str], typer.Option(help="Folder of probabilities; several networks: NAME=FOLDER each.")
    ],
    labels: Labels,
    out: Annotated[Path, typer.Option(help="Folder of the study; the page is report/index.html.")],
    images: Images = None,
    name: Annotated[str | None, typer.Option(help="What to call the network.")] = None,
    dataset: Annotated[str, typer.Option(help="What to call the data.")] = "audit",
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes, background first: background,RV,MYO.")
    ] = None,
    region: Annotated[
        str, typer.Option(help="Where the report reads calibration; all regions are measured.")
    ] = "all",
    logits: Annotated[bool, typer.Option("--logits", help="The folders hold logits.")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 1 if it holds: 'ece>0.05', 'foreground:cece>=0.1'."),
    ] = None,
    patient: Patient = None,
    axes: Axes = "auto",
    ignore_label: IgnoreLabel = None,
    overwrite: Overwrite = False,
) -> None:
    """Report on the calibration of any network's softmax; guard a release with --fail-if."""
    from segcal.evaluation.audit import audit_predictions, make_networks
    from segcal.evaluation.fail_rules import check_rules, parse_rule
    from segcal.report import write_report

    rules = [parse_rule(text) for text in fail_if or ()]
    networks = make_networks(probs, name)
    with _progress(None) as step:
        audited = audit_predictions(
            networks, labels, out,
            images=images, dataset=dataset, classes=_names(classes), region=region, logits=logits,
            axes=axes, ignore_label=ignore_label, patient=patient, overwrite=overwrite,
            progress=step,
        )  # fmt: skip
    _say_unused(audited)
    if not audited.has_spacing:
        typer.echo("no file says how large a voxel is: distances are in voxels", err=True)
    page = write_report(out)
    for line in audited.lines():
        typer.echo(line)
    typer.echo(f"report: {page}")
    broken = check_rules(audited.networks, rules)
    for line in broken:
        typer.echo(f"segcal: {line}", err=True)
    if broken:
        raise typer.Exit(1)


def _which(logits: Path | None, probs: Path | None) -> tuple[Path, bool]:
    """The folder, and whether it holds probabilities."""
    if (logits is None) == (probs is None):
        raise ValueError("Expected either --logits FOLDER or --probs FOLDER.")
    return (logits, False) if logits is not None else (Path(str(probs)), True)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


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


def _say_unused(pairs: Any) -> None:
    if pairs.unused:
        shown = ", ".join(pairs.unused[:3]) + (", …" if len(pairs.unused) > 3 else "")
        count = len(pairs.unused)
        typer.echo(f"{count} label maps have no prediction and are left out ({shown})", err=True)


def _say_changed(changed: int, voxels: int) -> str:
    return f"{changed:,} of {voxels:,} voxels changed their label"


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
        f"{calibrator.method} {kept}: {_say_changed(verdict.changed_labels, verdict.voxels)}"
    )
    typer.echo(verdict.words())


@contextmanager
def _progress(total: int | None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    # In a log, a bar is an empty line.
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=total)
        yield lambda what, done: bar.update(task, description=what, completed=done)
