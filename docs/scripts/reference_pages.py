"""Write the generated pages of the reference: commands, names, API. Called by docs/conf.py.

The pages are derived from the typer app, the registries and the `__all__` of the packages, so they
list everything that is there. They are not committed.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from segcal.cli import app
from segcal.cli.list import REGISTRIES
from segcal.registry import Registry

PACKAGES = {
    "segcal.losses": "Losses and priors",
    "segcal.metrics": "Calibration, overlap and distances of a case",
    "segcal.stats": "Tables of cases: means, ranking, tests",
    "segcal.posthoc": "Post-hoc calibrators",
    "segcal.assurance": "Volumes with intervals, masks, referral",
    "segcal.data": "Prepare, open and load data sets",
    "segcal.models": "Networks",
    "segcal.training": "Training",
    "segcal.evaluation": "Evaluate, predict, audit",
    "segcal.predictions": "Softmax files of other tools",
    "segcal.benchmark": "Studies",
    "segcal.report": "Reports and their sections",
    "segcal.integrations.monai": "Metric for MONAI",
    "segcal.integrations.nnunet": "nnU-Net",
    "segcal.integrations.torchmetrics": "Metrics for torchmetrics",
    "segcal.registry": "Objects by name",
    "segcal.config": "Settings of a training",
}


def write(folder: Path) -> None:
    """Write commands/, api/ and names.md in FOLDER; files that would not change are left alone."""
    pages = {"names.md": _names(), **_commands(), **_api()}
    for name, text in pages.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
    for folder_name in ("commands", "api"):
        for page in (folder / folder_name).iterdir():
            if f"{folder_name}/{page.name}" not in pages:
                page.unlink()


def _own_names(registry: Registry[Any]) -> list[str]:
    """The names that segcal registers, without those of installed plugins."""
    plugins = {point.name for point in entry_points(group=registry.group)}
    return [name for name in registry.names() if name not in plugins]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |"
        for line in lines
    )


def _names() -> str:
    text = ["# Names", "", "Everything that can be chosen by name; `segcal list KIND` prints it."]
    text.append("An import path `package.module:Object` works wherever a name does.\n")
    for kind, (module, attribute) in REGISTRIES.items():
        registry = getattr(import_module(module), attribute)
        text.append(f"## {kind.capitalize()}\n")
        names = _own_names(registry)
        if kind == "metrics":
            rows = [_metric_row(name, registry.get(name)) for name in names]
            head = ("name", "meaning", "unit", "better", "one value for", "needs")
        else:
            rows = [(f"`{name}`", registry.describe(name)) for name in names]
            head = ("name", "description")
        text += [_table(head, rows), ""]
    return "\n".join(text)


def _metric_row(name: str, metric: Any) -> tuple[str, ...]:
    title = f"{metric.title}, computed on request" if not metric.default else metric.title
    scope = {"structure": "each structure", "region": "each region", "image": "the case"}
    unit = {"unit": "mm or voxels", "tolerance": "tolerance in mm"}.get(metric.suffix, metric.unit)
    requires = (metric.requires or "").replace("_", " ")
    return (f"`{name}`", title, unit, metric.better or "–", scope[metric.scope], requires)


def _commands() -> dict[str, str]:
    group = typer.main.get_command(app)
    context = SimpleNamespace()  # list_commands and get_command of typer do not use it
    pages, lines = {}, []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        pages[f"commands/{name}.md"] = _command_page(f"segcal {name}", command, context)
        lines.append((f"[`segcal {name}`]({name}.md)", (command.help or "").split("\n\n")[0]))
    toc = ["```{toctree}", ":hidden:", "", *(Path(page).stem for page in pages), "```", ""]
    head = "# Commands\n\nThe pages are generated from the help texts: `segcal COMMAND --help`.\n"
    pages["commands/index.md"] = "\n".join([head, _table(("command", ""), lines), "", *toc])
    return pages


def _command_page(title: str, command: Any, context: Any) -> str:
    if not hasattr(command, "list_commands"):
        return f"# {title}\n\n{_options(title, command)}"
    text = [f"# {title}\n", command.help or "", ""]
    names = command.list_commands(context)
    if title == "segcal prepare":
        from segcal.data import SOURCES

        names = _own_names(SOURCES)
    for name in names:
        part = command.get_command(context, name)
        text += [f"## {title} {name}\n", _options(f"{title} {name}", part)]
    return "\n".join(text)


def _options(title: str, command: Any) -> str:
    required, rows = [], []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        metavar = parameter.name.upper()
        if parameter.param_type_name == "argument":
            name = f"`{metavar}`"
            required.append(metavar if parameter.required else f"[{metavar}]")
        else:
            switches = [*parameter.opts, *parameter.secondary_opts]
            name = ", ".join(f"`{switch}`" for switch in switches)
            if parameter.required:
                required.append(f"{switches[0]} {metavar}")
        rows.append((name, parameter.help or "", _default(parameter)))
    usage = " ".join([title, *required, "[OPTIONS]"])
    table = _table(("argument or option", "meaning", "default"), rows)
    return f"```text\n{usage}\n```\n\n{command.help or ''}\n\n{table}\n"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if callable(value) or value in (None, "", [], ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def _api() -> dict[str, str]:
    pages = {}
    for name, title in PACKAGES.items():
        head = f"{name}\n{'=' * len(name)}\n\n{title}.\n\n"
        body = f".. automodule:: {name}\n   :members:\n   :show-inheritance:\n"
        pages[f"api/{name}.rst"] = head + body
    rows = [(f"[`{name}`]({name}.rst)", title) for name, title in PACKAGES.items()]
    toc = ["```{toctree}", ":hidden:", "", *PACKAGES, "```", ""]
    head = "# Python interface\n\nGenerated from the docstrings. Import from these packages.\n"
    pages["api/index.md"] = "\n".join([head, _table(("package", ""), rows), "", *toc])
    return pages
