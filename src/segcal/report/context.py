"""What sections are built from: everything is computed once, when a section first needs it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd

from segcal.metrics import find_metric
from segcal.report.aggregates import Aggregates
from segcal.report.blocks import Block, Group
from segcal.report.curves import CaseBins, Curve, Floats, add_bins, curve, read_bins
from segcal.report.plots.style import MARKERS, method_colors
from segcal.report.published_numbers import PublishedNumbers, find_published
from segcal.report.rankings import Rankings, SeedComparisons, compare_over_seeds, compute_rankings
from segcal.report.table_model import Cell, Column, Row, Table, interval_text
from segcal.study import Dataset, Study

# With more networks the page compares them and describes none.
MOST_NETWORKS = 3
# With more methods calibrated versions are summarized, not named one by one.
MOST_METHODS = 12
# How many worst cases are listed by DSC, and by ECE.
WORST = 5
MOST_ORGANS = 12


class Context:
    """A study and what is derived from it.

    Attributes:
        study: names, options and the rows of all cases.
        region: where the calibration of tables and figures is measured.
        regions: all regions with calibration, that of the study first.
        aggregates: means over labels, cases and seeds.
        colors, markers: of each method, the same in all figures.
        empty: whether no run has finished.
        most_organs: of more organs figures and findings show this many, the worst ones; full
            tables are collapsed.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.region = study.region
        self.regions = list(dict.fromkeys([study.region, *study.regions]))
        self.datasets = list(study.datasets.values())
        self.aggregates = Aggregates(study)
        self.colors = method_colors(list(study.methods))
        self.markers = {m: MARKERS[i % len(MARKERS)] for i, m in enumerate(study.methods)}
        self.empty = study.table.empty
        self.most_organs = MOST_ORGANS

    @cached_property
    def external(self) -> dict[str, Aggregates]:
        """Training dataset -> means of the external evaluations of its runs."""
        tables = self.study.external
        return {name: Aggregates(replace(self.study, table=t)) for name, t in tables.items()}

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
        out: dict[str, SeedComparisons] = {}
        for region in self.regions:
            if not out or out[self.region]:
                out[region] = compare_over_seeds(self.aggregates, self.rankings, region)
        return out

    @cached_property
    def run_bins(self) -> dict[str, CaseBins]:
        """Run -> calibration bins."""
        return {run.run: read_bins(path) for run, path in self.study.files("bins.npz")}

    @cached_property
    def bins(self) -> dict[tuple[str, str], CaseBins]:
        """(dataset, method) -> calibration bins of all its seeds."""
        out: dict[tuple[str, str], CaseBins] = {}
        for run, path in self.study.files("bins.npz"):
            found, key = self.run_bins[run.run], (run.dataset, run.method)
            out[key] = add_bins(out[key], found, path) if key in out else found
        return out

    @cached_property
    def curves(self) -> dict[tuple[str, str, str], Curve]:
        """(dataset, method, region) -> reliability curve pooled over patients and seeds."""
        return {
            (*key, region): curve(_by_patient(self.study.datasets[key[0]], bins.cases, sums))
            for key, bins in self.bins.items()
            for region, sums in bins.regions.items()
        }

    def patient_sums(self, dataset: Dataset, method: str, region: str) -> Floats | None:
        """Sums (3, patients, bins) of count, confidence and accuracy in a region; None without."""
        bins = self.bins.get((dataset.name, method))
        if bins is None or region not in bins.regions:
            return None
        return _by_patient(dataset, bins.cases, bins.regions[region])

    def level_sums(
        self, dataset: Dataset, method: str, group: str | None = None
    ) -> dict[str, Floats]:
        """Predicted class but 0 -> sums (3, patients, levels), of all cases or of a group."""
        bins = self.bins.get((dataset.name, method))
        if bins is None or bins.levels is None:
            return {}
        inside = [
            i for i, case in enumerate(bins.cases)
            if group is None or dataset.case_groups.get(case) == group
        ]  # fmt: skip
        sums = _by_patient(dataset, [bins.cases[i] for i in inside], bins.levels[:, inside])
        return {str(k): sums[:, :, k] for k in range(1, sums.shape[2])}

    def levels(self, dataset: Dataset, method: str) -> dict[str, Curve]:
        """Predicted class but 0 -> accuracy by stated confidence, with intervals over patients."""
        return {label: curve(sums) for label, sums in self.level_sums(dataset, method).items()}

    def worst_levels(self, dataset: Dataset, method: str) -> dict[str, Curve]:
        """The same; of many organs those with the largest ECE."""
        found = self.levels(dataset, method)
        if not self.has_many_organs(dataset):
            return found
        worst = sorted(found, key=lambda label: np.nan_to_num(found[label].ece), reverse=True)
        return {label: found[label] for label in worst[: self.most_organs]}

    @cached_property
    def listed(self) -> list[str]:
        """All methods; of many only the networks, without their calibrated versions."""
        every, calibrated = list(self.study.methods), set(self.study.in_group("posthoc"))
        networks = [method for method in every if method not in calibrated]
        return networks if len(every) > MOST_METHODS and len(networks) > 1 else every

    def few_networks(self, dataset: Dataset) -> list[str]:
        """The methods of a dataset if there are few: each is then described in sentences."""
        methods = self.methods_of(dataset.name)
        return methods if len(methods) <= MOST_NETWORKS else []

    def has_many_organs(self, dataset: Dataset) -> bool:
        """Whether a dataset has so many organs that a page cannot show each of them at once."""
        return len(dataset.structures) > self.most_organs

    def collapse_organs(self, dataset: Dataset, blocks: Sequence[Block | None]) -> list[Block]:
        """Blocks with a row for each organ, collapsed if there are many."""
        shown = [block for block in blocks if block is not None]
        if not shown or not self.has_many_organs(dataset):
            return shown
        return [Group(shown, summary=f"All {len(dataset.structures)} organs")]

    def case_values(self, dataset: str, method: str, keys: Sequence[str]) -> pd.DataFrame:
        """Metrics of the cases of a method; a metric that was not measured is NaN."""
        none = pd.Series(dtype=float)
        return pd.DataFrame(
            {key: self.aggregates.cases(dataset, key).get(method, none) for key in keys}
        )

    def worst_cases(self, dataset: str, method: str) -> list[str]:
        """The cases of a method with the lowest DSC, then those with the largest ECE."""
        values = self.case_values(dataset, method, ("dsc", "ece"))
        chosen = [*values["dsc"].nsmallest(WORST).index, *values["ece"].nlargest(WORST).index]
        return [str(case) for case in dict.fromkeys(chosen)]

    @cached_property
    def published(self) -> PublishedNumbers | None:
        """Published numbers that belong to the study."""
        return find_published(self.study)

    def title(self, method: str) -> str:
        """The printed name of a method."""
        return self.study.methods[method].title

    def methods_of(self, dataset: str) -> list[str]:
        """The methods with rows of a dataset."""
        return [m for m in self.study.methods if (dataset, m) in self.study.present]

    def rows(
        self, methods: Iterable[str], cells: Callable[[str], Iterable[Cell]]
    ) -> tuple[Row, ...]:
        """A row of a table for each method, with the cells that `cells` returns for it."""
        return tuple(Row(m, self.title(m), tuple(cells(m))) for m in methods)

    def row(self, method: str, part: str, cells: Iterable[Cell]) -> Row:
        """The row of an organ or another part of the results of a method."""
        return Row(method, f"{self.title(method)}, {part}", tuple(cells))

    def metric_rows(
        self, dataset: str, methods: Iterable[str], columns: Mapping[tuple[str, ...], Column]
    ) -> tuple[Row, ...]:
        """A row for each method with columns of (metric, region) or (metric, region, label)."""
        keys = columns.items()
        return self.rows(
            methods, lambda m: (self.cell(dataset, m, *key, digits=c.digits) for key, c in keys)
        )

    def cell(
        self, dataset: str, method: str, metric: str, region: str, *label: str, digits: int = 3
    ) -> Cell:
        """The mean of a metric over all labels, or for one, with its interval over patients."""
        key = (dataset, method, metric, region, *label)
        signed = find_metric(metric).better == "zero"
        after = interval_text(self.aggregates.interval(*key), digits, signed)
        return Cell(self.aggregates.overall(*key), after=after, signed=signed)

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


def _by_patient(dataset: Dataset, cases: Sequence[str], sums: Floats) -> Floats:
    """Sums (3, cases, …) added over the cases of each patient."""
    patients = dataset.patients_of(cases)
    number = {patient: i for i, patient in enumerate(dict.fromkeys(patients))}
    out = np.zeros((3, len(number), *sums.shape[2:]))
    for case, patient in enumerate(patients):
        out[:, number[patient]] += sums[:, case]
    return out
