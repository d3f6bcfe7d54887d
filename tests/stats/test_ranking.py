"""Ranks, tests and intervals from the long table."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.stats import wilcoxon

from segcal import stats
from segcal.metrics import METRICS as REGISTRY
from segcal.metrics import Metric, find_metric, ranking_direction
from segcal.stats import check_table, collect, holm, summarize
from segcal.stats.significance import preferred

METRICS = ("dsc", "hd95", "ece", "cece")

# Table 1 of the NACL paper: DSC, HD, ECE, CECE on FLARE, ACDC and BraTS.
PAPER = {
    "CE+DSC": ".846 5.54 .058 .034  .828 3.14 .137 .084  .777 6.96 .178 .122",
    "FL": ".834 6.65 .053 .059  .620 7.30 .153 .179  .848 9.00 .097 .119",
    "ECP": ".860 5.30 .037 .027  .782 4.44 .130 .094  .808 8.71 .138 .099",
    "LS": ".860 5.33 .055 .049  .809 3.30 .083 .093  .820 7.78 .112 .108",
    "SVLS": ".857 5.72 .039 .036  .824 2.81 .091 .083  .801 8.44 .146 .111",
    "MbLS": ".836 5.75 .046 .041  .827 2.99 .103 .081  .838 7.94 .127 .095",
    "NACL": ".868 4.88 .033 .031  .854 2.55 .048 .061  .850 5.78 .112 .097",
}


def sum_rank(table: pd.DataFrame, **options) -> pd.DataFrame:
    return stats.sum_rank(collect(table, **options))


def mean_case_rank(table: pd.DataFrame, **options) -> pd.DataFrame:
    return stats.mean_case_rank(collect(table, **options))


def compare(table: pd.DataFrame, reference: str | None = None, **options) -> pd.DataFrame:
    return stats.compare(collect(table, **options), reference)


def bootstrap(function, table: pd.DataFrame, **options) -> pd.DataFrame:
    names = ("resamples", "confidence", "seed")
    draws = {name: options.pop(name) for name in names if name in options}
    return function(collect(table, **options), **draws)


def means_with_intervals(table: pd.DataFrame, *, confidence: float = 0.95, **options):
    return stats.means_with_intervals(collect(table, **options), confidence)


def bootstrap_ranks(table: pd.DataFrame, **options) -> pd.DataFrame:
    return bootstrap(stats.bootstrap_ranks, table, **options)


def paper_table() -> pd.DataFrame:
    rows = []
    for method, numbers in PAPER.items():
        values = map(float, numbers.split())
        for dataset in ("FLARE", "ACDC", "BraTS"):
            for metric in METRICS:
                rows.append((method, dataset, "mean", metric, next(values)))
    return pd.DataFrame(rows, columns=["method", "dataset", "case", "metric", "value"])


def make_table(values: dict[str, list[float]], metric: str = "dsc") -> pd.DataFrame:
    """One dataset, one label: method -> a value per case."""
    return pd.DataFrame(
        [
            ("d", method, f"c{i}", "1", "all", metric, value)
            for method, each in values.items()
            for i, value in enumerate(each)
        ],
        columns=["dataset", "method", "case", "label", "region", "metric", "value"],
    )


def test_the_papers_table_gives_its_sum_ranks_with_nacl_first() -> None:
    table = sum_rank(paper_table())
    assert table["method"][0] == "NACL"
    ranks = table.set_index("method")
    # By hand: NACL is first but for CECE on FLARE (2), and on BraTS for ECE (2.5, tied with LS) and
    # CECE (2).
    each = [name for name in ranks.columns if "/" in name]
    assert ranks.loc["NACL", each].tolist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2.5, 2]
    assert ranks.loc["NACL", "sum_rank"] == 15.5
    assert ranks.loc["LS", "BraTS/ece"] == 2.5
    assert ranks.loc["ECP", "FLARE/dsc"] == ranks.loc["LS", "FLARE/dsc"] == 2.5
    assert ranks["sum_rank"].sum() == 12 * 28  # seven ranks add to 28, twelve times
    assert ranks["sum_rank"].drop("NACL").min() > 30


def test_ranks_by_hand_with_ties() -> None:
    table = make_table({"a": [0.9, 0.8, 0.7], "b": [0.9, 0.6, 0.8], "c": [0.5, 0.5, 0.5]})
    ranks = mean_case_rank(table, metrics=["dsc"]).set_index("method")["mean_case_rank"]
    assert ranks.to_dict() == pytest.approx(
        {"a": (1.5 + 1 + 2) / 3, "b": (1.5 + 2 + 1) / 3, "c": 3.0}
    )
    assert sum_rank(table, metrics=["dsc"])["sum_rank"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "metric",
    [m for m in REGISTRY if find_metric(m).better]
    + ["hd95_mm", "hd95_voxel", "hd95_max_mm", "hd_mm", "assd_voxel", "nsd_2mm", "nsd_1.5voxel"],
)
def test_the_direction_of_every_metric(metric: str) -> None:
    values = {"a": [-0.1, -0.1], "b": [0.5, 0.5], "c": [-0.9, -0.9]}
    table = make_table(values, metric)
    best = {"higher": "b", "lower": "c", "zero": "a"}[ranking_direction(metric)]
    for function in (sum_rank, mean_case_rank):
        assert function(table, metrics=[metric], region="all")["method"][0] == best


def test_descriptive_metrics_cannot_be_ranked() -> None:
    table = make_table({"a": [0.1], "b": [0.2]}, "brier_uncertainty")
    with pytest.raises(ValueError, match="brier_uncertainty is descriptive"):
        sum_rank(table, metrics=["brier_uncertainty"], region="all")


def test_units_are_part_of_the_name_and_never_mix() -> None:
    millimeters = make_table({"a": [1.0], "b": [2.0]}, "hd95_mm")
    voxels = make_table({"a": [5.0], "b": [3.0]}, "hd95_voxel")
    assert sum_rank(millimeters, metrics=["hd95"])["d/hd95_mm"].tolist() == [1, 2]
    both = pd.concat([millimeters, voxels])
    with pytest.raises(ValueError, match=r"'hd95' is ambiguous.*hd95_mm, hd95_voxel"):
        sum_rank(both, metrics=["hd95"])
    assert sum_rank(both, metrics=["hd95_voxel"])["method"].tolist() == ["b", "a"]


def test_rows_of_an_unregistered_metric_are_ignored_until_requested() -> None:
    known = make_table({"a": [0.8, 0.7], "b": [0.6, 0.5]})
    table = pd.concat([known, make_table({"a": [1.0, 2.0], "b": [3.0, 4.0]}, "unknown_metric")])
    assert sum_rank(table, metrics=["dsc"])["method"].tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="'unknown_metric' cannot be ranked: it is not registered"):
        sum_rank(table, metrics=["unknown_metric"])


@pytest.mark.parametrize(("better", "best"), [("higher", "b"), ("lower", "c"), ("zero", "a")])
def test_a_registered_metric_is_ranked_by_its_direction(
    better: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY, "_objects", dict(REGISTRY._objects))
    REGISTRY.register("mine", Metric("mine", "mine", float, better, "structure"))
    table = make_table({"a": [-0.1, -0.1], "b": [0.5, 0.5], "c": [-0.9, -0.9]}, "mine")
    for function in (sum_rank, mean_case_rank):
        assert function(table, metrics=["mine"])["method"][0] == best


BY_PATH = Metric("by_path", "by path", float, "lower", "structure")


def test_a_metric_is_requested_by_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTRY, "_objects", dict(REGISTRY._objects))
    table = make_table({"a": [2.0, 2.0], "b": [1.0, 1.0]}, "by_path")
    assert sum_rank(table, metrics=[f"{__name__}:BY_PATH"])["method"].tolist() == ["b", "a"]


def test_signed_errors_do_not_cancel_before_they_are_ranked() -> None:
    """`a` is off by .5 in either direction, `b` by .1: over seeds, labels and cases alike."""
    rows = [
        ("d", method, seed, case, label, "class_signed_gap", value)
        for method, values in (("a", (0.5, -0.5)), ("b", (0.1, 0.1)))
        for seed, case, label, value in (
            (0, "c", "1", values[0]),
            (1, "c", "1", values[1]),
            (0, "c", "2", values[1]),
            (1, "c", "2", values[0]),
        )
    ]
    columns = ["dataset", "method", "seed", "case", "label", "metric", "value"]
    table = pd.DataFrame(rows, columns=columns)
    options = {"metrics": "class_signed_gap", "region": "all"}
    for function in (sum_rank, mean_case_rank, bootstrap_ranks):
        assert function(table, **options)["method"].tolist() == ["b", "a"]
    out = compare(table, **options)
    assert out["better"].tolist() == ["b"]
    assert out["mean_difference"].tolist() == pytest.approx([-0.1])  # of the signed means, 0 − .1


def folds() -> pd.DataFrame:
    """Two folds: each case is in one run only."""
    rows = [
        ("d", method, f"fold{i % 2}", f"c{i}", "dsc", value)
        for method, values in (("a", (0.9, 0.85, 0.8)), ("b", (0.7, 0.75, 0.6)))
        for i, value in enumerate(values)
    ]
    columns = ["dataset", "method", "run", "case", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize("missing", ["raise", "worst", "drop_case"])
def test_a_case_belongs_to_one_fold_only(missing: str) -> None:
    scores = collect(folds(), metrics=["dsc"], missing=missing)
    assert scores.values["d"][..., 0].tolist() == [[0.9, 0.7], [0.85, 0.75], [0.8, 0.6]]
    assert scores.total_undefined == 0


def test_an_undefined_run_is_filled_before_runs_are_averaged() -> None:
    table = pd.concat([
        make_table({"a": [2.0, np.nan], "b": [8.0, 4.0]}, "hd95").assign(seed=0),
        make_table({"a": [2.0, 6.0], "b": [8.0, 4.0]}, "hd95").assign(seed=1),
    ])  # fmt: skip
    scores = collect(table, metrics="hd95", missing="worst")
    assert scores.values["d"][..., 0].tolist() == [[2, 8], [(8 + 6) / 2, 4]]
    assert scores.undefined["d"].tolist() == [[1], [0]]


def test_equal_up_to_rounding_is_a_tie() -> None:
    table = make_table({"a": [0.1, 0.2, 0.3], "b": [0.3, 0.2, 0.1]})
    assert sum_rank(table, metrics=["dsc"])["sum_rank"].tolist() == [1.5, 1.5]


def test_labels_and_seeds_are_averaged_before_ranking() -> None:
    rows = [
        ("d", "a", seed, "c", label, "dsc", value)
        for seed, label, value in ((0, "1", 0.9), (0, "2", 0.5), (1, "1", 0.7), (1, "2", 0.5))
    ] + [("d", "b", 0, "c", "1", "dsc", 0.6), ("d", "b", 0, "c", "2", "dsc", 0.8)]
    columns = ["dataset", "method", "seed", "case", "label", "metric", "value"]
    scores = collect(pd.DataFrame(rows, columns=columns), metrics=["dsc"])
    assert scores.values["d"][0, :, 0] == pytest.approx([0.65, 0.7])
    assert scores.methods == ["a", "b"]


def test_the_region_selects_calibration_rows_only() -> None:
    part = make_table({"a": [0.1], "b": [0.2]}, "ece")
    other = make_table({"a": [0.4], "b": [0.3]}, "ece").assign(region="boundary")
    table = pd.concat([part, other, make_table({"a": [0.5], "b": [0.6]})])
    metrics = ["ece", "dsc"]
    everywhere = sum_rank(table, metrics=metrics, region="all").set_index("method")
    assert everywhere.loc["a", "d/ece"] == 1
    edge = sum_rank(table, metrics=metrics, region="boundary").set_index("method")
    assert edge.loc["a", "d/ece"] == 2
    assert edge.loc["a", "d/dsc"] == 2
    with pytest.raises(ValueError, match="no rows of metric 'ece' in region 'union'"):
        sum_rank(table, metrics=metrics, region="union")


# Missing values


def holey() -> pd.DataFrame:
    """HD95 of three cases; `a` missed the organ in c1, c2 has no value for anyone."""
    return make_table({"a": [1.0, np.nan, np.nan], "b": [2.0, 9.0, np.nan]}, "hd95")


def overlaps(last_a: float, last_b: float) -> pd.DataFrame:
    """The DSC that goes with `holey`; its last values tell what c2 was."""
    return make_table({"a": [0.9, 0.0, last_a], "b": [0.8, 0.3, last_b]})


def test_missing_values_are_refused_by_default() -> None:
    with pytest.raises(
        ValueError, match=r"3 values .* in dataset 'd', the first is 'hd95' of label '1', "
    ):
        collect(holey(), metrics=["hd95"])
    with pytest.raises(ValueError, match="method 'a'"):
        collect(holey(), metrics=["hd95"])


def test_worst_makes_a_missed_organ_cost_and_an_absent_one_not() -> None:
    both_absent = pd.concat([holey(), overlaps(1.0, 1.0)])
    scores = collect(both_absent, metrics=["hd95"], missing="worst")
    assert scores.cases["d"] == ["c0", "c1"]
    assert scores.values["d"][..., 0].tolist() == [[1.0, 2.0], [9.0, 9.0]]
    assert scores.undefined["d"].tolist() == [[2], [1]]
    assert scores.total_undefined == 3
    both_missed = pd.concat([holey(), overlaps(0.0, 0.0)])
    filled = collect(both_missed, metrics=["hd95"], missing="worst").values["d"][..., 0]
    assert filled.tolist() == [[1.0, 2.0], [9.0, 9.0], [9.0, 9.0]]
    # Nothing was there: `a` found nothing, rightly, and `b` something.
    false_alarm = pd.concat([holey(), overlaps(1.0, 0.0)])
    filled = collect(false_alarm, metrics=["hd95"], missing="worst").values["d"][..., 0]
    assert filled[2].tolist() == [1.0, 9.0]
    unknown = collect(holey(), metrics=["hd95"], missing="worst").values["d"][..., 0]
    assert unknown[2].tolist() == [9.0, 9.0]
    low = make_table({"a": [0.2, np.nan], "b": [0.9, 0.4]})
    assert collect(low, metrics=["dsc"], missing="worst").values["d"][1, 0, 0] == 0.2
    gap = make_table({"a": [-0.7, np.nan], "b": [0.1, 0.4]}, "signed_gap")
    filled = collect(gap, metrics=["signed_gap"], region="all", missing="worst")
    assert filled.values["d"][1, 0, 0] == 0.7


def test_calibration_where_nothing_is_predicted() -> None:
    """In c1 `a` predicts nothing, rightly or not; the rows of ECE are those of all structures."""
    ece = make_table({"a": [0.2, np.nan], "b": [0.3, 0.1]}, "ece").assign(
        region="predicted_boundary", label="all"
    )

    def costs(*dsc_of_a: float) -> list[float]:
        structures = [
            make_table({"a": [0.9, dsc], "b": [0.8, 0.0]}).assign(label=name)
            for name, dsc in zip("xy", dsc_of_a, strict=True)
        ]
        table = pd.concat([ece, *structures])
        scores = collect(table, metrics=["ece"], region="predicted_boundary", missing="worst")
        assert scores.total_undefined == 1
        return scores.values["d"][1, :, 0].tolist()

    assert costs(1.0, 1.0) == [0.1, 0.1]  # no structure exists: the best value
    assert costs(1.0, 0.0) == [0.3, 0.1]  # y was missed: the worst
    assert costs(0.0, 0.0) == [0.3, 0.1]


def test_drop_case_drops_it_for_all() -> None:
    table = pd.concat([holey(), make_table({"a": [0.5, 0.6, 0.7], "b": [0.4] * 3})])
    scores = collect(table, metrics=["hd95", "dsc"], missing="drop_case")
    assert scores.cases["d"] == ["c0"]
    assert scores.values["d"].shape == (1, 2, 2)
    with pytest.raises(ValueError, match="no case without missing values"):
        collect(holey()[lambda t: t["case"] != "c0"], metrics=["hd95"], missing="drop_case")


def test_absent_rows_are_missing_values() -> None:
    table = make_table({"a": [0.5, 0.6], "b": [0.7, 0.8]}).drop(index=1)
    with pytest.raises(ValueError, match=r"1 values .* in dataset 'd'"):
        collect(table, metrics=["dsc"])
    assert collect(table, metrics=["dsc"], missing="drop_case").cases["d"] == ["c0"]
    extra = make_table({"a": [0.5]}).assign(dataset="e")
    with pytest.raises(ValueError, match="'b' has no rows of dataset 'e'"):
        collect(pd.concat([table, extra]), metrics=["dsc"], missing="worst")


def test_a_metric_missing_in_one_case_for_all_leaves_the_other_metrics() -> None:
    ece = make_table({"a": [0.5, 0.6, np.nan], "b": [0.4, 0.7, np.nan]}, "ece")
    table = pd.concat([ece, make_table({"a": [0.5, 0.6, 0.7], "b": [0.4, 0.7, 0.8]})])
    options = {"metrics": ["ece", "dsc"], "region": "all", "missing": "worst"}
    ranks = mean_case_rank(table, **options).set_index("method")["mean_case_rank"]
    # a: c0 (2 + 1)/2, c1 (1 + 2)/2, c2 2 (DSC alone)
    assert ranks["a"] == pytest.approx((1.5 + 1.5 + 2) / 3)
    assert bootstrap_ranks(table, resamples=50, **options).notna().all().all()


def test_a_metric_that_a_case_lacks_for_all_is_missing() -> None:
    table = pd.concat([holey()[lambda t: t["case"] == "c0"], overlaps(0.5, 0.5)])
    with pytest.raises(ValueError, match=r"4 values .*, the first is 'hd95' .*case 'c1'"):
        collect(table, metrics=["hd95", "dsc"])
    assert collect(table, metrics=["hd95", "dsc"], missing="drop_case").cases["d"] == ["c0"]


def test_a_metric_that_a_dataset_lacks_is_named() -> None:
    table = pd.concat([overlaps(0.5, 0.5), overlaps(0.5, 0.5).assign(dataset="e"), holey()])
    for lacking in (table, pd.concat([table, holey().assign(dataset="e", value=np.nan)])):
        with pytest.raises(ValueError, match="'e' has no value of metric 'hd95'"):
            collect(lacking, metrics=["dsc", "hd95"], missing="worst")


@pytest.mark.filterwarnings("error")
def test_infinite_values_are_undefined() -> None:
    table = make_table({"a": [1.0, np.inf], "b": [2.0, 9.0]}, "hd95")
    with pytest.raises(ValueError, match=r"1 values .* in dataset 'd'"):
        collect(table, metrics=["hd95"])
    scores = collect(table, metrics=["hd95"], missing="worst")
    assert scores.values["d"][..., 0].tolist() == [[1, 2], [9, 9]]
    assert scores.total_undefined == 1
    assert summarize(table)["undefined"].tolist() == [1, 0]
    compare(table, metrics=["hd95"], missing="worst")
    means_with_intervals(table, metrics=["hd95"], missing="worst")


def test_nan_favors_neither_method() -> None:
    assert preferred("a", "b", float("nan")) == "neither"


def test_every_table_says_what_it_is() -> None:
    table = pd.concat([holey(), make_table({"a": [0.1] * 3, "b": [0.2] * 3}, "ece")])
    options = {"metrics": ["hd95", "ece"], "region": "all", "missing": "worst"}
    for function in (sum_rank, mean_case_rank, bootstrap_ranks):
        out = function(table, **options).set_index("method")
        assert out["undefined"].to_dict() == {"a": 2, "b": 1}
        assert set(out["missing"]) == {"worst"}
        assert set(out["region"]) == {"all"}
    edge = table.assign(region=table["region"].where(table["metric"] != "ece", "boundary"))
    options["region"] = "boundary"
    means = means_with_intervals(edge, **options)
    assert means["region"].tolist() == ["all", "all", "boundary", "boundary"]
    assert means["undefined"].tolist() == [2, 1, 0, 0]
    tests = compare(edge, **options)
    assert tests["undefined"].tolist() == [3, 0]
    assert tests["region"].tolist() == ["all", "boundary"]


def test_a_method_alone_gives_an_empty_table_with_its_columns() -> None:
    out = compare(make_table({"a": [0.5, 0.6]}), metrics=["dsc"])
    assert len(out) == 0
    assert list(out.columns)[:4] == ["dataset", "metric", "method", "other"]
    assert list(out.columns) == list(compare(two_methods(), metrics=["dsc"]).columns)


def test_one_case_has_no_interval() -> None:
    out = means_with_intervals(paper_table())
    assert out["low"].isna().all()
    assert out["mean"].notna().all()
    ranks = bootstrap_ranks(paper_table(), resamples=20)
    assert ranks[["sum_rank_low", "mean_case_rank_high"]].isna().all().all()
    assert ranks["sum_rank"].notna().all()


def test_draws_without_a_value_are_dropped_and_counted() -> None:
    """The ECE is defined in one case of three: some resamples do not draw it."""
    ece = make_table({"a": [0.1, np.nan, np.nan], "b": [0.2, np.nan, np.nan]}, "ece")
    table = pd.concat([ece, make_table({"a": [0.9] * 3, "b": [0.8] * 3})])
    out = bootstrap_ranks(table, metrics=["dsc", "ece"], region="all", missing="worst")
    assert out["sum_rank_low"].tolist() == [2, 4]
    assert out["dropped_draws"][0] == pytest.approx(2000 * (2 / 3) ** 3, rel=0.15)


def test_pooled_rows_are_no_case() -> None:
    table = make_table({"a": [0.5, 0.6], "b": [0.7, 0.8]})
    pooled = make_table({"a": [0.9], "b": [0.1]}).assign(case="pooled")
    assert collect(pd.concat([table, pooled]), metrics=["dsc"]).cases["d"] == ["c0", "c1"]
    assert summarize(pd.concat([table, pooled]))["count"].tolist() == [2, 2]
    with pytest.raises(ValueError, match="none of single cases"):
        collect(pooled, metrics=["dsc"])


def test_datasets_may_have_any_name() -> None:
    table = make_table({"a": [0.5, 0.6], "b": [0.7, 0.8]}).assign(dataset="mean_case_rank")
    out = mean_case_rank(table, metrics="dsc")
    assert out["mean_case_rank"].tolist() == [1, 2]
    assert out["mean_case_rank/mean_case_rank"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["dsc", "dsc"]}, "'dsc' is given twice"),
        ({"metrics": []}, "`metrics` to name at least one metric"),
        ({"missing": "ignore"}, "`missing` to be one of 'raise', 'worst', 'drop_case'"),
        ({"metrics": ["dcs"]}, "no metric is named 'dcs'. Did you mean 'dsc'"),
        ({"region": "edge"}, "`region` to be one of"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collect(make_table({"a": [1.0]}), **{"metrics": ["dsc"], **options})


def test_wrong_tables() -> None:
    table = make_table({"a": [0.5], "b": [0.6]})
    with pytest.raises(ValueError, match="table: has no column `case`"):
        check_table(table.drop(columns="case"))
    with pytest.raises(ValueError, match="table: has no rows"):
        check_table(table[:0])
    with pytest.raises(ValueError, match=r"x.csv: column `value` .* row 1 holds 'high'"):
        check_table(table.assign(value="high"), "x.csv")
    with pytest.raises(ValueError, match="column `method` is empty in row 2"):
        check_table(table.assign(method=["a", None]))
    for name in ("method", "label", "region"):
        for blank in ("", " ", np.nan):
            with pytest.raises(ValueError, match=f"column `{name}` is empty in row 2"):
                check_table(table.assign(**{name: ["a", blank]}))
    with pytest.raises(ValueError, match="several rows have method 'a'"):
        collect(pd.concat([table, table]), metrics=["dsc"])


def test_summary_counts_what_is_undefined() -> None:
    table = summarize(holey()).set_index("method")
    assert table["undefined"].to_dict() == {"a": 2, "b": 1}
    assert table["count"].to_dict() == {"a": 1, "b": 2}
    assert table["mean"].to_dict() == {"a": 1.0, "b": 5.5}


def test_the_spread_of_a_summary_is_over_cases_not_seeds() -> None:
    one, other = make_table({"a": [0.4, 0.6]}), make_table({"a": [0.6, 0.8]})
    out = summarize(pd.concat([one.assign(seed=0), other.assign(seed=1)]))
    assert out["count"].tolist() == [2]
    assert out["mean"].tolist() == pytest.approx([0.6])
    assert out["std"].tolist() == pytest.approx([np.std([0.5, 0.7], ddof=1)])


# How sure


def two_methods(cases: int = 30, edge: float = 0.02) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.6, 0.9, cases)
    return make_table({
        "a": (base + edge + rng.normal(0, 0.01, cases)).tolist(),
        "b": base.tolist(),
        "c": (base + rng.normal(0, 0.01, cases)).tolist(),
    })  # fmt: skip


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])


def test_compare_is_a_paired_wilcoxon_with_holm() -> None:
    table = two_methods()
    out = compare(table, metrics=["dsc"])
    assert out[["method", "other"]].to_numpy().tolist() == [["a", "b"], ["a", "c"], ["b", "c"]]
    values = collect(table, metrics=["dsc"]).values["d"][..., 0]
    expected = [wilcoxon(values[:, i] - values[:, j]).pvalue for i, j in ((0, 1), (0, 2), (1, 2))]
    assert out["p_value"].tolist() == pytest.approx(expected)
    assert out["p_holm"].tolist() == pytest.approx(holm(expected).tolist())
    assert out["better"][0] == "a"
    assert out["mean_difference"][0] == pytest.approx((values[:, 0] - values[:, 1]).mean())
    against = compare(table, metrics=["dsc"], reference="c")
    assert against[["method", "other"]].to_numpy().tolist() == [["c", "a"], ["c", "b"]]
    with pytest.raises(ValueError, match="`reference` to be one of 'a', 'b', 'c'"):
        compare(table, metrics=["dsc"], reference="d")


def test_no_difference_is_no_evidence() -> None:
    out = compare(make_table({"a": [0.5, 0.6], "b": [0.5, 0.6]}), metrics=["dsc"])
    assert out["p_value"].tolist() == [1.0]
    assert out["better"].tolist() == ["neither"]


def test_a_few_large_misses_do_not_turn_the_test_around() -> None:
    """`a` wins 36 of 40 cases, which the ranks find, but four misses make its mean worse."""
    gain = np.r_[np.linspace(0.005, 0.02, 36), np.linspace(-0.4, -0.2, 4)]
    out = compare(make_table({"a": list(0.8 + gain), "b": [0.8] * 40}), metrics=["dsc"])
    assert out["mean_difference"][0] < 0
    assert out["p_holm"][0] < 0.001
    assert out["better"].tolist() == ["neither"]
    out = compare(make_table({"a": list(0.8 + gain[:36]), "b": [0.8] * 36}), metrics=["dsc"])
    assert out["better"].tolist() == ["a"]


def test_means_have_students_intervals() -> None:
    table = two_methods()
    out = means_with_intervals(table, metrics=["dsc"], confidence=0.8)
    for j, row in enumerate(out.itertuples()):
        values = collect(table, metrics=["dsc"]).values["d"][:, j, 0]
        t = scipy.stats.t(len(values) - 1, values.mean(), scipy.stats.sem(values))
        assert [row.low, row.high] == pytest.approx(t.interval(0.8))
        assert row.mean == pytest.approx(values.mean())


def test_intervals_end_at_possible_values() -> None:
    table = make_table({"a": [0.99, 0.5, 0.99, 0.98]})
    (row,) = means_with_intervals(table, metrics=["dsc"]).itertuples()
    assert (row.low > 0.4, row.high) == (True, 1.0)


def test_rank_intervals_are_seeded() -> None:
    table = two_methods()
    out = bootstrap_ranks(table, metrics=["dsc"], resamples=500)
    assert out.equals(bootstrap_ranks(table, metrics=["dsc"], resamples=500))
    other = bootstrap_ranks(table, metrics=["dsc"], resamples=500, seed=1)
    assert out["mean_case_rank_low"].tolist() != other["mean_case_rank_low"].tolist()
    few = bootstrap_ranks(table, metrics=["dsc"], resamples=100)
    assert out["mean_case_rank_low"].tolist() != few["mean_case_rank_low"].tolist()
    narrow = bootstrap_ranks(table, metrics=["dsc"], resamples=500, confidence=0.5)
    low, high = "mean_case_rank_low", "mean_case_rank_high"
    assert (narrow[high] - narrow[low] < out[high] - out[low]).all()


def test_bootstrap_ranks_are_sure_where_the_data_are() -> None:
    out = bootstrap_ranks(two_methods(edge=0.5), metrics=["dsc"]).set_index("method")
    assert out.loc["a"].iloc[:6].tolist() == [1.0] * 6
    assert out.loc["b", "sum_rank_low"] == 2
    assert out.loc["b", "sum_rank_high"] == 3
    table = two_methods()
    expected = mean_case_rank(table, metrics=["dsc"]).set_index("method")["mean_case_rank"]
    out = bootstrap_ranks(table, metrics=["dsc"]).set_index("method")
    assert out["mean_case_rank"].to_dict() == pytest.approx(expected.to_dict())


@pytest.mark.parametrize(
    ("options", "name"),
    [({"resamples": 0}, "resamples"), ({"confidence": 1.5}, "confidence"), ({"seed": -1}, "seed")],
)
def test_wrong_bootstrap_options(options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        bootstrap_ranks(two_methods(), metrics=["dsc"], **options)
