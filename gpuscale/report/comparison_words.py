"""The words that every rendering of a comparison uses: names, numbers, and the order of weight."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.wording import amount_text
from gpuscale.errors import ExitCode
from gpuscale.records import (
    Cause,
    CauseKind,
    Comparison,
    Configuration,
    EntryVerdict,
    Estimate,
    Finding,
    Metric,
    MetricVerdict,
    Verdict,
)
from gpuscale.report.causes_text import entry_causes_lines
from gpuscale.report.configurations import set_apart
from gpuscale.units import format_percent

UNKNOWN = "–"
FINDS = "smallest loss found 19 times in 20"
"""What `finds 2.3 %` means."""
_NAMED_SUBJECTS = 3
_NAMED_METRICS = {
    Finding.MORE_EXPOSED_COMMUNICATION: Metric.EXPOSED_COMMUNICATION,
    Finding.MORE_MEMORY: Metric.PEAK_MEMORY,
    Finding.MORE_ENERGY: Metric.ENERGY_PER_SAMPLE,
}
_SHORT_NAMES = {
    Metric.EXPOSED_COMMUNICATION: "communication",
    Metric.PEAK_MEMORY: "memory",
    Metric.ENERGY_PER_SAMPLE: "energy",
}
_OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRow:
    """A row under a name that no other row of its number of GPUs has."""

    name: str
    """`mnist_cnn/ddp`, with options where that alone is ambiguous."""
    entry: EntryVerdict

    @property
    def gpus(self) -> str:
        """`1 GPU` or `4 GPUs`."""
        return gpus_text(str(self.entry.key.gpus))

    @property
    def label(self) -> str:
        """`mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.name} on {self.gpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One sentence and the rows that it explains."""

    subject: str
    """`mnist_cnn/ddp on 1, 2 and 4 GPUs`, or `all rows`."""
    reason: str
    rows: tuple[NamedRow, ...]


def outcome(comparison: Comparison) -> str:
    """What the exit code means, in a few words."""
    return _OUTCOMES[comparison.exit_code]


def summary_line(comparison: Comparison) -> str:
    """All verdicts counted, the worst first: `1 regressed, 3 ok`."""
    counts = [(verdict, comparison.count(verdict)) for verdict in sorted(Verdict, key=weight)]
    words = [f"{count} {verdict.value}" for verdict, count in counts if count]
    return ", ".join(words) if words else "nothing to compare"


def weight(verdict: Verdict) -> int:
    """0 for what got worse, 1 for what was not shown to be fine, 2 for a pass."""
    return 0 if verdict.is_loss else 2 if verdict.is_pass else 1


def named_rows(comparison: Comparison) -> list[NamedRow]:
    """All rows by weight, in the order of the comparison where that is the same."""
    names = _variant_names(comparison.entries)
    rows = []
    seen: dict[tuple[str, int], int] = {}
    for entry in comparison.entries:
        name = f"{entry.key.case}/{entry.key.strategy}"
        if entry.configuration is not None:
            name = names.get(entry.configuration, name)
        count = seen[name, entry.key.gpus] = seen.get((name, entry.key.gpus), 0) + 1
        rows.append(NamedRow(name=name if count == 1 else f"{name} ({count})", entry=entry))
    return sorted(rows, key=lambda row: weight(row.entry.verdict))


def verdict_word(verdict: Verdict) -> str:
    """The verdict, in capitals unless it is a pass."""
    return verdict.value if verdict.is_pass else verdict.value.upper()


def efficiency_text(entry: EntryVerdict) -> str:
    """`0.91 → 0.84`; on one GPU, where E is 1 by definition, unknown."""
    before, now = entry.baseline.efficiency, entry.current.efficiency
    if entry.key.gpus == 1 or (before is None and now is None):
        return UNKNOWN
    return f"{_two_decimals(before)} → {_two_decimals(now)}"


def judged_text(entry: EntryVerdict) -> str:
    """What the verdict rests on: `E 0.91 → 0.84`, `throughput −6.4 %` or `memory +50.0 %`."""
    metric = deciding_metric(entry)
    if metric is not None and metric.change is not None:
        return f"{_SHORT_NAMES[metric.metric]} {percent_text(metric.change.value)}"
    if entry.change is not None and entry.changed_quantity != "E(n)":
        return f"throughput {percent_text(entry.change.value)}"
    text = efficiency_text(entry)
    return text if text == UNKNOWN else f"E {text}"


def interval_text(entry: EntryVerdict) -> str:
    """The 95% interval of the change, or where nothing was judged that of E now."""
    change, now = judged_change(entry), entry.current.efficiency
    if change is not None:
        return percent_interval(change)
    if entry.key.gpus > 1 and now is not None and now.low is not None and now.high is not None:
        return f"[{now.low:.2f}, {now.high:.2f}]"
    return ""


def judged_change(entry: EntryVerdict) -> Estimate | None:
    """The change that the verdict rests on."""
    metric = deciding_metric(entry)
    return entry.change if metric is None else metric.change


def deciding_metric(entry: EntryVerdict) -> MetricVerdict | None:
    """The metric that the finding names; None where time or speedup decided."""
    if entry.finding is None or entry.finding not in _NAMED_METRICS:
        return None
    name = _NAMED_METRICS[entry.finding]
    return next((metric for metric in entry.metrics if metric.metric is name), None)


def change_text(change: Estimate | None) -> str:
    """`−9.1 % [−10.2 %, −8.0 %]`."""
    if change is None:
        return UNKNOWN
    return f"{percent_text(change.value)} {percent_interval(change)}".rstrip()


def percent_interval(change: Estimate) -> str:
    """`[−9.1 %, −6.2 %]`; empty where there is none."""
    if change.low is None or change.high is None:
        return ""
    return f"[{percent_text(change.low)}, {percent_text(change.high)}]"


def percent_text(fraction: float) -> str:
    """A change with its sign; what two wild runs put beyond reading is cut."""
    return "> +1000 %" if fraction > 10 else format_percent(fraction, signed=True)


def short_reason(entry: EntryVerdict) -> str:
    """What is behind the verdict, in the few words that a table's row bears."""
    for cause in entry.causes[:1]:
        if cause.kind is not CauseKind.NOT_ESTABLISHED:
            return cause.headline
    if entry.finding is not None:
        return entry.finding.value
    if entry.verdict is Verdict.INCONCLUSIVE and entry.further_runs is not None:
        return f"about {entry.further_runs} more run{'' if entry.further_runs == 1 else 's'}"
    return "" if entry.verdict.is_loss else finds_text(entry)


def finds_text(entry: EntryVerdict) -> str:
    """`finds 2.3 %`; empty where it is unknown."""
    loss = entry.minimum_detectable_loss
    return "" if loss is None else f"finds {format_percent(loss)}"


def explanations(rows: Sequence[NamedRow]) -> list[Explanation]:
    """Why the rows got their verdicts, each sentence once; rows that are simply ok need none."""
    alike: dict[tuple[object, ...], list[NamedRow]] = {}
    for number, row in enumerate(rows):
        entry = row.entry
        if not entry.reason or _is_simply_ok(entry):
            continue
        # What has causes or lost metrics of its own is explained by itself.
        alone = number if entry.causes or lost_metrics(entry) else None
        alike.setdefault((entry.reason, entry.finding, alone), []).append(row)
    return [
        Explanation(
            subject="all rows" if len(group) == len(rows) > 1 else _subject(group),
            reason=group[0].entry.reason,
            rows=tuple(group),
        )
        for group in alike.values()
    ]


def _is_simply_ok(entry: EntryVerdict) -> bool:
    """Whether the row needs no words; one whose speedup is unknown says why it is."""
    ok = entry.verdict is Verdict.OK and entry.finding is None
    return ok and entry.changed_quantity != "throughput(n)"


def details(entry: EntryVerdict) -> list[str]:
    """Why the row got its verdict: the reason, and indented the lost metrics and the causes."""
    return [
        entry.reason,
        *(f"  {metric_text(metric)}" for metric in lost_metrics(entry)),
        *entry_causes_lines(entry),
    ]


def advice_once(rows: Sequence[NamedRow]) -> list[NamedRow]:
    """The rows, each next step in full at its first cause; later ones name the row that has it."""
    first: dict[str, str] = {}

    def shortened(cause: Cause, label: str) -> Cause:
        if not cause.next_step:
            return cause
        if cause.next_step not in first:
            first[cause.next_step] = label
            return cause
        named = first[cause.next_step]
        return replace(cause, next_step="as above" if named == label else f"as for {named}")

    return [
        replace(
            row,
            entry=replace(
                row.entry, causes=tuple(shortened(cause, row.label) for cause in row.entry.causes)
            ),
        )
        for row in rows
    ]


def lost_metrics(entry: EntryVerdict) -> list[MetricVerdict]:
    """The metrics that got worse, but for the one that the row's own reason is about."""
    known = deciding_metric(entry)
    return [metric for metric in entry.metrics if metric.verdict.is_loss and metric is not known]


def metric_text(metric: MetricVerdict) -> str:
    """`peak memory 1.20 GiB → 1.80 GiB, +50.0 % [+48.0 %, +52.0 %]`."""
    before, now = (
        amount_text(side.value, metric.unit) for side in (metric.baseline, metric.current)
    )
    change = "" if metric.change is None else f", {change_text(metric.change)}"
    if change and metric.metric is Metric.EXPOSED_COMMUNICATION:
        change += " of the step"
    return f"{metric.metric.value} {before} → {now}{change}"


def gpus_text(numbers: str) -> str:
    """`1 GPU`, `4 GPUs` or `1 and 2 GPUs`."""
    return f"{numbers} GPU{'' if numbers == '1' else 's'}"


def _variant_names(entries: Sequence[EntryVerdict]) -> dict[Configuration, str]:
    """Names with options for the cases that have several rows of one number of GPUs."""
    counts = Counter(entry.key for entry in entries)
    several = {(key.case, key.strategy) for key, count in counts.items() if count > 1}
    return set_apart(
        [
            entry.configuration
            for entry in entries
            if entry.configuration is not None and (entry.key.case, entry.key.strategy) in several
        ]
    )


def _subject(rows: Iterable[NamedRow]) -> str:
    counts: dict[str, list[str]] = {}
    for row in rows:
        counts.setdefault(row.name, []).append(str(row.entry.key.gpus))
    subjects = [f"{name} on {gpus_text(_listed(gpus))}" for name, gpus in counts.items()]
    left_out = sum(len(gpus) for gpus in list(counts.values())[_NAMED_SUBJECTS:])
    more = f" and {left_out} more row{'' if left_out == 1 else 's'}" if left_out else ""
    return ", ".join(subjects[:_NAMED_SUBJECTS]) + more


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _two_decimals(estimate: Estimate | None) -> str:
    return UNKNOWN if estimate is None else f"{estimate.value:.2f}"
