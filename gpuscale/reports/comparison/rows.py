"""The rows of a comparison in words: each with a name of its own, its verdict and its numbers."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.base.units import format_percent, format_seconds, rough_percent, significant
from gpuscale.records import (
    Cause,
    CauseKind,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    QuantityName,
    Results,
    Run,
    Statement,
    Tolerances,
    Verdict,
)
from gpuscale.reports import phrases
from gpuscale.reports.cause_words import evidence, headline, next_step, whole_line
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import metric_reason, parts_of, reason_text, short_text

_MOST_FOUND = 0.5
"""Of the throughput: what a comparison finds only beyond it, it does not find."""
_NAMED_SUBJECTS = 3


class ShownCause(NamedTuple):
    """A cause in words."""

    line: str
    facts: tuple[str, ...]
    """The evidence for it."""
    next_step: str
    """What to do next; where it was said already `as above`, or for which rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry under a name that no other row of its number of GPUs has, and its words."""

    entry: EntryVerdict
    name: str
    """`mnist_cnn/ddp`, with options where that alone is ambiguous."""
    gpus: str
    """`1 GPU` or `4 GPUs`."""
    label: str
    """`mnist_cnn/ddp on 4 GPUs`."""
    verdict: str
    """In capitals unless it is a pass."""
    reason: str
    """One sentence that a tired person understands."""
    short_reason: str
    """The cause or finding behind the verdict, in the few words that a table's row bears."""
    change: Estimate | None
    """The change that the verdict rests on."""
    moved: str
    """The same in words: `E −7.6 % [−9.1 %, −6.0 %]`, of a metric with its amounts; empty where
    nothing was judged."""
    step_time: str
    """`98.1 → 115 ms`, the baseline's and now's, like the next two."""
    samples_per_s: str
    """`5220 → 4450`, of all GPUs together."""
    efficiency: str
    """`0.91 → 0.84`; on one GPU, where E is 1 by definition, unknown."""
    lost_metrics: tuple[str, ...]
    """`peak memory 1.20 GiB → 1.80 GiB, +50.0 %`: all that the reason is not about."""
    causes: tuple[ShownCause, ...]
    wall_s: float
    """The time that its runs took, start-up and failed runs included."""
    valid_runs: int
    """Now."""


def rows_of(entries: Sequence[EntryVerdict], results: Sequence[Results]) -> list[Row]:
    """The row of each entry, in their order, of a comparison with those results."""
    runs: defaultdict[object, list[Run]] = defaultdict(list)
    for run in (run for result in results for run in result.runs):
        runs[run.key, run.configuration].append(run)
    return [
        _row(entry, name, runs[entry.key, entry.configuration])
        for entry, name in zip(entries, _names(entries), strict=True)
    ]


def _row(entry: EntryVerdict, name: str, runs: Sequence[Run]) -> Row:
    gpus = phrases.gpus_text(entry.key.gpus)
    # None where time or speedup decided.
    decided = next((m for m in entry.metrics if m.metric == entry.finding), None)
    change = entry.change if decided is None else decided.change
    quantity = "E" if entry.changed_quantity is QuantityName.EFFICIENCY else "throughput"
    moved = "" if change is None else f"{quantity} {phrases.change_text(change)}"
    before, now = entry.baseline, entry.current
    lost = [each for each in entry.metrics if each.verdict.is_loss and each is not decided]
    return Row(
        entry=entry,
        name=name,
        gpus=gpus,
        label=f"{name} on {gpus}",
        verdict=phrases.verdict_word(entry.verdict),
        reason=reason_text(entry),
        short_reason=_short_reason(entry),
        change=change,
        moved=moved if decided is None else _metric_text(decided),
        step_time=_then_now(before.step_time_s, now.step_time_s, format_seconds),
        samples_per_s=_then_now(before.samples_per_s, now.samples_per_s, significant),
        efficiency=UNKNOWN
        if entry.key.gpus == 1
        else _then_now(before.efficiency, now.efficiency, "{:.2f}".format),
        lost_metrics=tuple(map(_metric_text, lost)),
        causes=tuple(
            ShownCause(whole_line(cause), _facts_of(entry, cause), next_step(cause))
            for cause in entry.causes
        ),
        wall_s=math.fsum(run.wall_s or 0.0 for run in runs),
        valid_runs=sum(run.is_valid for run in runs),
    )


def _then_now(before: Estimate | None, now: Estimate | None, form: Callable[[float], str]) -> str:
    """`98.1 → 115 ms`: a unit that both have is said once."""
    if before is None and now is None:
        return UNKNOWN
    texts = [UNKNOWN if each is None else form(each.value) for each in (before, now)]
    number, _, unit = texts[0].partition(" ")
    if unit and texts[1].endswith(f" {unit}") and texts[1].count(" ") == 1:
        texts[0] = number
    return " → ".join(texts)


def _short_reason(entry: EntryVerdict) -> str:
    loss = entry.minimum_detectable_loss
    if entry.verdict is Verdict.REGRESSED and (short := short_text(entry)):
        return short
    if isinstance(entry.finding, MetricSpec) or entry.finding is Finding.FASTER:
        return ""
    if entry.causes and entry.causes[0].kind is not CauseKind.NOT_ESTABLISHED:
        return headline(entry.causes[0])
    if entry.finding is not None:
        return finding_text(entry.finding)
    if entry.verdict is Verdict.OK:
        return _allowed(entry.reason)
    if entry.verdict is not Verdict.INCONCLUSIVE:
        return ""
    if entry.further_runs is not None:
        return f"probably about {phrases.counted(entry.further_runs, 'more run')}"
    if loss is None:
        return ""
    # It is a loss of throughput also beside an open E; the reasons of published figures differ.
    of_speedup = entry.changed_quantity is QuantityName.EFFICIENCY
    is_open_e = of_speedup and "ok_bound" in entry.reason.facts
    return smallest_losses(loss) + (" of throughput" if is_open_e else "")


def _allowed(reason: Statement) -> str:
    """`ok allows a loss of 30.0 % here`, if that is more than it does by default."""
    allowed = max(part.facts.get("allowed", 0.0) for part in parts_of(reason))
    if allowed <= Tolerances().ok_bound:
        return ""
    return f"ok allows a loss of {format_percent(allowed)} here, by the baseline's tolerances"


def _facts_of(entry: EntryVerdict, cause: Cause) -> tuple[str, ...]:
    """The evidence for one of the row's causes, and where its own metric leaves it open, that."""
    doubts = (
        f"judged by itself, {metric_reason(each)}"
        for each in entry.metrics
        if each.metric.in_points
        and each.verdict is Verdict.INCONCLUSIVE
        and cause.code == "communication"
    )
    return (*evidence(cause), *doubts)


def _metric_text(metric: MetricVerdict) -> str:
    spec, ends = metric.metric, (metric.baseline, metric.current)
    values = " → ".join(phrases.amount_text(end.value, spec.unit) for end in ends)
    return f"{spec.words} {values}, {metric_change(metric)}"


def metric_change(metric: MetricVerdict) -> str:
    """`+30.0 % [+28.2 %, +31.8 %]`; of what is judged in points `… of the step`."""
    of_step = " of the step" if metric.metric.in_points else ""
    return f"{phrases.change_text(metric.change)}{of_step}"


def detail_lines(lost_metrics: Sequence[str], causes: Sequence[ShownCause]) -> Iterator[str]:
    """The lost metrics, then the numbered causes with their evidence and what to do next."""
    yield from lost_metrics
    for number, cause in enumerate(causes, start=1):
        yield f"{number}. {cause.line}"
        yield from (f"   · {fact}" for fact in cause.facts)
        if cause.next_step:
            yield f"   next: {cause.next_step}"


def finding_text(finding: Finding | MetricSpec) -> str:
    """`scaling loss`, `more memory`."""
    return finding.value if isinstance(finding, Finding) else finding.worse


def subject_of(rows: Sequence[Row], among: Sequence[Row]) -> str:
    """`mnist_cnn/ddp on 1, 2 and 4 GPUs`, or `all 3 rows` where there are no others."""
    if len(rows) == len(among) > 1:
        return "both rows" if len(rows) == 2 else f"all {len(rows)} rows"
    named = ((row.name, row.entry.key.gpus) for row in rows)
    return phrases.enumerated(phrases.row_texts(named, _NAMED_SUBJECTS))


def losses_found(rows: Iterable[Row]) -> str:
    """`found 19 times in 20: a loss of 2.3 % to 6.3 % by row`; empty if no row has a limit."""
    losses = (row.entry.minimum_detectable_loss for row in rows)
    return smallest_losses(*(loss for loss in losses if loss is not None))


def smallest_losses(*losses: float) -> str:
    """`found 19 times in 20: a loss of 2.3 %`, or of several the least and the most."""
    texts = [
        "more than half" if loss > _MOST_FOUND else rough_percent(loss) for loss in sorted(losses)
    ]
    if not texts:
        return ""
    by_row = " by row" if texts[0] != texts[-1] else ""
    return f"found 19 times in 20: a loss of {phrases.ends_text(texts)}{by_row}"


def _names(entries: Sequence[EntryVerdict]) -> list[str]:
    """Names with options for the cases that have several rows of one number of GPUs."""
    counts = Counter(entry.key for entry in entries)
    several = {(key.case, key.strategy) for key, count in counts.items() if count > 1}
    known = [entry for entry in entries if (entry.key.case, entry.key.strategy) in several]
    configurations = [entry.configuration for entry in known if entry.configuration is not None]
    apart = phrases.set_apart(configurations)
    seen: Counter[tuple[str, int]] = Counter()
    names = []
    for entry in entries:
        name = entry.key.name
        if entry.configuration is not None:
            name = apart.get(entry.configuration, name)
        seen[name, entry.key.gpus] += 1
        count = seen[name, entry.key.gpus]
        names.append(name if count == 1 else f"{name} ({count})")
    return names
