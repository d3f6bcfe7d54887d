"""Tables as Markdown, LaTeX and CSV; all text is escaped for its format."""

import csv
import io
import math
import re

from segcal.report.table_model import Cell, Column, Row, Table

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


def _with_spread(cell: Cell, column: Column, sign: str) -> str:
    spread = cell.spread(column.digits)
    out = cell.mean(column.digits) + (f" {sign} {spread}" if spread else "")
    return f"{out} {cell.after}" if cell.after else out


def _markdown_cell(cell: Cell, column: Column) -> str:
    text = markdown(_with_spread(cell, column, "±"))
    if cell.mark in ("best", "significant"):
        text = f"**{text}**"
    elif cell.mark == "second":
        text = f"<u>{text}</u>"
    remarks = cell.remarks(column.digits)
    return text + (f" ({', '.join(remarks)})" if remarks else "")


def to_markdown(table: Table) -> str:
    """A Markdown table as GitHub shows it: best in bold, second underlined."""
    heads = [f"{c.group}: {c.heading}" if c.group else c.heading for c in table.columns]
    lines = [f"**{markdown(table.title)}**" + _sentence(markdown(table.caption)), ""]
    lines.append("| " + " | ".join(map(markdown, [table.head, *heads])) + " |")
    lines.append("|---" + "|---:" * len(heads) + "|")
    for row in table.rows:
        title = markdown(row.title) + (f" ({markdown(row.note)})" if row.note else "")
        cells = [_markdown_cell(c, k) for c, k in zip(row.cells, table.columns, strict=True)]
        lines.append("| " + " | ".join([title, *cells]) + " |")
        if _published(row):
            cells = [_published_cell(c, k) for c, k in zip(row.cells, table.columns, strict=True)]
            lines.append("| " + " | ".join([f"{markdown(row.title)} (published)", *cells]) + " |")
    lines += ["", *(f"- {markdown(note)}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _sentence(text: str) -> str:
    return f" {text}" if text else ""


def _published(row: Row) -> bool:
    return any(cell.published is not None for cell in row.cells)


def _published_cell(cell: Cell, column: Column) -> str:
    return "" if cell.published is None else f"{cell.published:.{column.digits}f}"


def _tex_cell(cell: Cell, column: Column) -> str:
    text = tex(_with_spread(cell, column, "±"))
    if cell.mark in ("best", "significant"):
        text = rf"\textbf{{{text}}}"
    elif cell.mark == "second":
        text = rf"\underline{{{text}}}"
    remarks = cell.remarks(column.digits)
    return text + (rf"\,({', '.join(remarks)})" if remarks else "")


def to_latex(table: Table) -> str:
    """A table environment; needs the package booktabs."""
    line = r" \\"
    out = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering"]
    caption = _sentence(tex(" ".join([table.caption, *table.notes]).strip()))
    out.append(rf"\caption{{\textbf{{{tex(table.title)}}}{caption}}}")
    out += [rf"\label{{tab:{re.sub(r'[^a-z0-9]+', '-', table.name.lower())}}}"]
    out += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    if table.groups:
        spans = [rf"\multicolumn{{{n}}}{{c}}{{{tex(text)}}}" for text, _, n in table.groups]
        out.append(" & " + " & ".join(spans) + line)
    out.append(" & ".join([tex(table.head), *(tex(c.heading) for c in table.columns)]) + line)
    out.append(r"\midrule")
    for row in table.rows:
        if row.rule:
            out.append(r"\midrule")
        title = tex(row.title) + (f" ({tex(row.note)})" if row.note else "")
        cells = [_tex_cell(c, k) for c, k in zip(row.cells, table.columns, strict=True)]
        out.append(" & ".join([title, *cells]) + line)
        if _published(row):
            cells = [_published_cell(c, k) for c, k in zip(row.cells, table.columns, strict=True)]
            out.append(" & ".join([r"\quad published", *cells]) + line)
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
                row.method, row.title, column.group, column.dataset, column.key, column.unit,
                table.region, shown[0], "" if cell.text else shown[1], number.seeds or "",
                number.cases or "", number.undefined or row.undefined, cell.mark,
                "" if cell.published is None else cell.published,
                "" if math.isnan(cell.ranked) else f"{cell.ranked:.10g}",
            ))  # fmt: skip
    return out.getvalue()


# Ending of a file -> function that converts a table.
FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
