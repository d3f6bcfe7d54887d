"""The reference: how it was selected, and its rank."""

from typing import TYPE_CHECKING

from segcal.report.context import Context
from segcal.study.reader import Study

if TYPE_CHECKING:
    import pandas as pd

# Where the reference was named -> how the report says so, and what follows from it.
_NAMED = {
    "plan": ("named in the plan before any run was evaluated", ", not selected by its results"),
    "late": (
        "named in the plan after runs had been evaluated",
        ", possibly with their results known",
    ),
    "study": ("named in study.json", ", which does not say whether results were known then"),
    "report": ("named for this report", ", possibly with the results known"),
}


def reference_note(study: Study, method: str) -> str:
    """Why `method` is compared with the others."""
    title, named = study.methods[method].title, study.named
    if named is not None and named.method == method:
        how, consequence = _NAMED[named.where]
        return f"{title} was {how}{consequence}."
    note = f"{title} was selected because it ranks first on the same cases, which favors it."
    if named is None:
        return note
    other = study.methods[named.method].title
    return f"{other} was {_NAMED[named.where][0]}, but could not be ranked. {note}"


def reference_finding(context: Context) -> list[str]:
    """The rank of the named reference; nothing if none was named."""
    study, ranks, named = context.study, context.rankings, context.study.named
    if named is None:
        return []
    title = f"{context.title(named.method)} ({_NAMED[named.where][0]})"
    if ranks is None:
        return [f"{title} cannot be compared: fewer than two methods can be ranked."]
    if named.method != ranks.reference:
        return [
            f"{title} is not ranked, because a dataset has no finished run of it; "
            f"{context.title(ranks.reference)}, first by sum-rank, is compared instead."
        ]
    if named.method == ranks.best:  # the first finding has its ranks
        return [reference_note(study, named.method)]
    by_sum = _place(ranks.sums, "sum_rank", named.method, "{:g}")
    by_case = _place(ranks.cases, "mean_case_rank", named.method, "{:.2f}")
    return [
        f"{title}: place {by_sum} by sum-rank, place {by_case} by mean-case-rank, of "
        f"{len(ranks.sums)} methods."
    ]


def _place(table: "pd.DataFrame", column: str, method: str, form: str) -> str:
    """The place of a method, the first of those that equal ranks share, and its rank."""
    value = float(table.loc[table["method"] == method, column].iloc[0])
    shared = "shared, " if int((table[column] == value).sum()) > 1 else ""
    return f"{1 + int((table[column] < value).sum())} ({shared}{form.format(value)})"
