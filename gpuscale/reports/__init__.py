"""Results and verdicts as text and data.

A report format is a module here, with `render(view: View) -> str`, and its line in `FORMATS`.
"""

FORMATS = {
    "text": "a terminal or a log; the default",
    "json": "scripts",
    "markdown": "a comment on a merge request, or the page of a CI job",
    "junit": "the test reports of GitLab, Jenkins and others",
    "github": "annotations of a GitHub workflow",
    "openmetrics": "Prometheus, through the textfile collector of node_exporter",
}
"""Each report format of a comparison, named as its module, and what it is for."""
