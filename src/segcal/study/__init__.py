"""File formats that several commands share: schema, reader and writer of each.

RunFolder, read_run                      the folder of a training
write_evaluation_files, read_evaluation  the four files of an evaluation
write_cases_table, read_cases_table      cases.csv, the long table
StudyWriter, read_study                  the folder of a study
"""

from segcal.core.checks import require_app

require_app(__name__)

from segcal.study.breakdown import BREAKDOWN_SHARE, broke_down
from segcal.study.cases_table import (
    empty_cases_table,
    read_cases_table,
    read_cases_tables,
    write_cases_table,
)
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
from segcal.study.ranks import (
    RANK_COLUMNS,
    check_ranking_folder,
    read_ranks,
    write_ranking,
    write_ranks,
)
from segcal.study.reader import GROUPS, Study, read_study, read_study_file
from segcal.study.reference import Named
from segcal.study.run_folder import (
    BEST,
    FREE_TO_CHANGE,
    LAST,
    PREVIOUS,
    REFUSED,
    RunFolder,
    RunInfo,
    RunRecord,
    check_same_data,
    check_same_settings,
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
from segcal.study.writer import RANKS, STUDY, StudyWriter, rank_study

__all__ = [
    "BEST",
    "BINS",
    "BREAKDOWN_SHARE",
    "CASES",
    "FORMAT",
    "FREE_TO_CHANGE",
    "GROUPS",
    "LAST",
    "PREVIOUS",
    "RANKS",
    "RANK_COLUMNS",
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
    "check_ranking_folder",
    "check_same_data",
    "check_same_settings",
    "empty_cases_table",
    "epochs_done",
    "file_of_split",
    "open_arrays",
    "rank_study",
    "read_cases_table",
    "read_cases_tables",
    "read_evaluation",
    "read_ranks",
    "read_run",
    "read_run_config",
    "read_run_info",
    "read_study",
    "read_study_file",
    "read_training",
    "training_seconds",
    "write_cases_table",
    "write_evaluation_files",
    "write_ranking",
    "write_ranks",
]
