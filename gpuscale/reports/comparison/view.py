"""The view of a comparison: ordered, in words, and common to all report formats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscale.base.errors import ExitCode
from gpuscale.records import Comparison, Results
from gpuscale.reports import phrases
from gpuscale.reports.comparison.folding import Explanation, explanations
from gpuscale.reports.comparison.headline import headline_of, is_headlined
from gpuscale.reports.comparison.rows import Row, rows_of
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.screen import Screen

_OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that the formats show of a comparison."""

    comparison: Comparison
    results: Sequence[Results]
    headline: tuple[tuple[str, str], ...]
    """The headline: labels with their texts.

    The first label is the verdict, then come `beware`, `cause`, `changed`, `baseline`, `now` and
    `next`, each if known.
    """
    rows: tuple[Row, ...]
    """The rows in the order of the baseline."""
    ranked: tuple[Row, ...]
    """The rows by weight: losses first, then open ones, then passes."""
    explanations: tuple[Explanation, ...]
    """The explanations of the ranked rows."""
    injections: tuple[str, ...]
    """The faults that were injected into the results on purpose."""
    warning: str
    """The first line of the report if faults were injected; else empty."""
    notes: tuple[str, ...]
    """The notes that are not part of the headline."""
    all_notes: tuple[str, ...]
    """All notes, after the one on injected faults."""
    summary: str
    """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
    outcome: str
    """The verdict in a few words."""
    exit_code: int
    """Exit code of the comparison; a session's may have other reasons."""
    screen: Screen

    @property
    def unsaid(self) -> Iterator[Explanation]:
        """The explanations that the first line of the headline does not give."""
        (_, said), *_ = self.headline
        return (each for each in self.explanations if each.causes or each.reason not in said)


def view_of(comparison: Comparison, results: Sequence[Results]) -> View:
    """Create the view of a comparison for a file or a log."""
    rows = rows_of(comparison.entries, results)
    ranked = tuple(sorted(rows, key=lambda row: row.entry.verdict.weight))
    injections = tuple(dict.fromkeys(each for result in results for each in result.injections))
    injected = (
        f"faults were made on purpose ({', '.join(injections)}): the verdicts say whether they are "
        "found, and nothing about the machine"
    )
    before = [injected] if injections else []
    said = {statement_text(note): is_headlined(note) for note in comparison.notes}
    return View(
        comparison=comparison,
        results=results,
        headline=headline_of(comparison, ranked),
        rows=tuple(rows),
        ranked=ranked,
        explanations=tuple(explanations(ranked)),
        injections=injections,
        warning=phrases.injection_warning(injections),
        notes=(*before, *(text for text, elsewhere in said.items() if not elsewhere)),
        all_notes=(*before, *said),
        summary=phrases.counted_verdicts(entry.verdict for entry in comparison.entries)
        or "nothing to compare",
        outcome=_OUTCOMES[comparison.exit_code],
        exit_code=int(comparison.exit_code),
        screen=Screen(),
    )
