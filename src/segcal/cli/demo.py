"""`segcal demo`."""

from pathlib import Path
from typing import Annotated

import typer

from segcal.cli import _options as opt

_NEXT = """Next, with your own data:
  segcal audit --probs PREDICTIONS --labels LABELS --out audit  # can this network be trusted?
  segcal calibrate --probs PREDICTIONS --labels LABELS --method auto --out c.json  # repair it
  segcal prepare folder --source SCANS --out data && segcal train --data data --out run"""


def demo(
    out: Annotated[Path, typer.Option(help="Folder; run again to continue.")] = Path("segcal-demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny data, few epochs: a smoke test.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time; by default one per GPU or core.")
    ] = None,
    report: opt.Report = True,
) -> None:
    """Compare five losses on generated data with known true probabilities; takes minutes."""
    from segcal.benchmark import prepare_demo, run_demo
    from segcal.cli.benchmark import finish
    from segcal.core.progress import show_progress

    typer.echo(f"{out}: generates scans, trains a small network with five losses, writes a report")
    time = "about a minute" if quick else "a few minutes"
    typer.echo(f"This takes {time} on two cores; a line is printed when a training is done.")
    try:
        with show_progress() as step:
            prepare_demo(out, quick=quick, progress=step)
        study = run_demo(out, quick=quick, jobs=jobs)
    except KeyboardInterrupt:
        opt.warn(f"{out}: stopped; run the same command again to continue")
        raise typer.Exit(130) from None
    finish(study, report)
    typer.echo(_NEXT)
