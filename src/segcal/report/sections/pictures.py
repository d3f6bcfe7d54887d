"""Pictures: the best, median and worst case with the results of all methods."""

from segcal.report.blocks import Block, Section, Text, Tile, Tiles
from segcal.report.context import Context
from segcal.report.pictures import CasePicture, case_pictures, class_color, data_uri
from segcal.report.plots.qualitative_panel import draw_panel
from segcal.report.plots.reliability import small_diagrams
from segcal.report.text import safe_name


def build(context: Context) -> Section | None:
    """Tiles on the page, and each case as one figure in figures/."""
    pictures = [p for dataset in context.study.datasets for p in case_pictures(context, dataset)]
    if not pictures:
        return None
    text = (
        "Best, median and worst case by mean DSC over methods and seeds, on the slice with most "
        "true foreground, cropped to it. Masks, numbers and diagrams are those of the first run of "
        "each method. White: outline of the truth. Confidence from 1/K (dark) to 1 (bright). "
        f"Last: reliability diagram of the whole case in region “{context.region}”."
    )
    blocks: list[Block] = [Text(text)]
    for picture in pictures:
        blocks += [_tiles(context, picture), draw_panel(context, picture)]
    return Section("pictures", "Example cases", blocks, menu="Pictures")


def _tiles(context: Context, picture: CasePicture) -> Tiles:
    dataset = context.study.datasets[picture.dataset]
    truth = (f"Truth of case {picture.case}", data_uri(picture.truth))
    tiles = [Tile("truth", [truth])]
    if picture.has_image:
        image = (f"Image of case {picture.case}", data_uri(picture.image))
        tiles = [Tile("image, truth", [image, truth])]
    names = {
        m.method: safe_name(f"{picture.dataset}-{picture.role}-{m.method}") for m in picture.methods
    }
    diagrams = small_diagrams({
        names[m.method]: (m.curve, context.colors[m.method])
        for m in picture.methods
        if m.curve is not None
    })  # fmt: skip
    for shown in picture.methods:
        title = context.title(shown.method)
        pictures = [
            (f"Mask of {title}", data_uri(shown.mask)),
            (f"Confidence of {title}", data_uri(shown.confidence)),
        ]
        values = (("DSC", shown.dsc), ("ECE", shown.ece))
        lines = [f"{name} {value:.3f}".replace("nan", "–") for name, value in values]
        diagram = diagrams.get(names[shown.method])
        tiles.append(Tile(title, pictures, shown.method, diagram, lines))
    return Tiles(
        f"{dataset.title}: {picture.role} case",
        f"{picture.case}, mean DSC {picture.dsc:.3f}",
        tiles,
        legend=[(name, class_color(i)) for i, name in enumerate(dataset.labels) if i],
        dataset=dataset.name,
    )
