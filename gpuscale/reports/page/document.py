"""The report page: its sections in order."""

from collections.abc import Callable, Sequence

from gpuscale.base.errors import ExitCode
from gpuscale.reports import phrases
from gpuscale.reports.columns import Tone
from gpuscale.reports.page.content import Section, Subject, rendered
from gpuscale.reports.page.nights_section import losses, nights, told_by_nights
from gpuscale.reports.page.row_sections import causes, machines, measured_headline, place_text, rows
from gpuscale.reports.page.step_sections import budget, curves, phases, windows

SECTIONS: Sequence[Callable[[Subject], Section | None]] = (
    causes,
    rows,
    curves,
    nights,
    budget,
    phases,
    windows,
    machines,
)
"""The sections below the verdict, in order; each is None if there is no data for it."""
_TONES_OF_NIGHTS: dict[str, Tone] = {"STEADY": "", "SLOWER": "loss"}
_TONES: dict[ExitCode, Tone] = {ExitCode.OK: "pass", ExitCode.REGRESSED: "loss"}


def report_html(subject: Subject) -> str:
    """The HTML of a report; raises UsageError if Jinja2 or matplotlib is missing."""
    view = subject.view
    made = [section for make in SECTIONS if (section := make(subject)) is not None]
    injections = dict.fromkeys(each for result in subject.results for each in result.injections)
    (word, first), *facts = measured_headline(subject) if view is None else view.headline
    tone: Tone = "" if view is None else _TONES.get(view.comparison.exit_code, "doubt")
    if view is None and (told := told_by_nights(subject)):
        word, first = told
        tone = _TONES_OF_NIGHTS.get(word, "doubt")
        facts.append(("baseline", "none was given; this is from the nights alone"))
    if view or word == "SLOWER":
        at = 1 if view else 0
        facts[at:at] = [("since", text) for text in losses(subject)]
    if subject.folder:
        facts = [
            (label, f"{subject.folder}: {text}" if label == "now" else text)
            for label, text in facts
        ]
    place = place_text(subject.results[0])
    return rendered(
        made,
        title=f"{word}: {place}",
        place=f"GPU scaling: {place}",
        warning=phrases.injection_warning([*injections]),
        word=word,
        first=first,
        facts=facts,
        tone=tone,
    )
