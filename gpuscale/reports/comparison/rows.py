"""Rows of a comparison, formatted for reports: names, reasons, numbers and causes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpuscale.base.grouping import by_key
from gpuscale.base.text import format_percent
from gpuscale.judge.sides import Side
from gpuscale.records import (
    Cause,
    CauseKind,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    QuantityName,
    Run,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.records.cause import DeviceSymptom, PhaseChange
from gpuscale.records.verdict import SLOWDOWNS
from gpuscale.reports import phrases
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import headline, next_step, whole_line
from gpuscale.reports.columns import EFFICIENCY, Cell, Column, level_columns, odd_run_text
from gpuscale.reports.reason_words import parts_of, short_text

_LEAST_LOST = 0.02
"""Smallest loss of an undecided row whose lagging rank is the headline's cause."""
_NAMED_SUBJECTS = 3
_USUAL = Tolerances()


class Item(NamedTuple):
    """A list item of a report: a line (such as a cause), facts that support it, and a next step."""

    line: str
    facts: Sequence[str] = ()
    next_step: str = ""
    """Next step; empty if the headline or an earlier explanation says the same."""


class Pair(NamedTuple):
    """The baseline and current values of a quantity: `98.1 ms` and `115 ms`."""

    then: str
    now: str

    @property
    def line(self) -> str:
        """Both values, `98.1 → 115 ms`; a unit that they share appears once."""
        if self.then == self.now == phrases.UNKNOWN:
            return phrases.UNKNOWN
        number, _, unit = self.then.partition(" ")
        is_shared = unit and self.now.endswith(f" {unit}") and self.now.count(" ") == 1
        return f"{number if is_shared else self.then} → {self.now}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Texts and numbers that reports show for one row of a comparison."""

    entry: EntryVerdict
    name: str
    """Case and strategy, `mnist_cnn/ddp`, with options if needed to distinguish the row."""
    devices: str
    """Number of devices: `1 GPU` or `4 CPU ranks`."""
    verdict: str
    """Verdict, in capitals unless it is a pass."""
    quantity: str
    """Quantity on whose change the verdict rests: `E` (efficiency), `throughput`, `performance`."""
    short_reason: str
    """Cause or finding behind the verdict, short enough for a table."""
    change: Estimate | None
    """Relative change on which the verdict rests; None if unknown."""
    moved: Cell
    """Change with its interval, `E −7.6 %` (E: efficiency); for a metric, also both values."""
    numbers: Mapping[str, Pair]
    """Step time, total samples/s, efficiency E and other metrics, keyed by header."""
    lost_metrics: tuple[str, ...]
    """Losses in metrics that the reason omits: `peak memory 1.20 GiB → 1.80 GiB, +50.0 %`."""
    causes: tuple[Item, ...]
    wall_s: float
    """Total seconds that the row's current runs took, including start-up and failed runs."""
    valid_runs: int
    """Number of valid runs in the current results."""
    runs: Sequence[Run]
    """All of the row's current runs, valid and failed."""


def device_of(entries: Iterable[EntryVerdict]) -> str:
    """Return the type of the measured devices, such as `cuda`; empty if no row was measured."""
    return next((entry.device for entry in entries if entry.device), "")


def rows_of(entries: Sequence[EntryVerdict], measured: Side) -> list[Row]:
    """Return a row for each verdict, in the same order; `measured` has the current runs."""
    columns = {**level_columns(each.configuration for each in entries), "E": EFFICIENCY}
    return [
        _row(entry, name, measured.runs_of(entry.key, entry.configuration), columns)
        for entry, name in zip(entries, _names(entries), strict=True)
    ]


def _row(
    entry: EntryVerdict, name: str, runs: Sequence[Run], columns: Mapping[str, Column[Any]]
) -> Row:
    of_speedup = entry.changed_quantity is QuantityName.EFFICIENCY
    quantity = "E" if of_speedup else phrases.rate_word(entry.configuration)
    # None if the step time or the speedup decided the verdict.
    decided = next((m for m in entry.metrics if m.metric == entry.finding), None)
    moved = Cell("") if decided is None else _metric_cell(decided)
    if decided is None and entry.change is not None:
        value, *ends = phrases.change_texts(entry.change)
        moved = Cell(f"{quantity} {value}", f"[{', '.join(ends)}]" if ends else "")
    lost = [each for each in entry.metrics if each.verdict.is_loss and each is not decided]
    numbers = {
        name: Pair(*(column.cell(side).text for side in (entry.baseline, entry.current)))
        for name, column in columns.items()
    }
    odd = odd_run_text(runs) if entry.verdict is Verdict.INCONCLUSIVE else ""
    if entry.key.gpus == 1:
        numbers["E"] = Pair(phrases.UNKNOWN, phrases.UNKNOWN)
    return Row(
        entry=entry,
        name=name,
        devices=phrases.devices_text(entry.device, entry.key.gpus),
        verdict=phrases.verdict_word(entry.verdict),
        quantity=quantity,
        short_reason="; ".join(filter(None, (_short_reason(entry), odd))),
        change=entry.change if decided is None else decided.change,
        moved=moved,
        numbers=numbers,
        lost_metrics=tuple(_metric_cell(each).line for each in lost),
        causes=tuple(
            Item(whole_line(cause, entry.device), evidence(cause), next_step(cause))
            for cause in entry.causes
        ),
        wall_s=math.fsum(run.wall_s or 0.0 for run in runs),
        valid_runs=sum(run.is_valid for run in runs),
        runs=runs,
    )


def _short_reason(entry: EntryVerdict) -> str:
    if entry.verdict is Verdict.REGRESSED and (short := short_text(entry)):
        return short
    if isinstance(entry.finding, MetricSpec) or entry.finding is Finding.FASTER:
        return ""
    if entry.causes and entry.causes[0].kind is not CauseKind.NOT_ESTABLISHED:
        return headline(entry.causes[0])
    if entry.finding is not None:
        # The headline says if every GPU alike is slower; the rows of one slowdown read alike.
        found = finding_of(entry).replace(Finding.SINGLE_GPU_SLOWDOWN, Finding.SLOWER_TRAINING)
        return found.replace("GPU", "rank") if entry.device == "cpu" else found
    if entry.verdict is Verdict.OK:
        return _allowed(entry.reason)
    if entry.verdict is not Verdict.INCONCLUSIVE or entry.further_runs is None:
        return ""
    return f"about {phrases.counted(entry.further_runs, 'more run')} would probably settle it"


def _allowed(reason: Statement) -> str:
    """Say how large a loss `ok` allows according to its reason; "" if no more than by default."""
    allowed = max(part.facts.get("allowed", 0.0) for part in parts_of(reason))
    if allowed <= _USUAL.ok_bound:
        return ""
    return f"ok allows a loss of {format_percent(allowed)} here, by the baseline's tolerances"


def _metric_cell(metric: MetricVerdict) -> Cell:
    """Return a cell with a metric's values on both sides, their change and its interval."""
    spec, ends = metric.metric, (metric.baseline, metric.current)
    values = " → ".join(phrases.amount_text(end.value, spec.unit) for end in ends)
    change, *bounds = phrases.change_texts(metric.change)
    of_step = " of the step" if spec.in_points else ""
    if not bounds:
        return Cell(f"{spec.words} {values}, {change}{of_step}")
    return Cell(f"{spec.words} {values}, {change}", f"[{', '.join(bounds)}]{of_step}")


def detail_lines(lost_metrics: Sequence[str], causes: Sequence[Item]) -> Iterator[str]:
    """Yield the metrics that got worse, then the numbered causes with evidence and next steps."""
    yield from lost_metrics
    for number, cause in enumerate(causes, start=1):
        yield f"{number}. {cause.line}"
        yield from (f"   · {fact}" for fact in cause.facts)
        if cause.next_step:
            yield f"   next: {cause.next_step}"


def finding_of(entry: EntryVerdict) -> str:
    """Return what was found in a row, such as `scaling loss`; empty if nothing was found."""
    if isinstance(entry.finding, MetricSpec):
        return entry.finding.worse
    has_metric = entry.configuration is not None and entry.configuration.metric is not None
    if has_metric and entry.finding in SLOWDOWNS:
        return "lower performance"
    return entry.finding.value if entry.finding else ""


def subject_of(rows: Sequence[Row], among: Sequence[Row]) -> str:
    """Name the rows: `gpt/ddp on 1 and 4 GPUs`, or `all 3 rows` if `among` has no further rows."""
    if len(rows) == len(among) > 1:
        return "both rows" if len(rows) == 2 else f"all {len(rows)} rows"
    named = ((row.name, row.entry.key.gpus) for row in rows)
    return phrases.enumerated(phrases.row_texts(named, rows[0].entry.device, _NAMED_SUBJECTS))


def _names(entries: Sequence[EntryVerdict]) -> list[str]:
    """Name each entry uniquely among those on the same number of GPUs; add options if needed."""
    apart = phrases.set_apart([e.configuration for e in entries if e.configuration is not None])
    seen: Counter[tuple[str, int]] = Counter()
    names = []
    for entry in entries:
        name = apart[entry.configuration] if entry.configuration else entry.key.name
        seen[name, entry.key.gpus] += 1
        count = seen[name, entry.key.gpus]
        names.append(name if count == 1 else f"{name} ({count})")
    return names


def cause_group_key(cause: Cause) -> object:
    """Return a key for grouping causes; it ignores numbers and which devices of a host are hit."""
    seen = {
        (each.counter, each.reason, each.host) if isinstance(each, DeviceSymptom) else each
        for each in cause.evidence
        if not isinstance(each, PhaseChange)
    }
    alone = () if cause.ranks or cause.code == "device_fault" else cause.device_uuids
    named = (cause.kind, cause.code, cause.phase, cause.ranks, cause.hosts, alone)
    return named, cause.remedy, frozenset(seen)


def sharing(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the worst verdict that share the most frequent first cause.

    Known causes take precedence over unknown ones; ties go to the cause that cost the most time.
    """
    heaviest = [row for row in rows if row.entry.verdict.weight == rows[0].entry.verdict.weight]
    found = [row for row in heaviest if row.entry.causes and has_lost(row.entry)]
    groups = by_key((cause_group_key(row.entry.causes[0]), row) for row in found)

    def weight(group: Sequence[Row]) -> tuple[bool, int, float]:
        lost_s = max(row.entry.causes[0].lost_s or 0.0 for row in group)
        return is_established(group[0]), len(group), lost_s

    return max(groups.values(), key=weight, default=[])


def has_lost(entry: EntryVerdict) -> bool:
    """True if a row has a loss to explain: it is a loss, or no pass and lost at least 2 %."""
    seems_worse = entry.change is not None and entry.change.value <= -_LEAST_LOST
    return entry.verdict.is_loss or (seems_worse and not entry.verdict.is_pass)


def severity(row: Row) -> tuple[int, bool, float]:
    """Return a sort key: worst verdict first; among inconclusive rows, likely losses by size."""
    entry, is_open = row.entry, row.entry.verdict is Verdict.INCONCLUSIVE
    lost = entry.change.value if is_open and entry.change and has_lost(entry) else 0.0
    return entry.verdict.weight, is_open, lost


def is_established(row: Row) -> bool:
    """True if the first cause of the row's loss is known."""
    return row.entry.causes[0].kind != CauseKind.NOT_ESTABLISHED
