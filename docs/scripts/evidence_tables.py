"""Write the tables of the pages about the evidence, from the published rows in docs/results.

python docs/scripts/evidence_tables.py

A page has a table between the lines `<!-- table: NAME -->` and `<!-- end -->`; the names are those
of TABLES below.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
import yaml

from segcal.stats import compare_with_random_effects, method_means
from segcal.study import Study, read_study

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/results/README.md",
    "docs/results/default-recipe.md",
    "docs/reference/losses.md",
)
SETS = {"acdc": "acdc", "lidc": "lidc", "hippocampus": "volumes", "brats": "volumes"}
TITLES = {"acdc": "ACDC", "lidc": "LIDC", "hippocampus": "Hippocampus", "brats": "BraTS FLAIR"}
BOUNDARY = "predicted_boundary"
# A method that changes by less under shift keeps its calibration; the plan states this rule.
MAX_CHANGE = 0.01
Table = Iterator[Sequence[str]]


@cache
def study(name: str) -> Study:
    return read_study(ROOT / "docs" / "results" / f"evidence_{name}")


@cache
def rows(dataset: str) -> pd.DataFrame:
    """The rows of a data set; on LIDC, a DSC for scans with a nodule, and the share of false ones.

    49 of the 102 scans of LIDC have no nodule for the majority of the readers. There the DSC is 1
    or 0, which says nothing about outlines.
    """
    table = study(SETS[dataset]).table.astype({"metric": str, "value": float})
    table = table[table["dataset"] == dataset]
    if dataset != "lidc":
        return table
    volume = table[table["metric"] == "true_volume_ml"].groupby("case", observed=True)["value"]
    dsc = table[table["metric"] == "dsc"]
    empty = dsc["case"].astype(str).map(volume.max()) == 0
    false = dsc[empty].assign(metric="false_nodules", value=lambda each: 100 * (1 - each["value"]))
    return pd.concat([table, dsc[~empty].assign(metric="dsc_nodule"), false])


@cache
def means(dataset: str, region: str) -> pd.DataFrame:
    """Means over scans, with the standard deviation over seeds."""
    return method_means(rows(dataset), region=region).set_index(["method", "metric"])


def value(
    dataset: str, method: str, metric: str, region: str = BOUNDARY, digits: int = 3, scale: int = 1
) -> str:
    """Mean ± standard deviation over seeds, which one seed does not have."""
    if (method, metric) not in means(dataset, region).index:
        return "–"
    found = means(dataset, region).loc[(method, metric)]
    text = short(scale * found["mean"], digits)
    return text if math.isnan(found["std"]) else text + spread(scale * found["std"], digits)


def short(number: float, digits: int = 3, sign: str = "-") -> str:
    """A number without the zero before its point, and with a minus sign of full width."""
    text = f"{number:{sign}.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(number) < 1 else text


def spread(deviation: float, digits: int) -> str:
    return f"\u00a0±\u00a0{short(deviation, digits)}"


def interval(row: pd.Series, digits: int = 4) -> str:
    mean, low, high = (short(row[end], digits, "+") for end in ("mean_difference", "low", "high"))
    return f"{mean} [{low},\u00a0{high}]"


def methods() -> dict[str, str]:
    """Methods without calibrators, with their titles."""
    plan = yaml.safe_load((ROOT / "examples" / "evidence.yaml").read_text(encoding="utf-8"))
    return {name: study("acdc").methods[name].title for name in plan["methods"]}


def losses() -> Table:
    """Test cases of ACDC, LIDC and Hippocampus."""
    yield (
        "", "ACDC: DSC ↑", "NLL ↓", "ECE ↓", "LIDC: DSC, nodule exists ↑",
        "false nodules, % ↓", "NLL × 1000, all voxels ↓", "Hippocampus: DSC ↑", "NLL ↓", "ECE ↓",
    )  # fmt: skip
    for method, title in methods().items():
        yield (
            title,
            *(value("acdc", method, metric) for metric in ("dsc", "nll", "ece")),
            value("lidc", method, "dsc_nodule", "all"),
            value("lidc", method, "false_nodules", "all", digits=0),
            value("lidc", method, "nll", "all", digits=1, scale=1000),
            *(value("hippocampus", method, metric) for metric in ("dsc", "nll", "ece")),
        )


def headline() -> Table:
    """The losses that most readers ask about."""
    yield (
        "", "ACDC: DSC ↑", "ECE ↓", "… with one temperature", "LIDC: DSC, nodule exists ↑",
        "false nodules, % ↓", "NLL × 1000 ↓",
    )  # fmt: skip
    for method in ("ce", "ce_dice", "ce_proper_dice", "nacl"):
        yield (
            methods()[method],
            *(value("acdc", method, metric) for metric in ("dsc", "ece")),
            value("acdc", f"{method}+temperature", "ece"),
            value("lidc", method, "dsc_nodule", "all"),
            value("lidc", method, "false_nodules", "all", digits=0),
            value("lidc", method, "nll", "all", digits=1, scale=1000),
        )


def claims() -> Table:
    """The claims of the plans of evidence_acdc, evidence_lidc and evidence_volumes."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in ("acdc", "lidc", "volumes"):
        page = study(name).folder / "tables" / "hypotheses.md"
        for line in page.read_text(encoding="utf-8").splitlines()[4:]:
            cells = re.split(r"(?<!\\)\|", re.sub(r"\\([^|])", r"\1", line).strip("| "))
            claim, dataset, _, rule, gain, _, _, verdict = map(str.strip, cells)
            rule = rule.replace("&gt;", ">").replace("&lt;", "<")
            rule = re.sub(r"\\\|gain\\\| < (.*)", r"−\1 < gain < \1", rule)
            gain = re.sub(r"([+−])0[.]", r"\1.", gain).replace(", ", ",\u00a0")
            found.setdefault((claim, rule), {})[dataset] = f"{verdict}: {gain}"
    yield ("claim", "holds if", *TITLES.values())
    for (claim, rule), cells in found.items():
        yield (claim, rule.replace("0.", "."), *(cells.get(t, "–") for t in TITLES.values()))


def shift() -> Table:
    """Test patients of ACDC: networks that saw their pathology in training → that did not."""
    names = ("dsc", "nll", "ece")
    yield (
        "", "DSC", "NLL", "ECE", "change of NLL", "change of ECE", "keeps its calibration"
    )  # fmt: skip
    seen, unseen = study("acdc"), study("shift")
    patients = {name: dict(one.patients) for name, one in seen.datasets.items()}
    for method in (m for m in unseen.methods if "+" not in m):
        for key in (method, f"{method}+temperature"):
            parts = []
            for name, table in (("unseen", unseen.table), ("seen", seen.table)):
                part = table[(table["method"] == key) & table["case"].isin(patients["acdc"])]
                run = name + part["seed"].astype(str)
                parts.append(part.assign(method=name, dataset="acdc", run=run))
            shared = set(parts[0]["seed"]) & set(parts[1]["seed"])
            table = pd.concat([part[part["seed"].isin(shared)] for part in parts])
            changes = compare_with_random_effects(
                table, reference="unseen", metrics=names, region=BOUNDARY, patients=patients
            ).set_index("metric")
            each = method_means(table, metrics=names, region=BOUNDARY)
            mean = each.set_index(["metric", "method"])["mean"]
            yield (
                seen.methods[key].title,
                *(f"{short(mean[m, 'seen'])} → {short(mean[m, 'unseen'])}" for m in names),
                interval(changes.loc["nll"]),
                interval(changes.loc["ece"]),
                "yes" if changes.loc["ece", "high"] < MAX_CHANGE else "not shown",
            )


def validation() -> Table:
    """DSC and ECE over all voxels of the validation cases, at the checkpoint that was tested."""
    yield ("", *(f"{TITLES[d]}: {m}" for d in SETS for m in ("DSC ↑", "ECE ↓")))
    for method, title in methods().items():
        cells = []
        for dataset, name in SETS.items():
            found = []
            for run in study(name).info.runs:
                if (run.dataset, run.method) == (dataset, method) and run.training:
                    course = run.training.course
                    at = course.epochs.index(run.training.tested_epoch)
                    found.append((course.dsc[at], course.ece[at]))
            for numbers, digits in zip(zip(*found, strict=True), (3, 4), strict=False):
                series = pd.Series(numbers)
                wide = spread(series.std(), digits) if len(series) > 1 else ""
                cells.append(short(series.mean(), digits) + wide)
            cells += [] if found else ["–", "–"]
        yield (title, *cells)


TABLES: dict[str, Callable[[], Table]] = {
    each.__name__: each for each in (losses, headline, claims, shift, validation)
}


def markdown(table: Table) -> str:
    head = next(table)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *table]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def update(page: str) -> str:
    """The text of a page with its tables written again."""
    pattern = r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda m: m[1] + markdown(TABLES[m[2]]()) + m[3], page, flags=re.DOTALL)


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / name
        path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
