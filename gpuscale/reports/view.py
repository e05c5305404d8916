"""A comparison in order and in words, made once: what every report format renders."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.errors import ExitCode
from gpuscale.records import (
    CauseKind,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    QuantityName,
    Results,
    Verdict,
)
from gpuscale.reports import phrases
from gpuscale.reports.cause_words import evidence, headline, next_step, whole_line
from gpuscale.reports.phrases import UNKNOWN
from gpuscale.reports.reason_words import reason_text, statement_text
from gpuscale.reports.screen import Screen
from gpuscale.units import format_percent

DETECTABLE = "smallest loss found 19 times in 20"
"""The meaning of `finds 2.3 %`."""
_OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}
_NAMED_SUBJECTS = 3


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
    judged: str
    """The ground of the verdict: `E 0.91 → 0.84`, `throughput −6.4 %` or `memory +50.0 %`."""
    interval: str
    """The 95% interval of the change, or where nothing was judged that of E now."""
    efficiency: str
    """`0.91 → 0.84`; on one GPU, where E is 1 by definition, unknown."""
    lost_metrics: tuple[str, ...]
    """`peak memory 1.20 GiB → 1.80 GiB, +50.0 %`: all that the reason is not about."""
    next_steps: tuple[str, ...]
    """That of each cause, or the row that says it already: `as for mnist_cnn/ddp on 2 GPUs`."""
    wall_s: float
    """The time that its runs took, start-up and failed runs included."""

    def details(self, *, once: bool = False) -> Iterator[str]:
        """The lines below the reason, indented: the lost metrics and the numbered causes.

        With `once`, a next step that another row says already is referred to.
        """
        yield from (f"  {metric}" for metric in self.lost_metrics)
        causes = zip(self.entry.causes, self.next_steps, strict=True)
        for number, (cause, step) in enumerate(causes, start=1):
            yield f"  {number}. {whole_line(cause)}"
            yield from (f"     · {fact}" for fact in evidence(cause))
            if step:
                yield f"     next: {step if once else next_step(cause)}"


class Explanation(NamedTuple):
    """One sentence and the rows that it explains."""

    subject: str
    """`mnist_cnn/ddp on 1, 2 and 4 GPUs`, or `all rows`."""
    reason: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that any format shows of a comparison."""

    comparison: Comparison
    results: Sequence[Results]
    rows: tuple[Row, ...]
    """In the order of the baseline."""
    ranked: tuple[Row, ...]
    """First the rows that got worse, then those not shown to be fine, then the passes."""
    baseline: str
    """Its name and its machine."""
    injections: tuple[str, ...]
    """The faults that were made on purpose in the results."""
    warning: str
    """The line above all else where faults were made on purpose; else empty."""
    notes: tuple[str, ...]
    all_notes: tuple[str, ...]
    """The notes, with that on faults made on purpose before them."""
    summary: str
    """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
    outcome: str
    """The verdict in a few words."""
    exit_code: int
    """Of the process."""
    screen: Screen


def view_of(comparison: Comparison, results: Sequence[Results]) -> View:
    """The comparison of one or more results for reading, in a file or a log."""
    wall_s: defaultdict[tuple[EntryKey, Configuration | None], float] = defaultdict(float)
    for run in (run for result in results for run in result.runs):
        wall_s[run.key, run.configuration] += run.wall_s or 0.0
    entries = comparison.entries
    names = _names(entries)
    steps = _next_steps(entries, names)
    rows = [
        _row(entry, name, its, wall_s[entry.key, entry.configuration])
        for entry, name, its in zip(entries, names, steps, strict=True)
    ]
    injections = tuple(dict.fromkeys(each for result in results for each in result.injections))
    injected = (
        f"faults were made on purpose ({', '.join(injections)}): the verdicts say whether they are "
        "found, and nothing about the machine"
    )
    notes = tuple(dict.fromkeys(map(statement_text, comparison.notes)))
    counts = Counter(entry.verdict for entry in entries)
    counted_verdicts = [f"{counts[v]} {v.value}" for v in sorted(Verdict, key=weight) if counts[v]]
    return View(
        comparison=comparison,
        results=results,
        rows=tuple(rows),
        ranked=tuple(sorted(rows, key=lambda row: weight(row.entry.verdict))),
        baseline=f"{comparison.baseline_name}: {comparison.baseline_machine}",
        injections=injections,
        warning=phrases.injection_warning(injections) if injections else "",
        notes=notes,
        all_notes=(injected, *notes) if injections else notes,
        summary=", ".join(counted_verdicts) or "nothing to compare",
        outcome=_OUTCOMES[comparison.exit_code],
        exit_code=int(comparison.exit_code),
        screen=Screen(),
    )


def _row(entry: EntryVerdict, name: str, next_steps: tuple[str, ...], wall_s: float) -> Row:
    gpus = phrases.gpus_text(entry.key.gpus)
    # None where time or speedup decided.
    decided = next((m for m in entry.metrics if m.metric == entry.finding), None)
    change = entry.change if decided is None else decided.change
    efficiency = UNKNOWN
    interval = "" if change is None else phrases.bounds_text(change, phrases.percent_text)
    pair = entry.baseline.efficiency, entry.current.efficiency
    if entry.key.gpus > 1 and pair != (None, None):
        efficiency = " → ".join(UNKNOWN if each is None else f"{each.value:.2f}" for each in pair)
        if change is None and pair[1] is not None:
            interval = phrases.bounds_text(pair[1], "{:.2f}".format)
    judged = efficiency if efficiency == UNKNOWN else f"E {efficiency}"
    if decided is not None:
        judged = f"{decided.metric.short} {phrases.percent_text(decided.change.value)}"
    elif change is not None and entry.changed_quantity is not QuantityName.EFFICIENCY:
        judged = f"throughput {phrases.percent_text(change.value)}"
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
        judged=judged,
        interval=interval,
        efficiency=efficiency,
        lost_metrics=tuple(map(_metric_text, lost)),
        next_steps=next_steps,
        wall_s=wall_s,
    )


def _short_reason(entry: EntryVerdict) -> str:
    loss = entry.minimum_detectable_loss
    if entry.causes and entry.causes[0].kind is not CauseKind.NOT_ESTABLISHED:
        return headline(entry.causes[0])
    if entry.finding is not None:
        return finding_text(entry.finding)
    if entry.verdict is Verdict.INCONCLUSIVE and entry.further_runs is not None:
        return f"about {phrases.counted(entry.further_runs, 'more run')}"
    return "" if loss is None or entry.verdict.is_loss else f"finds {format_percent(loss)}"


def _metric_text(metric: MetricVerdict) -> str:
    spec, ends = metric.metric, (metric.baseline, metric.current)
    values = " → ".join(phrases.amount_text(end.value, spec.unit) for end in ends)
    of_step = " of the step" if spec.in_points else ""
    return f"{spec.words} {values}, {phrases.change_text(metric.change)}{of_step}"


def weight(verdict: Verdict) -> int:
    """0 for what got worse, 1 for what was not shown to be fine, 2 for a pass."""
    return 0 if verdict.is_loss else 2 if verdict.is_pass else 1


def explanations(rows: Sequence[Row]) -> list[Explanation]:
    """The reasons of the verdicts, each sentence once; rows that are simply ok need none."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for number, row in enumerate(rows):
        entry = row.entry
        # A row that is simply ok needs no words; one whose speedup is unknown says why it is.
        known = entry.finding is None and entry.changed_quantity is not QuantityName.THROUGHPUT
        if not row.reason or (entry.verdict is Verdict.OK and known):
            continue
        # What has causes or lost metrics of its own is explained by itself.
        alone = number if entry.causes or row.lost_metrics else None
        alike.setdefault((row.reason, entry.finding, alone), []).append(row)
    return [
        Explanation(
            subject="all rows" if len(group) == len(rows) > 1 else _subject(group),
            reason=group[0].reason,
            rows=tuple(group),
        )
        for group in alike.values()
    ]


def finding_text(finding: Finding | MetricSpec) -> str:
    """`scaling loss`, `more memory`."""
    return finding.value if isinstance(finding, Finding) else finding.worse


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
        name = f"{entry.key.case}/{entry.key.strategy}"
        if entry.configuration is not None:
            name = apart.get(entry.configuration, name)
        seen[name, entry.key.gpus] += 1
        count = seen[name, entry.key.gpus]
        names.append(name if count == 1 else f"{name} ({count})")
    return names


def _next_steps(entries: Sequence[EntryVerdict], names: Sequence[str]) -> list[tuple[str, ...]]:
    """The next steps of each entry's causes; after the first row that says one, that row."""
    said_by: dict[str, str] = {"": ""}
    found: list[tuple[str, ...]] = [()] * len(entries)
    for i in sorted(range(len(entries)), key=lambda i: weight(entries[i].verdict)):
        label = f"{names[i]} on {phrases.gpus_text(entries[i].key.gpus)}"
        for step in map(next_step, entries[i].causes):
            if step not in said_by:
                said_by[step], text = label, step
            else:
                text = "as above" if said_by[step] == label else f"as for {said_by[step]}"
            found[i] += (text if step else "",)
    return found


def _subject(rows: Iterable[Row]) -> str:
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row.name, []).append(row.entry.key.gpus)
    subjects = [f"{name} on {phrases.gpus_text(*gpus)}" for name, gpus in counts.items()]
    left_out = sum(len(gpus) for gpus in list(counts.values())[_NAMED_SUBJECTS:])
    more = f" and {phrases.counted(left_out, 'more row')}" if left_out else ""
    return ", ".join(subjects[:_NAMED_SUBJECTS]) + more
