"""What sections are built from: everything is computed once, when a section first needs it."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from segcal.report.aggregates import Aggregates
from segcal.report.blocks import Block, Group
from segcal.report.curves import CaseBins, Curve, read_bins
from segcal.report.plots.style import method_colors, method_markers
from segcal.report.published_numbers import PublishedNumbers, find_published
from segcal.report.rankings import Rankings, compute_rankings
from segcal.report.seed_comparisons import SeedComparisons, compare_over_seeds
from segcal.report.table_model import Table
from segcal.study import Dataset, Study


class Context:
    """A study and what is derived from it.

    Attributes:
        study: names, options and the rows of all cases.
        region: where the calibration of tables and figures is measured.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.region = study.region

    @cached_property
    def aggregates(self) -> Aggregates:
        """Means over labels, cases and seeds."""
        return Aggregates(self.study)

    @cached_property
    def rankings(self) -> Rankings | None:
        """Ranks and paired tests; None if fewer than two methods can be ranked."""
        return None if self.empty else compute_rankings(self.aggregates, self.region)

    @cached_property
    def seed_comparisons(self) -> dict[str, SeedComparisons]:
        """Region -> comparisons with seeds and cases random; empty without a ranking.

        Other regions than that of the study are present if that one has judged comparisons.
        """
        if self.rankings is None:
            return {}
        compare = partial(compare_over_seeds, self.aggregates, self.rankings)
        own, *others = self.regions
        first = compare(own)
        return {own: first, **({region: compare(region) for region in others} if first else {})}

    @cached_property
    def bins(self) -> dict[tuple[str, str], CaseBins]:
        """(dataset, method) -> calibration bins."""
        return read_bins(self.study)

    @cached_property
    def truth_bins(self) -> dict[tuple[str, str], CaseBins]:
        """(dataset, method) -> calibration bins against known true probabilities."""
        return read_bins(self.study, "truth_")

    @cached_property
    def _curves(self) -> dict[tuple[str, str, str, bool], Curve | None]:
        return {}

    def curve(self, dataset: str, method: str, region: str, *, truth: bool = False) -> Curve | None:
        """The reliability curve pooled over cases and seeds; None without bins."""
        key = (dataset, method, region, truth)
        if key not in self._curves:
            bins = (self.truth_bins if truth else self.bins).get((dataset, method))
            self._curves[key] = bins.pooled(region) if bins else None
        return self._curves[key]

    @cached_property
    def published(self) -> PublishedNumbers | None:
        """Published numbers that belong to the study."""
        return find_published(self.study)

    @cached_property
    def colors(self) -> dict[str, str]:
        """Method -> color, the same in all figures."""
        return method_colors(list(self.study.methods))

    @cached_property
    def markers(self) -> dict[str, str]:
        """Method -> marker, the same in all figures."""
        return method_markers(list(self.study.methods))

    @property
    def empty(self) -> bool:
        """Whether no run has finished."""
        return self.study.table.empty

    @property
    def regions(self) -> list[str]:
        """All regions with calibration, that of the study first."""
        return list(dict.fromkeys([self.region, *self.study.regions]))

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets of the study."""
        return list(self.study.datasets.values())

    def title(self, method: str) -> str:
        """The printed name of a method."""
        return self.study.methods[method].title

    def methods_of(self, dataset: str) -> list[str]:
        """The methods with rows of a dataset."""
        return [m for m in self.study.methods if (dataset, m) in self.study.present]

    def by_region(self, make: Callable[[str], Table | None]) -> list[Block]:
        """A table for each region; the page shows that of the selected region."""
        tables = [table for table in map(make, self.regions) if table is not None]
        return [Group([table], region=table.region) for table in tables]

    def by_dataset(
        self, make: Callable[[Dataset], Sequence[Block | None]], *, headings: bool = False
    ) -> list[Block]:
        """The blocks of each dataset that has some; the page shows those of the selected one."""
        out: list[Block] = []
        for dataset in self.datasets:
            blocks = [block for block in make(dataset) if block is not None]
            if blocks:
                heading = dataset.title if headings else ""
                out.append(Group(blocks, heading=heading, dataset=dataset.name))
        return out

    def includes(self, table: str) -> bool:
        """Whether the study shows a table; without a list of tables it shows all."""
        return self.study.info.tables is None or table in self.study.info.tables
