"""Results and baselines as text: the tables that people read first."""

from gpuscale.records import Results
from gpuscale.reports.scaling_rows import Shown
from gpuscale.reports.tables import baseline_text, results_text


def render(shown: Shown) -> str:
    """The scaling table, with where it comes from and what must be known beside it."""
    content, columns, steps = shown.content, shown.columns, shown.steps
    if isinstance(content, Results):
        return results_text(content, path=shown.path, now=shown.now, columns=columns, steps=steps)
    today = shown.now.astimezone().date()
    return baseline_text(content, today, columns=columns, steps=steps)
