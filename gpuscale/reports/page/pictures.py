"""The figures of a page."""

from gpuscale.reports.figures import FIGURES
from gpuscale.reports.figures.picture import Measurements, svg_of
from gpuscale.reports.page.content import Section, Subject


def pictures(subject: Subject, *names: str) -> list[str]:
    """Those of these figures that the subject has something to show in; the worst cases first."""
    ranked = subject.view.ranked if subject.view else ()
    cases = dict.fromkeys(row.entry.key.case for row in ranked)
    places = {case: place for place, case in enumerate(cases)}
    # A figure has room for the first few cases.
    runs = sorted(subject.runs, key=lambda run: places.get(run.configuration.case, 0))
    drawn = Measurements(runs=runs, baseline=subject.baseline, history=subject.history)
    made = (FIGURES[name](drawn) for name in names)
    return [svg_of(its) for its in made if its is not None]


def curves(subject: Subject) -> Section | None:
    """Time, throughput and speedup over numbers of GPUs."""
    found = pictures(subject, "time", "throughput", "speedup")
    return Section(title="Curves", figures=found) if found else None
