"""Content of a comparison report, shared by all of its output formats."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from gpuscale.base.errors import ExitCode
from gpuscale.base.grouping import by_key
from gpuscale.judge.sides import Side
from gpuscale.records import Comparison, Finding, Verdict
from gpuscale.reports import cause_words, phrases
from gpuscale.reports.comparison.headline import headline_of, is_headlined
from gpuscale.reports.comparison.next_step import next_steps
from gpuscale.reports.comparison.rows import (
    Item,
    Row,
    cause_group_key,
    device_of,
    is_established,
    rows_of,
    severity,
    sharing,
    subject_of,
)
from gpuscale.reports.reason_words import parts_of, statement_text, text_beyond_table
from gpuscale.reports.screen import Screen

_OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}


class Explanation(NamedTuple):
    """Explanation of a verdict on one or more rows: reason, metrics that got worse, and causes."""

    subject: str
    """Rows that share the explanation: `both rows, for example on 4 GPUs`."""
    reason: str
    lost_metrics: tuple[str, ...]
    causes: tuple[Item, ...]
    rows: tuple[Row, ...]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the report formats show about a comparison."""

    comparison: Comparison
    measured: Side
    """The runs that were judged."""
    headline: tuple[tuple[str, str], ...]
    """Lines of the headline, each as (label, text); lines without a text are omitted.

    The first label is the verdict. The labels `beware`, `cause`, `changed`, `baseline`, `now`,
    `command`, `next`, `then` and `or` follow.
    """
    rows: tuple[Row, ...]
    """Rows in the order of the baseline."""
    ranked: tuple[Row, ...]
    """Rows by severity: losses first, then undecided rows (neither loss nor pass), then passes."""
    explanations: tuple[Explanation, ...]
    """Explanations of the verdicts, the worst first, except those that the headline contains."""
    warning: str
    """First line of the report if faults were injected; otherwise empty."""
    notes: tuple[str, ...]
    """Notes that are not part of the headline."""
    all_notes: tuple[str, ...]
    """All notes, also those that are part of the headline."""
    summary: str
    """Number of rows with each verdict, the worst first: `1 regressed, 3 ok`."""
    outcome: str
    """Overall verdict in a few words."""
    exit_code: int
    """Exit code of the comparison or, under pytest, of the whole session."""
    screen: Screen


def view_of(comparison: Comparison, measured: Side) -> View:
    """Create the view of a comparison for all report formats; `measured` has the current runs."""
    rows = rows_of(comparison.entries, measured)
    ranked = tuple(sorted(rows, key=severity))
    device = device_of(comparison.entries)
    said = {statement_text(note, device): is_headlined(note) for note in comparison.notes}
    headline = headline_of(comparison, ranked)
    counts = {entry.key.gpus for entry in comparison.entries if entry.verdict.is_judged}
    steps = tuple(next_steps(comparison, ranked, measured))
    headline += steps
    explained = _explanations(ranked, [text for _, text in steps])
    return View(
        comparison=comparison,
        measured=measured,
        headline=headline,
        rows=tuple(rows),
        ranked=ranked,
        explanations=tuple(e for e in explained if e.causes or e.reason not in headline[0][1]),
        warning=phrases.injection_warning(measured.injections, device, *counts),
        notes=tuple(text for text, elsewhere in said.items() if not elsewhere),
        all_notes=tuple(said),
        summary=phrases.counted_verdicts(entry.verdict for entry in comparison.entries)
        or "nothing to compare",
        outcome=_OUTCOMES[comparison.exit_code],
        exit_code=int(comparison.exit_code),
        screen=Screen(),
    )


def _explanations(rows: Sequence[Row], advice: Sequence[str]) -> Iterator[Explanation]:
    """Yield explanations in words for rows whose numbers in the table do not explain the verdict.

    Rows that differ only in their numbers share an explanation, which quotes the worst (of losses,
    that on the most devices). `advice` holds the headline's next steps, which explanations do not
    repeat. If there are such steps, the first explanation gives no next step at all.
    """
    alike = by_key((_row_group_key(row), row) for row in rows if _needs_explanation(row))
    unexplained = [row for row in sharing(rows)[:1] if not is_established(row)]
    unknown = [cause_words.statement(row.entry.causes[0]) for row in unexplained]
    said = {*advice}
    for number, group in enumerate(alike.values()):
        subject = subject_of(group, rows)
        shown = max(group, key=lambda row: row.entry.verdict.is_loss and row.entry.key.gpus)
        causes = []
        for cause, item in zip(shown.entry.causes, shown.causes, strict=True):
            is_said = any(item.next_step in step for step in said) or (advice and not number)
            said.add(item.next_step)
            if item.facts or not is_said or cause_words.statement(cause) not in unknown:
                causes.append(item._replace(next_step="") if is_said else item)
        if len({text_beyond_table(row.entry) for row in group}) > 1:
            name = f"{shown.name} " if len({row.name for row in group}) > 1 else ""
            subject += f", for example {name}on {shown.devices}"
        reason, metrics = text_beyond_table(shown.entry), shown.lost_metrics
        yield Explanation(subject, reason, metrics, tuple(causes), tuple(group))


def _needs_explanation(row: Row) -> bool:
    """True if the verdict on a row needs an explanation in words; `ok` seldom does."""
    entry = row.entry
    if entry.verdict is Verdict.OK and not row.lost_metrics:
        return entry.finding is not None or entry.reason.code == "speedup_unknown"
    return bool(text_beyond_table(entry) or row.lost_metrics or row.causes)


def _row_group_key(row: Row) -> object:
    """Return a key that is equal for rows whose texts differ only in measured values."""
    entry = row.entry
    parts = [*parts_of(entry.reason)]
    # Efficiency is undefined on one GPU, so a sentence about efficiency must not represent a row on
    # one GPU. If each GPU is slower, details of the reason must not separate the rows.
    about_other_row = "E(" in text_beyond_table(entry), any("on_1" in part.facts for part in parts)
    what = (*(part.code for part in parts), *about_other_row)
    if entry.finding is Finding.SINGLE_GPU_SLOWDOWN:
        what = ()
    metrics = tuple(each.metric.name for each in entry.metrics if each.verdict.is_loss)
    causes = tuple(map(cause_group_key, entry.causes))
    return entry.verdict, entry.finding, entry.since, what, metrics, causes
