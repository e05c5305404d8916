"""Results and verdicts as text and data.

A format of a comparison is a module `comparison/as_….py` that defines `render(view: View) -> str`,
listed in `COMPARISON_FORMATS`. A format of `gpuscale show` is a module `show/as_….py` that defines
`render(shown: Shown) -> str`, listed in `SHOWN_FORMATS`.
"""

COMPARISON_FORMATS = {
    "text": "a terminal or a log; the default",
    "json": "scripts",
    "csv": "spreadsheets and data frames, a line for each row",
    "markdown": "a comment on a merge request, or the page of a CI job",
    "junit": "the test reports of GitLab, Jenkins and others",
    "github": "annotations of a GitHub workflow",
    "openmetrics": "Prometheus, through the textfile collector of node_exporter",
}
"""Formats of comparisons, with the purpose of each; the keys name modules `comparison/as_….py`."""
SHOWN_FORMATS = {
    "text": "a terminal or a log; the default",
    "csv": "spreadsheets and data frames, a line for each row",
    "json": "scripts; with machine and software",
    "latex": "a paper, or a proposal for computing time",
}
"""Formats of results and baselines, with the purpose of each; keys name modules `show/as_….py`."""
