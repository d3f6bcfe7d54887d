"""JSON and YAML with limits."""

import json
import time
from pathlib import Path

import pytest

from segcal.core.documents import check_plain, parse_yaml, read_json

# Nine levels of nine references each: 3.5 billion values in 300 bytes.
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ALIASES, "values"),
        ("&a [*a]", "values"),
        ("[" * 3000, "deep"),
        ("a: 1\nb: 2\na: 3", "'a' occurs twice"),
        ("a: {b: 1, b: 2}", "'b' occurs twice"),
        ("a: [", "expected"),
        ("!!python/object/apply:os.system [true]", "constructor"),
    ],
)
def test_hostile_yaml_is_one_line(text: str, reason: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 5


def test_ordinary_yaml() -> None:
    text = "base: &base {lr: 1e-3, on: yes}\nours: {<<: *base, lr: 2}\nlist: [*base, *base]"
    content = parse_yaml(text)
    assert content["base"] == {"lr": 1e-3, True: True}
    assert content["ours"]["lr"] == 2
    assert content["list"][1]["lr"] == 1e-3


def test_deep_json(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="deep"):
        read_json(path)
    path.write_text(json.dumps({"a": [1, 2]}))
    assert read_json(path) == {"a": [1, 2]}


def test_values_that_occur_several_times_count_each_time() -> None:
    value: object = [1]
    for _ in range(30):
        value = [value, value]
    with pytest.raises(ValueError, match="values"):
        check_plain(value)
    check_plain([[1] * 1000] * 1000)
