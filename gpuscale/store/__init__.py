"""The only readers and writers of results, baselines, records of nights and tables kept by hand.

Every problem of a file or a file system is a `FileError`: one line with path, place, problem and
remedy.
"""

from gpuscale.store.files import read_any, read_baseline, write_baseline, write_report
from gpuscale.store.results import (
    RESULTS_FOLDER,
    ResultsWriter,
    ResumedResults,
    default_results_path,
    leave_out,
    left_out_reason,
    newest_results,
    read_results,
    validate_writable,
)
