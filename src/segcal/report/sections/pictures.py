"""Case browser: slices of cases with masks, confidence and errors; without scripts, pictures."""

from segcal.report.blocks import Block, BrowserData, Group, Section, Text
from segcal.report.context import Context
from segcal.report.pictures import browser_data, case_slices
from segcal.report.plots.qualitative_panel import draw_panel


def build(context: Context) -> Section | None:
    """The worst, the median and the best cases; three of them as figures, too."""
    cases = [case for name in context.study.datasets for case in case_slices(context, name)]
    if not cases:
        return None
    text = (
        "The worst cases first, then the median and the best one by mean DSC over methods and "
        "seeds. Masks and numbers are those of the first run of each method. Slices are cropped to "
        "the true structures. Confidence: the more orange, the closer to 1/K (K classes)."
    )
    panels = [draw_panel(context, case) for case in cases if case.role]
    browser = BrowserData(browser_data(cases))
    blocks: list[Block] = [Text(text), browser, Group(panels, live="live-browser")]
    return Section("pictures", "Case browser", blocks)
