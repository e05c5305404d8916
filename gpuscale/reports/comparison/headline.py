"""Headline of a comparison: verdict, warnings, first cause, environment changes, and both sides."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from gpuscale.base.grouping import by_key
from gpuscale.base.host import device_word
from gpuscale.base.text import format_distinct, format_percent, rough_percent, whole_percent
from gpuscale.records import (
    Comparison,
    EntryVerdict,
    EnvironmentChange,
    Finding,
    MetricSpec,
    Origin,
    Statement,
    Verdict,
)
from gpuscale.records.configuration import commands_text
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports import phrases
from gpuscale.reports.cause_words import headline, share_text, statement
from gpuscale.reports.comparison.rows import Row, device_of, is_established, sharing, subject_of
from gpuscale.reports.reason_words import WORDS, parts_of, reason_text, short_text, statement_text

_MOST = 0.75
"""Share of the main cause's time, or of all lost time, that counts as most of it."""
_UNCERTAIN = "too uncertain to tell whether anything was lost"


def headline_of(comparison: Comparison, rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return the headline as (label, text) pairs, without next steps; `rows` are worst first."""
    if not rows:
        return (("NOTHING COMPARED", "there is no row to judge"),)
    before, now = comparison.before, comparison.after
    device = device_of(comparison.entries)
    name = listed(before.files) or comparison.baseline_name
    reference = "before" if comparison.baseline_kind == "results" else "baseline"
    cautions = [note for note in comparison.notes if WORDS[note.code].caution is not None]
    # `WORDS` lists the most serious cautions first.
    cautions.sort(key=lambda note: [*WORDS].index(note.code))
    found = changes_of(comparison, comparison.entries)
    changes = (when + ", ".join(map(environment_text, each)) for when, each in found)
    lines = (
        _verdict_line(rows),
        ("beware", "; ".join(statement_text(note, device) for note in cautions)),
        ("cause", _first_cause(rows)),
        ("changed", "; ".join(dict.fromkeys(changes))),
        (reference, _side(name, before, comparison.baseline_machine)),
        ("now", _side(listed(now.files), now, comparison.current_machine)),
        ("command", commands_text(e.configuration for e in comparison.entries if e.configuration)),
    )
    return tuple((label, text) for label, text in lines if text)


def is_headlined(note: Statement) -> bool:
    """True if the headline contains this note, so that the list of notes omits it."""
    is_change = note.code in ("environment_changed", "recently_changed")
    return is_change or WORDS[note.code].caution is not None


def _verdict_line(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the first line's label and text."""
    verdicts = [row.entry.verdict for row in rows]
    of_all = f"of {phrases.counted(len(rows), 'row')}"
    verdict = phrases.worst_first(verdicts)[0]
    if verdict.is_pass:
        word, what = _passes(rows)
        return word, f"{len(rows)} {of_all}{' pass' if len({*verdicts}) > 1 else ''}: {what}"
    chosen = [row for row in rows if row.entry.verdict is verdict]
    others = [each for each in verdicts if each is not verdict]
    what = "; ".join(_losses(chosen)) if verdict.is_loss else _doubt(verdict, chosen)
    parts = [f"{len(chosen)} {of_all}{what and f': {what}'}", phrases.counted_verdicts(others)]
    return phrases.verdict_word(verdict), "; ".join(filter(None, parts))


def _losses(rows: Sequence[Row]) -> Iterator[str]:
    """Describe each kind of performance loss; if there are several, count the rows of each."""
    of_several = {row.entry.finding for row in rows if row.entry.key.gpus > 1}

    def kind(row: Row) -> object:
        finding = row.entry.finding
        if finding is Finding.SINGLE_GPU_SLOWDOWN and finding not in of_several:
            # On 1 GPU alone it says no more than that the training is slower.
            return Finding.SLOWER_TRAINING
        return finding or row.quantity

    groups = by_key(((kind(row), phrases.rate_word(row.entry.configuration)), row) for row in rows)
    for group in groups.values():
        count = f" ({phrases.counted(len(group), 'row')})" if len(groups) > 1 else ""
        is_by_rank = all(row.entry.reason.code == "straggler_besides" for row in group)
        yield f"{'a rank lags beyond chance; ' if is_by_rank else ''}{_loss(group)}{count}"


def _loss(rows: Sequence[Row]) -> str:
    """Describe the rows' loss: `training on 2 GPUs lost 9 % of its samples/s [7 %, 13 %]`."""
    entry = rows[0].entry
    changes = [row.change for row in rows if row.change is not None]
    sign = -1 if changes and changes[0].value < 0 else 1
    ends = sorted(sign * end for c in changes for end in (c.low, c.high) if end is not None)
    by = _span([abs(change.value) for change in changes])
    texts = format_distinct(rough_percent, ends[0], ends[-1]) if ends else []
    if ends and ends[0] < 0:
        texts = [f"at most {texts[1]}", f"or a gain of up to {texts[0][1:]}"]
    within = f" [{', '.join(texts)}]" if ends else ""
    starts = [row.entry.since or "" for row in rows]
    from_then = f", from {min(starts)} on" if all(starts) else ""
    if entry.verdict is Verdict.INCONSISTENT:
        name = "E" if rows[0].quantity == "E" else "the throughput"
        return f"{name} is {by}{within} below the reference figures"
    if isinstance(entry.finding, MetricSpec):
        moved = "rose" if changes and changes[0].value > 0 else "fell"
        of_step = " of the step" if entry.finding.in_points else ""
        return f"{entry.finding.words} {moved} by {by}{of_step}{within}{from_then}"
    if entry.finding is Finding.SCALING_LOSS:
        sides = ((r.entry.baseline.samples_per_s, r.entry.current.samples_per_s) for r in rows)
        lost = [1 - now.value / then.value for then, now in sides if then and now]
        rate = phrases.rate_word(entry.configuration)
        also = f", {rate} by {_span(lost)}" if min(lost, default=0.0) > 0 else ""
        return f"scaling got worse, E fell by {by}{within}{also}{from_then}"
    if phrases.rate_word(entry.configuration) == "performance":
        return f"performance fell by {by}{within}{from_then}"
    counts = sorted({row.entry.key.gpus for row in rows})
    subject = f"training on {phrases.devices_text(entry.device, *counts)}"
    each_slower = all(row.entry.finding is Finding.SINGLE_GPU_SLOWDOWN for row in rows)
    if each_slower and counts != [1]:
        subject = f"every {device_word(entry.device)}"
    return f"{subject} lost {by} of its samples/s{within}{from_then}"


def _doubt(verdict: Verdict, rows: Sequence[Row]) -> str:
    """Say why rows got a verdict (neither loss nor pass); if reasons differ, count rows of each."""
    reasons = dict.fromkeys(reason_text(row.entry) for row in rows)
    if len(reasons) == 1 and verdict is not Verdict.INCONCLUSIVE:
        return next(iter(reasons))
    usual = _UNCERTAIN if verdict is Verdict.INCONCLUSIVE else ""
    counts = Counter(short_text(row.entry) or usual for row in rows)
    texts = [f"{text} ({phrases.counted(count, 'row')})" for text, count in counts.items() if text]
    excluded = most_lost(rows, 0.5) if verdict is Verdict.INCONCLUSIVE else ""
    return "; ".join(filter(None, (*(counts if len(counts) == 1 else texts), excluded)))


def most_lost(rows: Sequence[Row], largest: float = 0.25) -> str:
    """Say which loss the rows' intervals exclude; empty if unknown, or if it is over `largest`."""
    bounds: dict[str, float] = {}
    for row in rows:
        # Rows with a reason beside another would pass, but their runs are not to be trusted.
        is_known = row.change is not None and "otherwise" not in row.entry.reason.facts
        low = row.change.low if row.change is not None and is_known else None
        bounds[row.quantity] = max(bounds.get(row.quantity, 0.0), 1.0 if low is None else -low)
    if max(bounds.values(), default=1.0) >= largest:
        return ""
    texts = (f"of {name} is below {format_percent(bound)}" for name, bound in bounds.items())
    return f"any loss {' and '.join(texts)}"


def _passes(rows: Sequence[Row]) -> tuple[str, str]:
    """Return one verdict for passing rows, and a text: their gains, and which loss is ruled out."""
    verdicts = {row.entry.verdict for row in rows}
    gains = by_key(
        (row.quantity, row.change.value)
        for row in rows
        if row.entry.verdict is Verdict.IMPROVED and row.change is not None
    )
    parts = []
    for name, changes in gains.items():
        gain = "{} more samples/s" if name == "throughput" else f"{name} rose by {{}}"
        count = "" if len(changes) == len(rows) else f" ({phrases.counted(len(changes), 'row')})"
        parts.append(f"{gain.format(_span(changes))}{count}")
    if Verdict.CONSISTENT in verdicts:
        parts.append("no worse than the reference figures, within the tolerance")
    if Verdict.OK in verdicts:
        passed = [row for row in rows if row.entry.verdict is Verdict.OK]
        parts_of_rows = (parts_of(row.entry.reason) for row in passed)
        bounded = [part for each in parts_of_rows for part in each if "bound" in part.facts]
        worst = max(bounded, key=lambda reason: reason.facts["bound"], default=None)
        if worst and len(bounded) == len(passed) and worst.code != "no_loss":
            parts.append(statement_text(worst, rows[0].entry.device))
        else:
            parts.append("no loss was found")
    order = (Verdict.OK, Verdict.CONSISTENT, Verdict.IMPROVED)
    return next(each.value for each in order if each in verdicts), "; ".join(parts)


def _first_cause(rows: Sequence[Row]) -> str:
    """Describe the main cause: `computing +10 ms; all 3 rows`; empty if no loss was diagnosed."""
    if not (shared := sharing(rows)):
        return ""
    causes = [row.entry.causes[0] for row in shared]
    if not is_established(shared[0]):
        return f"not known: {statement(causes[0])}; {subject_of(shared, rows)}"
    is_open = not shared[0].entry.verdict.is_loss
    sure = ", not by chance" if is_open and causes[0].code == "stragglers" else ""
    least_s = _MOST * (causes[0].lost_s or math.inf)
    near = [other for other in shared[0].entry.causes[1:2] if (other.lost_s or 0.0) > least_s]
    also = "".join(f", and {headline(other)}{share_text(other)}" for other in near)
    told = max(sum(each.share or 0.0 for each in row.entry.causes) for row in shared)
    also += f"; no cause found for {whole_percent(1 - told)}" if 0 < told < _MOST else ""
    return f"{headline(*causes)}{share_text(*causes)}{sure}{also}; {subject_of(shared, rows)}"


def changes_of(
    comparison: Comparison, entries: Sequence[EntryVerdict]
) -> Iterator[tuple[str, Sequence[EnvironmentChange]]]:
    """Yield groups of environment changes: between the two sides, or on one night of the history.

    Each item is a prefix (`on 2026-11-05: ` for a night, else empty) and a group of changes.
    """
    for note in comparison.notes:
        if note.code == "environment_changed":
            yield "", note.facts["changes"]
        if note.code == "recently_changed":
            yield f"on {note.facts['since']}: ", note.facts["changes"]
    for entry in entries:
        if changes := entry.reason.facts.get("changed"):
            yield f"on {entry.since}: ", changes


def _side(name: str, origin: Origin, machine: str) -> str:
    """Describe a side of the comparison: `well.json: node017, 2026-11-20 02:10, 6 runs a row`."""
    runs = [str(count) for count in (origin.fewest_runs, origin.most_runs) if count]
    word = "run" if origin.most_runs == 1 else "runs"
    dates = [datetime.fromisoformat(at) for at in (origin.began_at, origin.last_at) if at]
    facts = [
        listed(origin.hosts),
        phrases.span_text(*dates) if len(dates) == 2 else "",
        f"job{'s' if len(origin.jobs) > 1 else ''} {listed(origin.jobs)}" if origin.jobs else "",
        f"{phrases.format_range(runs)} {word} a row" if runs else "",
    ]
    measured = ", ".join(filter(None, facts))
    for host in origin.hosts:
        machine = machine.removeprefix(f"{host}, ")
    return "; ".join(filter(None, [": ".join(filter(None, [name, measured])), machine]))


def _span(fractions: Sequence[float]) -> str:
    """Return the range of the fractions: `9.8 % to 10 %`."""
    return phrases.format_range([*map(rough_percent, (min(fractions), max(fractions)))])
