"""Read and write results, baselines and records of nightly runs; read tables kept by hand.

Every problem with a file or file system raises a `FileError`, whose one-line message has the path,
location, problem and remedy. No other package knows the formats of these files.
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
