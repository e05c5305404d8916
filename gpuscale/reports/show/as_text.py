"""Results and baselines as text: the tables that people read first."""

from gpuscale.records import Results
from gpuscale.reports.show.baseline_text import baseline_text
from gpuscale.reports.show.projection_text import projection_lines
from gpuscale.reports.show.scaling_rows import Shown
from gpuscale.reports.show.scaling_table import results_text


def render(shown: Shown) -> str:
    """The scaling table, with where it comes from and what must be known beside it."""
    content, columns, steps = shown.content, shown.columns, shown.steps
    if isinstance(content, Results):
        path, now = shown.path, shown.now
        text = results_text(content, path=path, now=now, columns=columns, steps=steps)
    else:
        today = shown.now.astimezone().date()
        text = baseline_text(content, today, columns=columns, steps=steps)
    further = projection_lines(shown.projections, columns, steps) if shown.projections else ()
    return "\n".join((text, *([""] if further else []), *further))
