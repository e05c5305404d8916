"""Where the command line looks for files that it is not given."""

from pathlib import Path

RESULTS_FOLDER = Path(".gpuscale") / "results"
