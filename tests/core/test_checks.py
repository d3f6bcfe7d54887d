"""The checks that every room uses."""

import numpy as np
import pytest
import torch

from segcal.core.checks import (
    check_choice,
    check_int,
    check_labels,
    check_number,
    per_axis,
    require,
)


def test_numbers_of_numpy_are_numbers() -> None:
    assert check_number("x", np.float32(0.5), low=0) == 0.5
    assert check_int("x", np.int64(3), low=1) == 3


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (float("nan"), {}, "`x` to be a finite number, but got nan"),
        (float("inf"), {"low": 0}, "a finite number at least 0, but got inf"),
        (0, {"low": 0, "open_low": True}, "a finite number above 0, but got 0"),
        (3, {"low": 0, "high": 1}, "a finite number at least 0 and at most 1, but got 3"),
    ],
)
def test_numbers_out_of_bounds(value: float, bounds: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_number("x", value, **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, "1", None, [1]])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(TypeError, match="`x` to be a number"):
        check_number("x", value)
    with pytest.raises(TypeError, match="`x` to be an integer"):
        check_int("x", value)


def test_choices_are_listed_and_the_nearest_named() -> None:
    with pytest.raises(ValueError, match=r"'mean', 'mode', but got 'mod'. Did you mean 'mode'"):
        check_choice("x", "mod", ("mean", "mode"))
    with pytest.raises(ValueError, match="but got 7"):
        check_choice("x", 7, ("mean", "mode"))


def test_one_value_or_one_per_axis() -> None:
    assert per_axis("x", 3, 2) == (3, 3)
    assert per_axis("x", (1, 3), 2) == (1, 3)
    with pytest.raises(ValueError, match=r"one value or 2 .*\(1, 2, 3\)"):
        per_axis("x", (1, 2, 3), 2)


def test_labels_tell_whether_some_are_ignored() -> None:
    labels = torch.tensor([0, 1, 2])
    assert not check_labels("x", labels, 3, -100)
    assert check_labels("x", torch.tensor([0, -100]), 3, -100)
    assert check_labels("x", labels, 3, 1)
    assert not check_labels("x", labels, 3, None)


def test_a_missing_package_names_its_extra() -> None:
    assert require("math").pi > 3
    with pytest.raises(ImportError, match=r"'nnunetv2': pip install 'segcal\[nnunet\]'"):
        require("nnunetv2.training")
    with pytest.raises(ImportError, match="'no_such_package': pip install no_such"):
        require("no_such_package")
