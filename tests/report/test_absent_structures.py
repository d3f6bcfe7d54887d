"""Structures that are absent in some scans, by hand."""

from pathlib import Path

import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import Context, write_report
from segcal.report.sections.absent_structures import findings, rates
from segcal.study import read_study

# method, seed -> case -> (true, predicted volume, DSC) of a lesion, and of an organ
LESION = {
    ("careful", 0): {"c1": (2, 1, 0.6), "c2": (3, 0, 0.0), "c3": (0, 0, 1.0), "c4": (0, 1, 0.0)},
    ("careful", 1): {"c1": (2, 2, 0.8), "c2": (3, 2, 0.4), "c3": (0, 0, 1.0), "c4": (0, 0, 1.0)},
    ("eager", 0): {"c1": (2, 3, 0.7), "c2": (3, 3, 0.9), "c3": (0, 1, 0.0), "c4": (0, 2, 0.0)},
    ("eager", 1): {"c1": (2, 3, 0.7), "c2": (3, 3, 0.9), "c3": (0, 1, 0.0), "c4": (0, 2, 0.0)},
}
METRICS = ("true_volume_ml", "predicted_volume_ml", "dsc")


def study(folder: Path, metrics: tuple[str, ...] = METRICS) -> Context:
    values: Values = {
        (method, seed, case): {
            **{(m, "all", "lesion"): v for m, v in zip(METRICS, lesion, strict=True)
               if m in metrics},
            **{(m, "all", "organ"): v for m, v in zip(METRICS, (9, 9, 0.9), strict=True)
               if m in metrics},
            **{("expected_volume_ml", "all", name): 1.0 for name in ("lesion", "organ")},
            "ece": 0.1,
        }
        for (method, seed), cases in LESION.items()
        for case, lesion in cases.items()
    }  # fmt: skip
    return Context(read_study(write_plain(folder, values)))


def test_rates_by_hand(tmp_path: Path) -> None:
    context = study(tmp_path)
    found = rates(context, context.study.datasets["d"])
    assert list(found) == [("careful", "lesion"), ("eager", "lesion")]  # the organ always exists
    careful, eager = found.values()
    assert {key: number.mean for key, number in careful.items()} == pytest.approx(
        {"dsc": 0.45, "existing": 2, "missed": 25, "marked": 25, "absent": 2}
    )
    assert careful["dsc"].spread == pytest.approx(0.3 / 2**0.5)
    assert (eager["missed"].mean, eager["marked"].mean) == (0, 100)
    assert eager["dsc"].mean == pytest.approx(0.8)


def test_the_page_shows_them(tmp_path: Path) -> None:
    context = study(tmp_path)
    (text,) = findings(context)
    assert text == (
        "Set D: lesion is absent in 2 of 4 scans, and is marked in 25 % (careful) to 100 % "
        "(eager) of these. The mean DSC counts an empty mask there as 1."
    )
    page = write_report(tmp_path)
    assert 'id="absent"' in page.read_text(encoding="utf-8")
    table = (page.parent / "tables" / "absent_d.md").read_text(encoding="utf-8")
    assert "| eager, lesion | 2 | **0.800 ± 0.000** | **0.0 ± 0.0** | 2 | 100.0 ± 0.0 |" in table


def test_without_volumes_or_absent_structures_there_is_no_section(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = study(tmp_path / "old", ("dsc",))
    assert rates(old, old.study.datasets["d"]) == {}
    values: Values = {
        ("a", 0, case): {(m, "all", "organ"): v for m, v in zip(METRICS, (9, 8, 0.9), strict=True)}
        | {("expected_volume_ml", "all", "organ"): 8.5, "ece": 0.1}
        for case in ("c1", "c2")
    }
    page = write_report(write_plain(tmp_path / "all", values))
    assert 'id="absent"' not in page.read_text(encoding="utf-8")


def test_methods_that_mark_equally_often_are_named_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = {key: cases for key, cases in LESION.items() if key[0] == "eager"}
    same = {("also", seed): cases for (_, seed), cases in eager.items()}
    monkeypatch.setattr(f"{__name__}.LESION", {**eager, **same})
    assert "is marked in 100 % (all 2 methods) of these" in findings(study(tmp_path))[0]
