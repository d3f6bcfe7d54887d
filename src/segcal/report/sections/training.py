"""Training: validation DSC and ECE by epoch."""

from segcal.report.blocks import Section, Text
from segcal.report.context import Context
from segcal.report.plots.training_curves import draw_training_curves


def build(context: Context) -> Section | None:
    """A figure per dataset with training curves."""
    figures = context.by_dataset(
        lambda dataset: [draw_training_curves(context, dataset)], headings=True
    )
    if not figures:
        return None
    text = (
        "Validation DSC, and ECE where the true label is foreground, by epoch. Thin lines: single "
        "seeds; thick line: their median, with three seeds or more; points: the tested "
        "checkpoints. The ECE axis ends at twice the largest value of a tested checkpoint. Methods "
        "are tested at different epochs, and calibration changes during training: compare the "
        "curves, not only the points."
    )
    return Section("training", "Training", [Text(text), *figures])
