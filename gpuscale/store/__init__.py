"""The only place that touches results files and baseline files.

Whatever a file holds and whatever a file system does, only `FileError` is raised, with one line
of text: path, place, problem and remedy.
"""

from gpuscale.store.files import read_any, read_baseline, read_results, write_baseline, write_report
from gpuscale.store.results import (
    RESULTS_FOLDER,
    ResultsWriter,
    ResumedResults,
    default_results_path,
    leave_out,
    newest_results,
    refuse_unwritable,
)
