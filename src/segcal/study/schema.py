"""study.json: the datasets, methods and runs of a study."""

import math
from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segcal.metrics import DEFAULT_REGION
from segcal.study.breakdown import broke_down

FORMAT: Final = "segcal-study"
VERSION: Final = 1

Grid = Literal["prepared", "original"]
Table = Literal["main", "classes", "ablation", "priors"]


class _Part(BaseModel):
    """Unknown keys are ignored: a newer version may write more of them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Dataset(_Part):
    """A dataset of the study. `labels` are all classes, `structures` what DSC is measured on.

    `patients` maps a case to its patient; a case that is not listed is its own patient.
    `case_groups` maps a case to its group (site, scanner, pathology), where groups are known.
    `external` are the sets on which runs of this dataset were also evaluated; the results are in
    external/NAME of each run.
    """

    name: str
    title: str = ""
    source: str = ""
    labels: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()
    fingerprint: str = ""
    patients: dict[str, str] = {}
    case_groups: dict[str, str] = {}
    external: tuple["Dataset", ...] = ()

    def patients_of(self, cases: Iterable[object]) -> list[str]:
        """The patient of each case."""
        return [self.patients.get(str(case), str(case)) for case in cases]

    def class_name(self, label: str) -> str:
        """The name of a class that rows identify by its number."""
        known = label.isdecimal() and int(label) < len(self.labels)
        return self.labels[int(label)] if known else label


class Course(_Part):
    """Validation results by epoch: mean DSC, and mean ECE of the foreground."""

    epochs: tuple[int, ...] = ()
    dsc: tuple[float | None, ...] = ()
    ece: tuple[float | None, ...] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> "Course":
        if not len(self.epochs) == len(self.dsc) == len(self.ece):
            counts = f"{len(self.epochs)}, {len(self.dsc)} and {len(self.ece)}"
            raise ValueError(f"epochs, dsc and ece have {counts} values")
        return self

    def values(self, key: str) -> list[float]:
        """The values of "dsc" or "ece"; undefined ones are NaN."""
        return [math.nan if value is None else value for value in getattr(self, key)]


class Training(_Part):
    """Summary of a run's validation; epochs count from 1.

    `tested_epoch` is the epoch of the checkpoint that was evaluated, by default the best one.
    `restarted_epoch` is the one after which a training that broke down returned to best.pt.
    """

    epochs: int
    best_epoch: int
    best_dsc: float
    last_dsc: float
    tested_epoch: int | None = None
    restarted_epoch: int | None = None
    course: Course = Course()

    @property
    def tested(self) -> int:
        """The epoch of the checkpoint that was evaluated."""
        return self.best_epoch if self.tested_epoch is None else self.tested_epoch

    @property
    def broke_down(self) -> bool:
        """Whether the last network is far worse than the best one."""
        return broke_down(self.last_dsc, self.best_dsc)


class Candidate(_Part):
    """One point of a grid of options, and its trainings, one per dataset.

    `val_dsc` and `val_ece` (in the study's region) are means over datasets, None if a run failed.
    """

    options: dict[str, Any] = {}
    val_dsc: float | None = None
    val_ece: float | None = None
    error: str = ""
    trainings: tuple[Training, ...] = ()

    @property
    def broke_down(self) -> int:
        """The number of trainings that broke down."""
        return sum(training.broke_down for training in self.trainings)


class Method(_Part):
    """A method of the study; `paper` names its row in the tables of the paper."""

    name: str
    title: str = ""
    paper: str | None = None
    group: str = "main"
    options: dict[str, Any] = {}
    chosen_from: tuple[Candidate, ...] = ()


class Run(_Part):
    """One training, one calibrated run, or (in an audit) one set of predictions.

    `folder` is relative to the study.
    """

    run: str
    method: str
    dataset: str
    seed: int | None = 0
    folder: str = ""
    state: str = "done"
    error: str = ""
    seconds: float | None = None
    training: Training | None = None


class MethodGroup(_Part):
    """How the report presents a group of methods; empty texts have defaults.

    `base` is the method that the others of the group vary: the first row of their table.
    """

    title: str = ""
    note: str = ""
    base: str = ""


class Hypothesis(_Part):
    """A claim about two methods with the rule that decides it, written before there are results.

    The rule is about the 95 % interval of the gain of `method` over `other` (over seeds and
    patients; positive is better), on each of `datasets` (all by default):

        better       holds if the interval is above `margin`, fails if it is below it
        not_worse    holds if the interval is above −margin, fails if it is below it
        equal        holds if the interval is within ±margin, fails if it is outside

    In all other cases the data do not decide it. `late`: results existed when it was written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str
    method: str
    other: str
    metric: str
    region: str = DEFAULT_REGION
    datasets: tuple[str, ...] = ()
    rule: Literal["better", "not_worse", "equal"] = "better"
    margin: float = Field(0.0, ge=0, allow_inf_nan=False)
    late: bool = False

    def verdict(self, low: float, high: float) -> Literal["holds", "fails", "undecided"]:
        """The verdict by the interval of the gain; NaN decides nothing."""
        limit = self.margin if self.rule == "better" else -self.margin
        upper = self.margin if self.rule == "equal" else math.inf
        if limit < low and high < upper:
            return "holds"
        return "fails" if high < limit or low > upper else "undecided"


class StudyFile(_Part):
    """The content of study.json.

    Attributes:
        region: where the calibration metrics of tables and ranks are measured.
        grid: on which grid all metrics were measured; None in files of older versions.
        tables: the tables to show; None shows all.
        reference: the method that the report compares with the others.
        reference_late: whether results existed when the plan named it; None if unknown.
        published: numbers to print beside the study's: a name that segcal knows, or a path
            relative to the study; by default `published.yaml` in the study if it exists.
        groups: how the report presents groups of methods.
        hypotheses: claims that the report decides.
        table_bytes: how many bytes of cases.csv are valid while runs are being added; None if all.
    """

    format: Literal["segcal-study"]
    version: Literal[1]
    kind: str = "benchmark"
    title: str = "Study"
    note: str | None = None
    split: str = "test"
    region: str = DEFAULT_REGION
    grid: Grid | None = None
    metrics: tuple[str, ...] = ("dsc", "hd95_mm", "ece", "cece")
    tables: tuple[Table, ...] | None = None
    datasets: tuple[Dataset, ...]
    methods: tuple[Method, ...]
    runs: tuple[Run, ...] = ()
    reference: str | None = None
    reference_late: bool | None = None
    published: str | None = None
    groups: dict[str, MethodGroup] = {}
    hypotheses: tuple[Hypothesis, ...] = ()
    table_bytes: int | None = None
    environment: dict[str, Any] = Field(default_factory=dict)

    @property
    def measured_grid(self) -> Grid:
        """The grid; audits have always measured on that of their files."""
        return self.grid or ("original" if self.kind == "audit" else "prepared")
