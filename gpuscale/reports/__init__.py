"""Results and verdicts as text and data.

A report format of a comparison is a module `comparison/as_….py`, with `render(view: View) -> str`,
and its line in `COMPARISON_FORMATS`. A format of `gpuscale show` is a module `show/as_….py`, with
`render(shown: Shown) -> str`, and its line in `SHOWN_FORMATS`.
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
"""The formats of comparisons by the names of their modules, and their purposes."""
SHOWN_FORMATS = {
    "text": "a terminal or a log; the default",
    "csv": "spreadsheets and data frames, a line for each row",
    "json": "scripts; with machine and software",
    "latex": "a paper, or a proposal for computing time",
}
"""The formats of results and baselines, and their purposes."""
