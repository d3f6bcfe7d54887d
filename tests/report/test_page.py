"""The data in the page: what is left out of large studies, and what is escaped."""

import pytest

from segcal.metrics import REGIONS
from segcal.report import Context
from segcal.report.page import page_data, script_json


def test_page_data_is_thinned_when_there_are_many(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = page_data(context)
    assert not data["thinned"]
    assert set(data["datasets"][0]["single"]) == set(REGIONS)
    one = context.bins["acdc", "nacl"].of_case("acdc_000", "all")
    flat = data["datasets"][0]["single"]["all"]["nacl"][0]
    assert one is not None
    assert sum(flat[1::4]) == one.count.sum()
    monkeypatch.setattr("segcal.report.page.MOST_NUMBERS", 2000)
    thin = page_data(context)
    assert thin["thinned"]
    assert set(thin["datasets"][0]["single"]) == {"foreground"}
    kept = [x != 0 for x in thin["datasets"][0]["single"]["foreground"]["nacl"]]
    assert 0 < sum(kept) < len(kept)


def test_json_cannot_end_its_script() -> None:
    text = str(script_json({"a": "</script><!-- & \u2028"}))
    assert not set(text) & set("<>&\u2028")
