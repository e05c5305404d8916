"""A comparison in order and in words, made once: what every report format renders."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuscale.errors import ExitCode
from gpuscale.records import (
    Cause,
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
from gpuscale.report.cause_words import evidence, next_step, short_cause, whole_line
from gpuscale.report.phrases import (
    UNKNOWN,
    amount_text,
    change_text,
    counted,
    gpus_text,
    injection_warning,
    percent_interval,
    percent_text,
    set_apart,
    verdict_word,
)
from gpuscale.report.reason_words import reason_text, statement_text
from gpuscale.report.screen import Screen
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
class CauseView:
    """A cause in words."""

    line: str
    """`exposed all-reduce +14 ms (83 % of the loss): gradient synchronisation …`."""
    evidence: tuple[str, ...]
    next_step: str
    """The next step in full; empty where nothing is left to find out."""
    next_step_once: str
    """The same, or the row that says it already: `as for mnist_cnn/ddp on 2 GPUs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An entry under a name that no other row of its number of GPUs has, and its words."""

    entry: EntryVerdict
    name: str
    """`mnist_cnn/ddp`, with options where that alone is ambiguous."""
    reason: str
    """One sentence that a tired person understands."""
    causes: tuple[CauseView, ...]
    wall_s: float
    """The time that its runs took, start-up and failed runs included."""

    @property
    def gpus(self) -> str:
        """`1 GPU` or `4 GPUs`."""
        return gpus_text(self.entry.key.gpus)

    @property
    def label(self) -> str:
        """`mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.name} on {self.gpus}"

    @property
    def verdict(self) -> str:
        """The verdict, in capitals unless it is a pass."""
        return verdict_word(self.entry.verdict)

    @property
    def efficiency(self) -> str:
        """`0.91 → 0.84`; on one GPU, where E is 1 by definition, unknown."""
        pair = self.entry.baseline.efficiency, self.entry.current.efficiency
        if self.entry.key.gpus == 1 or pair == (None, None):
            return UNKNOWN
        return " → ".join(UNKNOWN if each is None else f"{each.value:.2f}" for each in pair)

    @property
    def change(self) -> Estimate | None:
        """The change that the verdict rests on."""
        metric = self._deciding_metric
        return self.entry.change if metric is None else metric.change

    @property
    def judged(self) -> str:
        """The ground of the verdict: `E 0.91 → 0.84`, `throughput −6.4 %` or `memory +50.0 %`."""
        metric, change = self._deciding_metric, self.entry.change
        if metric is not None:
            return f"{metric.metric.short} {percent_text(metric.change.value)}"
        if change is not None and self.entry.changed_quantity is not QuantityName.EFFICIENCY:
            return f"throughput {percent_text(change.value)}"
        return self.efficiency if self.efficiency == UNKNOWN else f"E {self.efficiency}"

    @property
    def interval(self) -> str:
        """The 95% interval of the change, or where nothing was judged that of E now."""
        now = self.entry.current.efficiency
        if self.change is not None:
            return percent_interval(self.change)
        if self.entry.key.gpus == 1 or now is None or now.low is None or now.high is None:
            return ""
        return f"[{now.low:.2f}, {now.high:.2f}]"

    @property
    def detectable(self) -> str:
        """`finds 2.3 %`; empty where it is unknown."""
        loss = self.entry.minimum_detectable_loss
        return "" if loss is None else f"finds {format_percent(loss)}"

    @property
    def short_reason(self) -> str:
        """The cause or finding behind the verdict, in the few words that a table's row bears."""
        entry = self.entry
        if cause := short_cause(entry.causes):
            return cause
        if entry.finding is not None:
            return finding_text(entry.finding)
        if entry.verdict is Verdict.INCONCLUSIVE and entry.further_runs is not None:
            return f"about {counted(entry.further_runs, 'more run')}"
        return "" if entry.verdict.is_loss else self.detectable

    @property
    def lost_metrics(self) -> tuple[str, ...]:
        """The metrics that got worse, but for the one that the reason is about."""
        lost = [metric for metric in self.entry.metrics if metric.verdict.is_loss]
        return tuple(_metric_text(each) for each in lost if each is not self._deciding_metric)

    def details(self, *, once: bool = False) -> Iterator[str]:
        """The lines below the reason, indented: the lost metrics and the numbered causes.

        With `once`, a next step that another row says already is referred to.
        """
        yield from (f"  {metric}" for metric in self.lost_metrics)
        for number, cause in enumerate(self.causes, start=1):
            yield f"  {number}. {cause.line}"
            yield from (f"     · {fact}" for fact in cause.evidence)
            if cause.next_step:
                yield f"     next: {cause.next_step_once if once else cause.next_step}"

    @property
    def _deciding_metric(self) -> MetricVerdict | None:
        """The metric that the finding names; None where time or speedup decided."""
        return next((m for m in self.entry.metrics if m.metric == self.entry.finding), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
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
    notes: tuple[str, ...]
    exit_code: int
    """Of the process."""
    screen: Screen

    @property
    def ranked(self) -> list[Row]:
        """The rows that got worse first, then those not shown to be fine, then the passes."""
        return sorted(self.rows, key=lambda row: weight(row.entry.verdict))

    @property
    def injections(self) -> tuple[str, ...]:
        """The faults that were made on purpose in the results."""
        return tuple(dict.fromkeys(each for result in self.results for each in result.injections))

    @property
    def warning(self) -> str:
        """The line above all else where faults were made on purpose; else empty."""
        return injection_warning(self.injections) if self.injections else ""

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, with that on faults made on purpose before them."""
        if not self.injections:
            return self.notes
        injected = (
            f"faults were made on purpose ({', '.join(self.injections)}): the verdicts say whether "
            "they are found, and nothing about the machine"
        )
        return (injected, *self.notes)

    @property
    def outcome(self) -> str:
        """The exit code in a few words."""
        return _OUTCOMES[self.comparison.exit_code]

    @property
    def baseline(self) -> str:
        """Its name and its machine."""
        return f"{self.comparison.baseline_name}: {self.comparison.baseline_machine}"

    @property
    def summary(self) -> str:
        """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
        counts = Counter(row.entry.verdict for row in self.rows)
        words = [f"{counts[v]} {v.value}" for v in sorted(Verdict, key=weight) if counts[v]]
        return ", ".join(words) if words else "nothing to compare"


def view_of(
    comparison: Comparison,
    results: Sequence[Results],
    *,
    exit_code: int | None = None,
    screen: Screen | None = None,
) -> View:
    """The comparison of one or more results for reading.

    The exit code is that of the process, if the verdict alone does not decide it; no screen is a
    file or a log.
    """
    wall_s: defaultdict[tuple[EntryKey, Configuration | None], float] = defaultdict(float)
    for run in (run for result in results for run in result.runs):
        wall_s[run.key, run.configuration] += run.wall_s or 0.0
    names = _names(comparison.entries)
    causes = _causes(comparison.entries, names)
    return View(
        comparison=comparison,
        results=results,
        rows=tuple(
            Row(
                entry=entry,
                name=name,
                reason=reason_text(entry),
                causes=found,
                wall_s=wall_s[entry.key, entry.configuration],
            )
            for entry, name, found in zip(comparison.entries, names, causes, strict=True)
        ),
        notes=tuple(dict.fromkeys(map(statement_text, comparison.notes))),
        exit_code=int(comparison.exit_code if exit_code is None else exit_code),
        screen=screen or Screen(),
    )


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
        alone = number if row.causes or row.lost_metrics else None
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


def _metric_text(metric: MetricVerdict) -> str:
    """`peak memory 1.20 GiB → 1.80 GiB, +50.0 % [+48.0 %, +52.0 %]`."""
    spec = metric.metric
    then, now = (amount_text(each.value, spec.unit) for each in (metric.baseline, metric.current))
    of_step = " of the step" if spec.in_points else ""
    return f"{spec.words} {then} → {now}, {change_text(metric.change)}{of_step}"


def _names(entries: Sequence[EntryVerdict]) -> list[str]:
    """Names with options for the cases that have several rows of one number of GPUs."""
    counts = Counter(entry.key for entry in entries)
    several = {(key.case, key.strategy) for key, count in counts.items() if count > 1}
    apart = set_apart(
        [
            entry.configuration
            for entry in entries
            if entry.configuration is not None and (entry.key.case, entry.key.strategy) in several
        ]
    )
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


def _causes(entries: Sequence[EntryVerdict], names: Sequence[str]) -> list[tuple[CauseView, ...]]:
    """The causes of each entry; a next step is referred to after the first row that says it."""
    said_by: dict[str, str] = {}

    def view(cause: Cause, label: str) -> CauseView:
        step = once = next_step(cause)
        if step in said_by:
            once = "as above" if said_by[step] == label else f"as for {said_by[step]}"
        said_by.setdefault(step, label)
        line, facts = whole_line(cause), evidence(cause)
        return CauseView(line=line, evidence=facts, next_step=step, next_step_once=once)

    found: list[tuple[CauseView, ...]] = [()] * len(entries)
    for i in sorted(range(len(entries)), key=lambda i: weight(entries[i].verdict)):
        label = f"{names[i]} on {gpus_text(entries[i].key.gpus)}"
        found[i] = tuple(view(cause, label) for cause in entries[i].causes)
    return found


def _subject(rows: Iterable[Row]) -> str:
    counts: dict[str, list[int]] = {}
    for row in rows:
        counts.setdefault(row.name, []).append(row.entry.key.gpus)
    subjects = [f"{name} on {gpus_text(*gpus)}" for name, gpus in counts.items()]
    left_out = sum(len(gpus) for gpus in list(counts.values())[_NAMED_SUBJECTS:])
    more = f" and {counted(left_out, 'more row')}" if left_out else ""
    return ", ".join(subjects[:_NAMED_SUBJECTS]) + more
