"""`segcal list`."""

from typing import Annotated

import typer

REGISTRIES = {
    "losses": ("segcal.losses", "LOSSES"),
    "priors": ("segcal.losses", "PRIORS"),
    "metrics": ("segcal.metrics", "METRICS"),
    "recipes": ("segcal.training", "RECIPES"),
    "networks": ("segcal.models", "NETWORKS"),
    "sources": ("segcal.data", "SOURCES"),
    "calibrators": ("segcal.posthoc", "CALIBRATORS"),
    "sections": ("segcal.report", "SECTIONS"),
}


def list_names(kind: Annotated[str, typer.Argument(help=f"{', '.join(REGISTRIES)}.")]) -> None:
    """List what can be chosen by name: segcal's own and those of installed plugins.

    Everywhere a name is expected, an import path package.module:Object works too.
    """
    from importlib import import_module

    from segcal.core.checks import check_choice

    check_choice("kind", kind, REGISTRIES)
    module, attribute = REGISTRIES[kind]
    registry = getattr(import_module(module), attribute)
    lines = {name: registry.describe(name) for name in registry.available()}
    if kind == "calibrators":
        from segcal.evaluation import AUTO, AUTO_TITLE

        lines[AUTO] = AUTO_TITLE
    width = max(map(len, lines))
    for name, title in lines.items():
        typer.echo(f"{name:<{width}}  {title}".rstrip())
