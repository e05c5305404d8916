"""The content of a comparison, put into order and words, which every report format presents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.base.errors import ExitCode
from gpuscale.records import (
    Comparison,
    EntryVerdict,
    Estimate,
    Finding,
    QuantityName,
    Results,
    Statement,
    Verdict,
)
from gpuscale.reports import phrases
from gpuscale.reports.comparison.headline import headline_of, is_headlined
from gpuscale.reports.comparison.rows import Row, ShownCause, likeness_of_cause, rows_of, subject_of
from gpuscale.reports.reason_words import WORDS, statement_text
from gpuscale.reports.screen import Screen

_OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}


class Explanation(NamedTuple):
    """An explanation of the verdicts on one or more rows."""

    subject: str
    """Names of the rows, and the example shown if they differ: `both rows, for example on 4 GPUs`.
    """
    reason: str
    lost_metrics: tuple[str, ...]
    causes: tuple[ShownCause, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that report formats show of a comparison."""

    comparison: Comparison
    results: Sequence[Results]
    headline: tuple[tuple[str, str], ...]
    """Lines of the headline, each a label and a text.

    The first label is the verdict. The labels `beware`, `cause`, `changed`, `baseline`, `now` and
    `next` follow, without those that have no text.
    """
    rows: tuple[Row, ...]
    """Rows in the order of the baseline."""
    ranked: tuple[Row, ...]
    """Rows by severity: losses first, then rows not shown to be fine, then passes."""
    explanations: tuple[Explanation, ...]
    """Explanations of the verdicts, the worst first."""
    injections: tuple[str, ...]
    """Faults injected into the results on purpose."""
    warning: str
    """First line of the report if faults were injected; otherwise empty."""
    notes: tuple[str, ...]
    """Notes that are not part of the headline."""
    all_notes: tuple[str, ...]
    """All notes, preceded by a note on injected faults, if any."""
    summary: str
    """Number of rows with each verdict, the worst first: `1 regressed, 3 ok`."""
    outcome: str
    """Overall verdict in a few words."""
    exit_code: int
    """Exit code of the comparison or, under pytest, of the whole session."""
    screen: Screen

    @property
    def unsaid(self) -> Iterator[Explanation]:
        """Explanations, without those that the first line of the headline already gives."""
        (_, said), *_ = self.headline
        shown = explanations(self.ranked, dict(self.headline).get("next", ""))
        return (each for each in shown if each.causes or each.reason not in said)


def view_of(comparison: Comparison, results: Sequence[Results]) -> View:
    """Create the view of a comparison, formatted for a file or log rather than a terminal."""
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


def explanations(rows: Sequence[Row], next_step: str = "") -> list[Explanation]:
    """Explain the verdicts, except on rows whose numbers need no explanation.

    Rows with the same finding, causes and lost metrics share an explanation, whose numbers are
    those of the row with the most GPUs. Steps already named in `next_step` are not repeated.
    """
    alike: dict[object, list[Row]] = {}
    for row in rows:
        if row.reason and not _is_said_by_its_numbers(row.entry):
            alike.setdefault(_likeness(row), []).append(row)
    said_by: dict[str, str] = {}
    found: list[Explanation] = []
    for group in alike.values():
        subject = subject_of(group, rows)
        shown = max(group, key=lambda row: row.entry.key.gpus)
        causes = []
        for cause in shown.causes:
            step = cause.next_step
            if next_step and (not found or step in next_step):
                step = ""
            elif step in said_by:
                said = said_by[step]
                step = "as above" if said == subject else f"as for {said}"
            elif step:
                said_by[step] = subject
            causes.append(cause._replace(next_step=step))
        if len({row.reason for row in group}) > 1:
            one_name = len({row.name for row in group}) == 1
            subject += f", for example {f'on {shown.gpus}' if one_name else shown.label}"
        reason, metrics = shown.reason, shown.lost_metrics
        found.append(Explanation(subject, reason, metrics, tuple(causes), tuple(group)))
    return found


def _is_said_by_its_numbers(entry: EntryVerdict) -> bool:
    """True if the row passes and its numbers need no explanation."""
    if any(each.verdict.is_loss for each in entry.metrics):
        return False
    if entry.verdict is Verdict.OK:
        return entry.finding is None and entry.changed_quantity is not QuantityName.THROUGHPUT
    return entry.verdict.is_pass and WORDS[entry.reason.code].is_in_table


def _likeness(row: Row) -> object:
    """Return a key for grouping rows that differ only in their numbers."""
    entry = row.entry
    # The reason may mention other numbers of GPUs, irrelevant if a single GPU is slower.
    code = None if entry.finding is Finding.SINGLE_GPU_SLOWDOWN else _kind(entry.reason)
    metrics = tuple(each.metric.name for each in entry.metrics if each.verdict.is_loss)
    causes = tuple(map(likeness_of_cause, entry.causes))
    return entry.verdict, entry.finding, entry.since, code, metrics, causes


def _kind(statement: Statement) -> object:
    """Return a key that groups statements that differ only in numbers or non-efficiency quantities.

    Efficiency is undefined on one GPU, so a sentence on it must not represent a one-GPU row.
    """
    facts = []
    for name, value in statement.facts.items():
        if isinstance(value, Statement):
            facts.append((name, _kind(value)))
        elif name in ("quantity", "published"):
            facts.append((name, value == QuantityName.EFFICIENCY))
        elif not isinstance(value, int | float | Estimate | None):
            facts.append((name, repr(value)))
    code = "bounded_loss" if statement.code == "no_loss" else statement.code
    return code, tuple(facts)
