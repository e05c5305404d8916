"""The words and numbers that reports share: names, changes, intervals, reasons and notes."""

from collections.abc import Iterable, Sequence

from gpuscale.errors import ExitCode
from gpuscale.records import (
    Configuration,
    EntryVerdict,
    Estimate,
    Finding,
    MetricSpec,
    MetricVerdict,
    QuantityName,
    Results,
    Verdict,
)
from gpuscale.report.cause_words import short_cause
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

UNKNOWN = "–"
DETECTABLE = "smallest loss found 19 times in 20"
"""The meaning of `finds 2.3 %`."""
OUTCOMES = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
}
"""Exit codes in a few words."""
_WIDEST_SYMMETRIC = 0.2


def set_apart(configurations: Sequence[Configuration]) -> dict[Configuration, str]:
    """A name for each configuration: its label, and options where labels alone are ambiguous."""
    distinct = dict.fromkeys(configurations)
    labels = [configuration.label for configuration in distinct]
    return {
        configuration: configuration.label
        if labels.count(configuration.label) == 1
        else f"{configuration.label} ({configuration_text(configuration)})"
        for configuration in distinct
    }


def configuration_text(configuration: Configuration) -> str:
    """The rest of what identifies a result: `CPU ranks, smoke, fp32, synthetic data`."""
    words: list[str] = ["CPU ranks"] if configuration.device == "cpu" else []
    words += filter(None, (configuration.size, configuration.precision))
    if configuration.channels_last:
        words.append("channels-last")
    if configuration.compiled:
        words.append("compiled")
    if configuration.data is not None:
        words.append(f"{configuration.data} data")
    return ", ".join(words)


def configurations_text(configurations: Iterable[Configuration]) -> str:
    """The texts of several configurations, each once, apart by semicolons."""
    return "; ".join(dict.fromkeys(map(configuration_text, configurations)))


def gpus_text(*counts: int) -> str:
    """`1 GPU`, `4 GPUs` or `1, 2 and 4 GPUs`."""
    *others, last = map(str, counts)
    numbers = f"{', '.join(others)} and {last}" if others else last
    return f"{numbers} GPU{'' if numbers == '1' else 's'}"


def counted(count: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def injections_of(results: Iterable[Results]) -> tuple[str, ...]:
    """The faults that were made on purpose in any of the results, each once."""
    return tuple(dict.fromkeys(text for result in results for text in result.injections))


def injection_warning(injections: Sequence[str]) -> str:
    """The line above all that is shown of such results: `INJECTED data=5ms: not a real result`."""
    return f"INJECTED {', '.join(injections)}: not a real result"


def injection_note(injections: Sequence[str]) -> str:
    """The note below a comparison of such results."""
    return (
        f"faults were made on purpose ({', '.join(injections)}): the verdicts say whether they "
        "are found, and nothing about the machine"
    )


def interval_text(estimate: Estimate | None, digits: int = 2) -> str:
    """`1.86 [1.80, 1.93]`; without brackets where there is no interval."""
    if estimate is None:
        return UNKNOWN
    text = f"{estimate.value:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def spread_text(estimate: Estimate) -> str:
    """Half the interval relative to the value: ` ±2.1 %`; empty without an interval.

    A wide interval is not symmetric; it is shown as factors of the value instead.
    """
    if estimate.low is None or estimate.high is None:
        return ""
    half = (estimate.high - estimate.low) / 2 / estimate.value
    if half > _WIDEST_SYMMETRIC:
        below, above = estimate.low / estimate.value, estimate.high / estimate.value
        return f" ×[{significant(below, 2)}, {significant(above, 2)}]"
    return f" ±{format_percent(half)}"


def amount_text(value: float, unit: str) -> str:
    """A value with its unit (`s`, `bytes` or `J`): `14.2 ms`, `4.12 GiB`, `0.310 J`."""
    sign, size = ("−" if value < 0 else ""), abs(value)
    if unit == "s":
        return f"{sign}{format_seconds(size)}"
    if unit == "bytes":
        return f"{sign}{format_bytes(size)}"
    return f"{sign}{significant(size)} {unit}"


def quantity_text(quantity: QuantityName, gpus: int) -> str:
    """`throughput on 1 GPU`, `throughput on 4 GPUs` or `E(4)`."""
    if quantity is QuantityName.EFFICIENCY:
        return f"E({gpus})"
    return f"throughput on {gpus_text(gpus)}"


def time_text(time_s: Estimate | None) -> str:
    """`4.12 ms ±0.3 %`; the spread is the 95% interval over runs."""
    return UNKNOWN if time_s is None else format_seconds(time_s.value) + spread_text(time_s)


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


def verdict_word(verdict: Verdict) -> str:
    """The verdict, in capitals unless it is a pass."""
    return verdict.value if verdict.is_pass else verdict.value.upper()


def efficiency_text(entry: EntryVerdict) -> str:
    """`0.91 → 0.84`; on one GPU, where E is 1 by definition, unknown."""
    sides = entry.baseline.efficiency, entry.current.efficiency
    if entry.key.gpus == 1 or sides == (None, None):
        return UNKNOWN
    return " → ".join(UNKNOWN if side is None else f"{side.value:.2f}" for side in sides)


def judged_text(entry: EntryVerdict) -> str:
    """The ground of the verdict: `E 0.91 → 0.84`, `throughput −6.4 %` or `memory +50.0 %`."""
    metric = deciding_metric(entry)
    if metric is not None and metric.change is not None:
        return f"{metric.metric.short} {percent_text(metric.change.value)}"
    if entry.change is not None and entry.changed_quantity is not QuantityName.EFFICIENCY:
        return f"throughput {percent_text(entry.change.value)}"
    text = efficiency_text(entry)
    return text if text == UNKNOWN else f"E {text}"


def judged_interval(entry: EntryVerdict) -> str:
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
    return next((metric for metric in entry.metrics if metric.metric == entry.finding), None)


def metric_text(metric: MetricVerdict) -> str:
    """`peak memory 1.20 GiB → 1.80 GiB, +50.0 % [+48.0 %, +52.0 %]`."""
    unit, sides = metric.metric.unit, (metric.baseline, metric.current)
    amounts = " → ".join(amount_text(side.value, unit) for side in sides)
    of_step = " of the step" if metric.metric.in_points else ""
    return f"{metric.metric.words} {amounts}, {change_text(metric.change)}{of_step}"


def finding_text(finding: Finding | MetricSpec) -> str:
    """`scaling loss`, `more memory`."""
    return finding.value if isinstance(finding, Finding) else finding.more


def short_reason(entry: EntryVerdict) -> str:
    """The cause or finding behind the verdict, in the few words that a table's row bears."""
    if cause := short_cause(entry.causes):
        return cause
    if entry.finding is not None:
        return finding_text(entry.finding)
    if entry.verdict is Verdict.INCONCLUSIVE and entry.further_runs is not None:
        return f"about {counted(entry.further_runs, 'more run')}"
    return "" if entry.verdict.is_loss else detectable_text(entry)


def detectable_text(entry: EntryVerdict) -> str:
    """`finds 2.3 %`; empty where it is unknown."""
    loss = entry.minimum_detectable_loss
    return "" if loss is None else f"finds {format_percent(loss)}"
