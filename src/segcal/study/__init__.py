"""File formats that several commands share: schema, reader and writer of each.

RunFolder, read_run                      the folder of a training
write_evaluation_files, read_evaluation  the four files of an evaluation
write_cases_table, read_cases_table      cases.csv, the long table
StudyWriter, read_study                  the folder of a study
"""

from segcal.study.breakdown import broke_down
from segcal.study.cases_table import empty_cases_table, read_cases_table, write_cases_table
from segcal.study.evaluation_files import (
    BINS,
    CASES,
    SLICES,
    Evaluation,
    EvaluationInfo,
    file_of_split,
    open_arrays,
    read_evaluation,
    write_evaluation_files,
)
from segcal.study.reader import GROUPS, Study, read_study, read_study_file
from segcal.study.reference import Named
from segcal.study.run_folder import (
    BEST,
    LAST,
    PREVIOUS,
    REFUSED,
    RunFolder,
    RunInfo,
    RunRecord,
    epochs_done,
    read_run,
    read_run_config,
    read_run_info,
    read_training,
    training_seconds,
)
from segcal.study.schema import (
    FORMAT,
    VERSION,
    Candidate,
    Course,
    Dataset,
    Method,
    MethodGroup,
    Run,
    StudyFile,
    Training,
)
from segcal.study.writer import STUDY, StudyWriter

__all__ = [
    "BEST",
    "BINS",
    "CASES",
    "FORMAT",
    "GROUPS",
    "LAST",
    "PREVIOUS",
    "REFUSED",
    "SLICES",
    "STUDY",
    "VERSION",
    "Candidate",
    "Course",
    "Dataset",
    "Evaluation",
    "EvaluationInfo",
    "Method",
    "MethodGroup",
    "Named",
    "Run",
    "RunFolder",
    "RunInfo",
    "RunRecord",
    "Study",
    "StudyFile",
    "StudyWriter",
    "Training",
    "broke_down",
    "empty_cases_table",
    "epochs_done",
    "file_of_split",
    "open_arrays",
    "read_cases_table",
    "read_evaluation",
    "read_run",
    "read_run_config",
    "read_run_info",
    "read_study",
    "read_study_file",
    "read_training",
    "training_seconds",
    "write_cases_table",
    "write_evaluation_files",
]
