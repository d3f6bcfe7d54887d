"""Tables as Markdown, LaTeX and CSV; all text is escaped for its format."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping

from segcal.report.table_model import Cell, Column, Table
from segcal.study import neutral

Escape = Callable[[str], str]

_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$", "±": r"$\pm$", "×": r"$\times$",
    "–": "--", "—": "---", "−": r"$-$", "…": r"\ldots{}", "“": "``", "”": "''", "‖": r"$\|$",
    "≠": r"$\neq$", "≤": r"$\le$", "≥": r"$\ge$", "†": r"$\dagger$",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$",
    "θ": r"$\theta$", "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$", "ν": r"$\nu$",
    "π": r"$\pi$", "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\phi$",
    "χ": r"$\chi$", "ψ": r"$\psi$", "ω": r"$\omega$", "Δ": r"$\Delta$", "Σ": r"$\Sigma$",
    "Ω": r"$\Omega$",
}  # fmt: skip


def tex(text: str) -> str:
    r"""Text for LaTeX.

    Example:
        >>> tex("50 % of a_b & λ")
        '50 \\% of a\\_b \\& $\\lambda$'
    """
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()))


def markdown(text: str) -> str:
    r"""Text for a cell of a Markdown table.

    Example:
        >>> markdown("a|b *c* <script>")
        'a\\|b \\*c\\* &lt;script&gt;'
    """
    out = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", out)


# How a format shows marks and remarks, and the title of a row of published numbers.
_MARKDOWN = {
    "best": "**{}**", "significant": "**{}**", "second": "<u>{}</u>", "remark": " ({})",
    "published": "{} (published)",
}  # fmt: skip
_LATEX = {
    "best": r"\textbf{{{}}}", "significant": r"\textbf{{{}}}", "second": r"\underline{{{}}}",
    "remark": r"\,({})", "published": r"\quad published",
}  # fmt: skip


def _cell(cell: Cell, column: Column, escape: Escape, forms: Mapping[str, str]) -> str:
    spread, remarks = cell.spread(column.digits), cell.remarks(column.digits)
    text = cell.mean(column.digits) + (f" ± {spread}" if spread else "")
    text = escape(f"{text} {cell.after}" if cell.after else text)
    out = forms[cell.mark].format(text) if cell.mark else text
    return out + (forms["remark"].format(", ".join(remarks)) if remarks else "")


def _body(
    table: Table, escape: Escape, forms: Mapping[str, str]
) -> Iterator[tuple[bool, list[str]]]:
    """Each line: whether there is a rule above it, and its cells."""
    for row in table.rows:
        cells = list(zip(row.cells, table.columns, strict=True))
        title = escape(row.title)
        note = f" ({escape(row.note)})" if row.note else ""
        yield row.rule, [title + note, *(_cell(c, k, escape, forms) for c, k in cells)]
        if any(c.published is not None for c in row.cells):
            numbers = [
                "" if c.published is None else f"{c.published:.{k.digits}f}" for c, k in cells
            ]
            yield False, [forms["published"].format(title), *numbers]


def to_markdown(table: Table) -> str:
    """A Markdown table as GitHub shows it: best in bold, second underlined."""
    heads = [f"{c.group}: {c.heading}" if c.group else c.heading for c in table.columns]
    lines = [f"**{markdown(table.title)}** {markdown(table.caption)}".rstrip(), ""]
    lines.append("| " + " | ".join(map(markdown, [table.head, *heads])) + " |")
    lines.append("|---" + "|---:" * len(heads) + "|")
    lines += [f"| {' | '.join(cells)} |" for _, cells in _body(table, markdown, _MARKDOWN)]
    lines += ["", *(f"- {markdown(note)}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def to_latex(table: Table) -> str:
    """A table environment; needs the package booktabs."""
    text = tex(" ".join([table.caption, *table.notes]))
    caption = rf"\textbf{{{tex(table.title)}}} {text}".rstrip()
    out = [
        r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule",
    ]  # fmt: skip
    lines: list[tuple[bool, list[str]]] = []
    if table.groups:
        spans = [rf"\multicolumn{{{n}}}{{c}}{{{tex(text)}}}" for text, _, n in table.groups]
        lines.append((False, ["", *spans]))
    lines.append((False, [tex(table.head), *(tex(c.heading) for c in table.columns)]))
    for i, (rule, cells) in enumerate([*lines, *_body(table, tex, _LATEX)]):
        if rule or i == len(lines):
            out.append(r"\midrule")
        out.append(" & ".join(cells) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def to_csv(table: Table) -> str:
    """One line per cell with all digits, to be read by programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("method", "title", "group", "dataset", "column", "unit", "region", "mean", "sd", "seeds",
         "cases", "undefined", "mark", "published", "ranked")
    )  # fmt: skip
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            number = cell.number
            values = [number.mean, number.spread]
            shown = [cell.text or ("" if math.isnan(v) else f"{v:.10g}") for v in values]
            writer.writerow((
                *map(neutral, (row.method, row.title, column.group, column.dataset, column.key)),
                column.unit,
                table.region, shown[0], "" if cell.text else shown[1], number.seeds or "",
                number.cases or "", number.undefined or row.undefined, cell.mark,
                "" if cell.published is None else cell.published,
                "" if math.isnan(cell.ranked) else f"{cell.ranked:.10g}",
            ))  # fmt: skip
    return out.getvalue()


# Ending of a file -> function that converts a table.
FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
