"""Progress: silent in logs, a callback with one signature."""

import pytest

from segcal.core.progress import Progress, format_duration, no_progress, show_progress


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (90, "1:30"), (7200, "2:00:00")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_no_bar_is_drawn_outside_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress() as step:
        step("reading", 1, 2)
        step("fitting", 1, None)
    no_progress("x", 0, None)
    assert capfd.readouterr().err.strip() == ""


def test_lines_are_printed_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.update("run [a]", 1, 3, text="[b]")
        progress.remove("run [a]")
        progress.say("loss [red] 0.5")
    with Progress(silent=True) as progress:
        progress.say("nothing")
    assert capfd.readouterr().err == "loss [red] 0.5\n"
