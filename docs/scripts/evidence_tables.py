"""Print the tables of the pages about the evidence, from the published rows in docs/results.

python docs/scripts/evidence_tables.py losses      # test cases: every loss on every data set
python docs/scripts/evidence_tables.py validation  # validation cases at the tested checkpoint
python docs/scripts/evidence_tables.py shift       # a pathology left out, on the same patients
"""

import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd

from segcal.stats import compare_with_random_effects, method_means
from segcal.study import Study, read_study

RESULTS = Path(__file__).parents[1] / "results"
SETS = {"acdc": "acdc", "lidc": "lidc", "hippocampus": "volumes", "brats": "volumes"}
TITLES = {"acdc": "ACDC", "lidc": "LIDC", "hippocampus": "Hippocampus", "brats": "BraTS FLAIR"}
BOUNDARY = "predicted_boundary"
# More than this and a method has lost its calibration under shift; the plan states the rule.
MAX_CHANGE = 0.01


@cache
def study(name: str) -> Study:
    return read_study(RESULTS / f"evidence_{name}")


def trained(dataset: str) -> list[str]:
    """The methods of a data set without calibrators."""
    info = study(SETS[dataset]).info
    runs = {run.method for run in info.runs if run.dataset == dataset}
    return [one.name for one in info.methods if one.name in runs and "+" not in one.name]


@cache
def means(dataset: str, region: str) -> pd.DataFrame:
    table = study(SETS[dataset]).table
    part = table[table["dataset"] == dataset]
    return method_means(part, region=region).set_index(["method", "metric"])


def value(dataset: str, method: str, metric: str, region: str = BOUNDARY) -> str:
    """Mean ± standard deviation over seeds, which one seed does not have."""
    if (method, metric) not in means(dataset, region).index:
        return "–"
    found = means(dataset, region).loc[(method, metric)]
    scale, digits = (1000, 1) if region == "all" and metric == "nll" else (1, 3)
    text = short(scale * found["mean"], digits)
    return text if math.isnan(found["std"]) else f"{text} ± {short(scale * found['std'], digits)}"


def short(number: float, digits: int = 3, sign: str = "-") -> str:
    """A number without the zero before its point, and with a minus sign of full width."""
    text = f"{number:{sign}.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(number) < 1 else text


def seeds(dataset: str, method: str) -> str:
    found = means(dataset, BOUNDARY)
    return str(int(found.loc[(method, "dsc"), "seeds"])) if (method, "dsc") in found.index else "0"


def title(method: str) -> str:
    return study("acdc").methods[method].title


def losses() -> Iterator[list[str]]:
    """NLL on LIDC is over all voxels, because many nodules have no predicted boundary."""
    columns = [
        (dataset, metric, "all" if (dataset, metric) == ("lidc", "nll") else BOUNDARY)
        for dataset in SETS
        for metric in ("dsc", "nll", "ece")
    ]
    names = [m.upper() + " × 1000, all voxels" * (r == "all") for _, m, r in columns]
    sets = [TITLES[dataset] for dataset, _, _ in columns]
    yield ["loss", *map(" ".join, zip(sets, names, strict=True)), "seeds"]
    for method in trained("acdc"):
        cells = [value(d, method, m, r) for d, m, r in columns]
        yield [title(method), *cells, ", ".join(seeds(d, method) for d in SETS)]


def validation() -> Iterator[list[str]]:
    """DSC and ECE over all voxels of the validation cases, at the checkpoint that was tested."""
    yield ["loss", *(f"{TITLES[d]} {m}" for d in SETS for m in ("DSC", "ECE all")), "seeds"]
    for method in trained("acdc"):
        cells, count = [], []
        for dataset in SETS:
            rows = []
            for run in study(SETS[dataset]).info.runs:
                if (run.dataset, run.method) == (dataset, method) and run.training:
                    course = run.training.course
                    at = course.epochs.index(run.training.tested_epoch)
                    rows.append((course.dsc[at], course.ece[at]))
            mean = pd.DataFrame(rows, columns=["dsc", "ece"]).mean()
            cells += [short(mean["dsc"]), short(mean["ece"], 4)] if rows else ["–", "–"]
            count.append(str(len(rows)))
        yield [title(method), *cells, ", ".join(count)]


def shift() -> Iterator[list[str]]:
    """Test patients of ACDC: networks that saw their pathology, and those that did not."""
    seen, unseen = study("acdc"), study("shift")
    patients = {name: dict(one.patients) for name, one in seen.datasets.items()}
    cases = patients["acdc"]
    yield ["loss", "calibrator", "DSC", "NLL", "ECE", "change of ECE", "keeps its calibration"]
    methods = [m for m in unseen.methods if "+" not in m]
    for method in methods:
        for calibrator in ("", "+temperature", "+auto"):
            key = method + calibrator
            parts = [
                table[(table["method"] == key) & (table["seed"] == "0") & table["case"].isin(cases)]
                .assign(method=name, dataset="acdc", run=f"acdc/{name}")
                for name, table in (("unseen", unseen.table), ("seen", seen.table))
            ]  # fmt: skip
            if any(part.empty for part in parts):
                continue
            table = pd.concat([part.astype({"value": float}) for part in parts])
            found = compare_with_random_effects(
                table, reference="unseen", metrics=["dsc", "nll", "ece"], region=BOUNDARY,
                patients=patients,
            ).set_index("metric")  # fmt: skip
            each = method_means(table, metrics=["dsc", "nll", "ece"], region=BOUNDARY)
            each = each.set_index(["metric", "method"])["mean"]
            change = found.loc["ece"]
            yield [
                title(method), calibrator.removeprefix("+") or "none",
                *(f"{short(each[m, 'seen'])} → {short(each[m, 'unseen'])}"
                  for m in ("dsc", "nll", "ece")),
                "{} [{}, {}]".format(
                    *(short(change[end], 3, "+") for end in ("mean_difference", "low", "high"))
                ),
                "yes" if change["high"] < MAX_CHANGE else "not shown",
            ]  # fmt: skip


def main(kind: str) -> None:
    rows = {"losses": losses, "validation": validation, "shift": shift}[kind]()
    print(f"| {' | '.join(head := next(rows))} |\n|---|{'---:|' * (len(head) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
