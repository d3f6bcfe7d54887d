"""The method that a study is about: who named it, when, and what that is worth."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from segcal.report.ranks import Ranks
    from segcal.study import Study

# Where a name came from → how that is said, and what a reader should make of it.
_FROM = {
    "plan": ("named in the plan before any run was evaluated", ", not chosen by its results"),
    "late": (
        "named in the plan when runs had been evaluated already",
        "; it may have been chosen after their results were seen",
    ),
    "study": (
        "named in study.json",
        "; whether that was before results were seen is not written there",
    ),
    "report": (
        "named when the report was made",
        "; it may have been chosen after the results were seen",
    ),
}


def why_this(study: "Study", method: str) -> str:
    """Why `method` is the one that is compared with the others, and what that is worth."""
    title, named = study.methods[method].title, study.named
    if named is not None and named.method == method:
        return f"{title} was {''.join(_FROM[named.where])}."
    out = f"{title} was chosen as the best on the same cases, which favours it."
    if named is None:
        return out
    other = study.methods[named.method].title
    return f"{other} was {_FROM[named.where][0]}, but could not be ranked. {out}"


def place_words(study: "Study", ranks: "Ranks | None") -> str:
    """Where the named method stands, in one sentence for the findings; "" if nobody named one."""
    named = study.named
    if named is None or study.table.empty:
        return ""
    title = study.methods[named.method].title
    how = _FROM[named.where][0]
    if ranks is None:
        return f"{title}, {how}, cannot be compared: no two methods can be ranked."
    if named.method != ranks.reference:
        return (
            f"{title}, {how}, could not be ranked, because a dataset has no finished run of "
            f"it; {study.methods[ranks.reference].title}, the first by sum-rank, is compared with "
            "the others instead."
        )
    if named.method == ranks.best:  # the finding before said its ranks
        return why_this(study, named.method)
    by_sum, sum_rank = _place(ranks.sums, "sum_rank", named.method)
    by_case, case_rank = _place(ranks.cases, "mean_case_rank", named.method)
    return (
        f"{title}, {how}, is number {by_sum} of {len(ranks.sums)} by sum-rank "
        f"({sum_rank:g}) and number {by_case} by mean-case-rank ({case_rank:.2f})."
    )


def _place(table: "pd.DataFrame", column: str, method: str) -> tuple[str, float]:
    """Its place, the first of those that equals share, and its rank."""
    value = float(table.loc[table["method"] == method, column].iloc[0])
    shared = " (shared)" if int((table[column] == value).sum()) > 1 else ""
    return f"{1 + int((table[column] < value).sum())}{shared}", value
