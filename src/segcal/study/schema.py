"""What study.json holds: datasets, methods, runs."""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segcal.study.breakdown import broke_down


class _Part(BaseModel):
    """A newer segcal may write more keys than this one knows: they are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Dataset(_Part):
    """A dataset of the study. `labels` are all classes, `structures` what DSC is measured on.

    `patients` says of each case whose it is; what is not named there is a patient of its own.
    """

    name: str
    title: str = ""
    source: str = ""
    labels: tuple[str, ...] = ()
    structures: tuple[str, ...] = ()
    fingerprint: str = ""
    patients: dict[str, str] = {}

    def class_name(self, label: str) -> str:
        """The name of a class that rows call by its number."""
        known = label.isdecimal() and int(label) < len(self.labels)
        return self.labels[int(label)] if known else label


class Course(_Part):
    """Validation after some of the epochs: mean DSC, and mean ECE of the foreground."""

    epochs: tuple[int, ...] = ()
    dsc: tuple[float | None, ...] = ()
    ece: tuple[float | None, ...] = ()

    @model_validator(mode="after")
    def _as_many(self) -> "Course":
        if not len(self.epochs) == len(self.dsc) == len(self.ece):
            counts = f"{len(self.epochs)}, {len(self.dsc)} and {len(self.ece)}"
            raise ValueError(f"epochs, dsc and ece have {counts} values")
        return self

    def values(self, key: str) -> list[float]:
        """Of "dsc" or "ece"; what is undefined is NaN."""
        return [math.nan if value is None else value for value in getattr(self, key)]


class Training(_Part):
    """How a run's validation went; epochs count from 1.

    `tested_epoch` is that of the checkpoint that was evaluated; where nobody said, it is the best.
    """

    epochs: int
    best_epoch: int
    best_dsc: float
    last_dsc: float
    tested_epoch: int | None = None
    course: Course = Course()

    @property
    def tested(self) -> int:
        """The epoch of the checkpoint that the rows are of."""
        return self.best_epoch if self.tested_epoch is None else self.tested_epoch

    @property
    def broke_down(self) -> bool:
        """Whether the last network is far behind the best."""
        return broke_down(self.last_dsc, self.best_dsc)


class Candidate(_Part):
    """Options that were tried, and the trainings that they were judged by, one per dataset.

    `val_dsc` and `val_ece` (in the study's region) are means over datasets, None if one failed.
    """

    options: dict[str, Any] = {}
    val_dsc: float | None = None
    val_ece: float | None = None
    error: str = ""
    trainings: tuple[Training, ...] = ()

    @property
    def broke_down(self) -> int:
        """How many of the trainings did."""
        return sum(training.broke_down for training in self.trainings)


class Method(_Part):
    """A method of the study; `paper` is the row of the paper's tables it stands for."""

    name: str
    title: str = ""
    paper: str | None = None
    group: str = "main"
    options: dict[str, Any] = {}
    chosen_from: tuple[Candidate, ...] = ()


class Run(_Part):
    """One training (or, in an audit, one set of predictions)."""

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
    """How the report presents a group of methods; what is empty has a default.

    `base` is the method that the others of the group vary: the first row of their table.
    """

    title: str = ""
    note: str = ""
    base: str = ""


class StudyFile(_Part):
    """study.json. Without `tables` all are shown; what has no name there is always shown.

    `reference_late`: whether results were there when the plan named it; None if that is unknown.
    `published`: numbers to print beside the study's, a name that segcal knows or a path relative to
    the study; without it, `published.yaml` in the study if there is one.
    """

    format: Literal["segcal-study"]
    version: Literal[1]
    kind: str = "benchmark"
    title: str = "Study"
    note: str | None = None
    split: str = "test"
    region: str = "foreground"
    metrics: tuple[str, ...] = ("dsc", "hd95_mm", "ece", "cece")
    tables: tuple[Literal["main", "classes", "ablation", "priors"], ...] | None = None
    datasets: tuple[Dataset, ...]
    methods: tuple[Method, ...]
    runs: tuple[Run, ...] = ()
    reference: str | None = None
    reference_late: bool | None = None
    published: str | None = None
    groups: dict[str, MethodGroup] = {}
    environment: dict[str, Any] = Field(default_factory=dict)
