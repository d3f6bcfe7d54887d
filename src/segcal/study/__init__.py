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
    neutral,
    read_cases_table,
    read_cases_tables,
    write_cases_table,
    write_frame,
)
from segcal.study.evaluation_files import (
    CASES,
    EXTERNAL,
    Evaluation,
    EvaluationInfo,
    file_of_split,
    open_arrays,
    read_evaluation,
    write_evaluation_files,
)
from segcal.study.ranks import check_ranking_folder, write_ranking
from segcal.study.reader import Study, read_study, read_study_file, region_beside
from segcal.study.run_folder import (
    BEST,
    LAST,
    PREVIOUS,
    REFUSED,
    RunFolder,
    RunRecord,
    check_same_data,
    check_same_settings,
    epochs_done,
    free_to_change,
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
    Dataset,
    Hypothesis,
    Method,
    MethodGroup,
    Run,
    StudyFile,
    Table,
    Training,
)
from segcal.study.writer import STUDY, StudyWriter, rank_study

__all__ = [
    "BEST", "BREAKDOWN_SHARE", "CASES", "EXTERNAL", "FORMAT", "LAST", "PREVIOUS", "REFUSED",
    "STUDY", "VERSION", "Candidate", "Dataset", "Evaluation", "EvaluationInfo", "Hypothesis",
    "Method", "MethodGroup", "Run", "RunFolder", "RunRecord", "Study", "StudyFile", "StudyWriter",
    "Table", "Training", "broke_down", "check_ranking_folder", "check_same_data",
    "check_same_settings", "epochs_done", "file_of_split", "free_to_change", "neutral",
    "open_arrays", "rank_study", "read_cases_table", "read_cases_tables", "read_evaluation",
    "read_run", "read_run_config", "read_run_info", "read_study", "read_study_file",
    "read_training", "region_beside", "training_seconds", "write_cases_table",
    "write_evaluation_files", "write_frame", "write_ranking",
]  # fmt: skip
