"""The mean over labels, then cases, then seeds, against loops."""

import numpy as np
import pandas as pd
import pytest

from segcal.metrics import POOLED, Row
from segcal.stats import method_means, to_frame


def rows() -> pd.DataFrame:
    """Two datasets, methods and seeds; other numbers of labels and cases in each."""
    rng = np.random.default_rng(0)
    out = []
    for dataset, cases in (("d", 3), ("e", 7)):
        for method in ("a", "b"):
            for seed in (0, 1):
                for case in range(cases - seed):
                    who = (f"{method}{seed}", method, seed, dataset, f"c{case}")
                    for label in range(1 + case % 3):
                        value = float("nan") if (case, label) == (2, 0) else rng.uniform(1, 30)
                        out.append(Row(*who, str(label), "all", "hd95_mm", value))
                    for region in ("all", "foreground"):
                        out.append(Row(*who, "all", region, "ece", rng.uniform()))
                    out.append(Row(*who, "all", "all", "truth_ece", rng.uniform()))
                out.append(Row("r", method, seed, dataset, POOLED, "all", "all", "ece", 9.0))
    return to_frame(out)


def by_hand(table: pd.DataFrame, **which: str) -> tuple[float, float]:
    for name, value in which.items():
        table = table[table[name] == value]
    seeds = []
    for _, seed in table[table["case"] != POOLED].groupby("seed"):
        seeds.append(np.nanmean([case["value"].mean() for _, case in seed.groupby("case")]))
    return float(np.mean(seeds)), float(np.std(seeds, ddof=1))


@pytest.mark.parametrize("dataset", ["d", "e"])
@pytest.mark.parametrize(
    ("metric", "region", "where"),
    [("hd95_mm", "foreground", "all"), ("ece", "foreground", "foreground"), ("ece", "all", "all"),
     ("truth_ece", "foreground", "all")],
)  # fmt: skip
def test_against_loops(dataset: str, metric: str, region: str, where: str) -> None:
    table = rows()
    found = method_means(table, region=region).set_index(["dataset", "method", "metric"])
    for method in ("a", "b"):
        mean, std = by_hand(table, dataset=dataset, method=method, metric=metric, region=where)
        line = found.loc[(dataset, method, metric)]
        assert (line["mean"], line["std"]) == (pytest.approx(mean), pytest.approx(std))
        assert (line["seeds"], line["cases"]) == (2, {"d": 3, "e": 7}[dataset])
    plain = table[(table["metric"] == "hd95_mm") & (table["dataset"] == "e")]["value"].mean()
    assert plain != pytest.approx(found.loc[("e", "a", "hd95_mm")]["mean"], rel=1e-3)


def test_choosing_metrics() -> None:
    table = rows()
    assert set(method_means(table, metrics="hd95")["metric"]) == {"hd95_mm"}
    assert set(method_means(table, metrics=["ece", "truth_ece"])["metric"]) == {"ece", "truth_ece"}
    assert set(method_means(table)["metric"]) == {"hd95_mm", "ece", "truth_ece"}
    lost = method_means(table, metrics="hd95").set_index(["dataset", "method"])["undefined"]
    assert lost.to_dict() == {("d", "a"): 1, ("d", "b"): 1, ("e", "a"): 2, ("e", "b"): 2}
    with pytest.raises(ValueError, match="`region` to be one of"):
        method_means(table, region="border")


def test_tables_made_elsewhere() -> None:
    """Without seeds there is one run of each method; with runs, these are what repeats."""
    table = rows().drop(columns="seed")
    found = method_means(table, metrics="ece").set_index(["dataset", "method"])
    assert found["seeds"].tolist() == [2, 2, 2, 2]
    one = method_means(table.drop(columns="run"), metrics="ece")
    assert one["seeds"].tolist() == [1, 1, 1, 1]
    assert one["std"].isna().all()
