"""A comparison in order and in words, made once: what every report format renders."""

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
    """All that any format shows of a comparison."""

    comparison: Comparison
    results: Sequence[Results]
    headline: tuple[tuple[str, str], ...]
    """What stands first: labels with their texts. The first label is the verdict's word, then
    `beware`, `first` (cause), `changed`, `baseline`, `now` and `next`, each where it is known."""
    rows: tuple[Row, ...]
    """In the order of the baseline."""
    ranked: tuple[Row, ...]
    """First the rows that got worse, then those not shown to be fine, then the passes."""
    explanations: tuple[Explanation, ...]
    """Of the ranked rows, each once for all rows that share it."""
    injections: tuple[str, ...]
    """The faults that were made on purpose in the results."""
    warning: str
    """The line above all else where faults were made on purpose; else empty."""
    notes: tuple[str, ...]
    """All but what the headline says already."""
    all_notes: tuple[str, ...]
    """Every note, with that on faults made on purpose before them."""
    summary: str
    """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
    outcome: str
    """The verdict in a few words."""
    exit_code: int
    """Of the process; that of a session has further reasons."""
    screen: Screen

    @property
    def unsaid(self) -> Iterator[Explanation]:
        """The explanations but for those that the first line of the headline gives already."""
        (_, said), *_ = self.headline
        return (its for its in self.explanations if its.causes or its.reason not in said)


def view_of(comparison: Comparison, results: Sequence[Results]) -> View:
    """The comparison of one or more results for reading, in a file or a log."""
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
