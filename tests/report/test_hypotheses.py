"""Claims of the plan, decided by the interval of a gain."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.plain_studies import Values, write_plain
from segcal.report import Context
from segcal.report.sections.hypotheses import build
from segcal.report.table_model import Table
from segcal.study import Hypothesis, read_study

NAN = float("nan")


def claim(**settings: Any) -> Hypothesis:
    content = {"claim": "A is better", "method": "a", "other": "b", "metric": "dsc", **settings}
    return Hypothesis.model_validate(content)


@pytest.mark.parametrize(
    ("rule", "margin", "interval", "verdict"),
    [
        ("better", 0.0, (0.01, 0.03), "holds"),
        ("better", 0.02, (0.01, 0.03), "undecided"),
        ("better", 0.0, (-0.03, -0.01), "fails"),
        ("better", 0.02, (-0.01, 0.01), "fails"),
        ("not_worse", 0.02, (-0.01, 0.5), "holds"),
        ("not_worse", 0.02, (-0.03, 0.5), "undecided"),
        ("not_worse", 0.02, (-0.05, -0.03), "fails"),
        ("equal", 0.02, (-0.01, 0.01), "holds"),
        ("equal", 0.02, (-0.01, 0.03), "undecided"),
        ("equal", 0.02, (0.03, 0.05), "fails"),
        ("equal", 0.02, (-0.05, -0.03), "fails"),
        ("better", 0.0, (NAN, NAN), "undecided"),
    ],
)
def test_the_rule_decides(
    rule: str, margin: float, interval: tuple[float, float], verdict: str
) -> None:
    assert claim(rule=rule, margin=margin).verdict(*interval) == verdict


def decide(folder: Path, cases: int, *claims: Hypothesis) -> list[list[Any]]:
    """Three seeds; `a` has 0.05 more DSC than `b`, 0.04 less ECE in all, the same at the border."""
    rng = np.random.default_rng(0)
    level = {"a": (0.9, 0.02, 0.1), "b": (0.85, 0.06, 0.1)}
    keys = ("dsc", ("ece", "all"), ("ece", "boundary"))
    values: Values = {
        (m, s, f"{i:02d}"): {
            key: x + 0.002 * rng.normal() for key, x in zip(keys, level[m], strict=True)
        }
        for m in level for s in range(3) for i in range(cases)
    }  # fmt: skip
    content = [one.model_dump() for one in claims]
    section = build(Context(read_study(write_plain(folder, values, hypotheses=content))))
    assert section is not None
    (table,) = [block for block in section.walk() if isinstance(block, Table)]
    assert [row.title for row in table.rows] == [one.claim for one in claims]
    return [[*row.cells, row.note] for row in table.rows]


def test_claims_are_decided_on_the_rows(tmp_path: Path) -> None:
    rows = decide(
        tmp_path, 12,
        claim(), claim(method="b", other="a"), claim(rule="equal", margin=0.01, late=True),
        claim(metric="ece", margin=0.03), claim(metric="ece", margin=0.05),
        claim(metric="ece", region="boundary", rule="equal", margin=0.01),
    )  # fmt: skip
    verdicts = [row[-2].text for row in rows]
    assert verdicts == ["holds", "fails", "fails", "holds", "fails", "holds"]
    gains = [row[3].number.mean for row in rows]
    np.testing.assert_allclose(gains, [0.05, -0.05, 0.05, 0.04, 0.04, 0], atol=2e-3)
    assert all((row[4].number.mean, row[5].number.mean) == (3, 12) for row in rows)
    assert [bool(row[-1]) for row in rows] == [False, False, True, False, False, False]
    assert "boundary" in rows[-1][1].text
    assert "0.03" in rows[3][2].text


def test_few_patients_decide_nothing(tmp_path: Path) -> None:
    ((*cells, _),) = decide(tmp_path, 5, claim())
    assert (cells[3].after, cells[-1].text) == ("", "undecided")


def test_a_study_without_claims_or_without_the_methods_has_no_section(tmp_path: Path) -> None:
    values: Values = {("a", 0, "x"): {"dsc": 0.9}}
    for name, claims in (("one", []), ("two", [claim().model_dump()])):
        study = write_plain(tmp_path / name, values, hypotheses=claims)
        assert build(Context(read_study(study))) is None


def test_an_end_near_zero_shows_its_sign(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values: Values = {}
    for case in range(8):
        for seed in range(3):
            level = 0.8 + 0.1 * rng.random()
            values["b", seed, f"{case}"] = {"dsc": level}
            values["a", seed, f"{case}"] = {"dsc": level - 2e-5}
    study = write_plain(tmp_path, values, hypotheses=[claim().model_dump()])
    section = build(Context(read_study(study)))
    assert section is not None
    (table,) = [block for block in section.walk() if isinstance(block, Table)]
    assert table.rows[0].cells[3].after == "[−0.00002, −0.00002]"
