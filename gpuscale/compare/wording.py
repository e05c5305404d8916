"""The one sentence of each judged row."""

from gpuscale.compare.decision import Decision, Quantities
from gpuscale.compare.levels import Spread
from gpuscale.compare.metrics import MetricPairing
from gpuscale.compare.quantity import Quantity
from gpuscale.records import EntryKey, Estimate, Finding, Verdict
from gpuscale.statistics.estimates import exponential
from gpuscale.units import format_bytes, format_percent, format_seconds, significant

_SMALLEST_SHOWN = 0.0005
"""Changes below this fraction are printed as 0.0 %."""


def gpus_label(count: int) -> str:
    """`1 GPU` or `4 GPUs`."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def amount_text(value: float, unit: str) -> str:
    """A metric's value with its unit (`s`, `bytes` or `J`): `14.2 ms`, `4.12 GiB`, `0.310 J`."""
    sign, size = ("−" if value < 0 else ""), abs(value)
    if unit == "s":
        return f"{sign}{format_seconds(size)}"
    if unit == "bytes":
        return f"{sign}{format_bytes(size)}"
    return f"{sign}{significant(size)} {unit}"


def measured_reason(
    key: EntryKey,
    quantities: Quantities,
    decision: Decision,
    remedy: str,
    without_speedup: str,
) -> str:
    """Why a row got its verdict against measured runs.

    Args:
        key: The row.
        quantities: What was judged.
        decision: The verdict.
        remedy: What would settle the row, where it is inconclusive.
        without_speedup: Why S(n) could not be judged; empty where it could.
    """
    if decision.verdict is Verdict.INCONCLUSIVE:
        sentence = _inconclusive(quantities, decision.quantity, remedy)
    elif decision.verdict is Verdict.OK and decision.finding is None:
        sentence = _ok(quantities)
    else:
        sentence = _moved(key, quantities, decision)
    if without_speedup:
        return f"{sentence}; the speedup is unknown: {without_speedup}"
    return sentence


def metric_reason(metric: MetricPairing, quantity: Quantity) -> str:
    """Why a metric got its verdict, as a part of a sentence."""
    name = metric.kind.words
    if quantity.is_worse or quantity.is_better:
        word = "rose" if quantity.loss > 0 else "fell"
        size = _size(metric, abs(quantity.loss))
        then, now = (
            amount_text(metric.estimate(end).value, metric.kind.unit)
            for end in (metric.baseline, metric.current)
        )
        return f"{name} {word} by {size}, from {then} to {now}"
    bound = quantity.loss_bound
    if bound is None:
        return "a single run does not tell how much runs differ"
    if quantity.is_ok:
        return (
            "no rise, with 95 % confidence"
            if bound <= 0
            else f"any rise is below {_size(metric, bound)}, with 95 % confidence"
        )
    change = metric.change(quantity)
    low, high = ("" if end is None else _signed(end) for end in (change.low, change.high))
    of_step = " of the step time" if metric.kind.in_points else ""
    return (
        f"{name} changed by {_signed(change.value)}{of_step} (95 %: {low} to {high}), "
        "too uncertain to call"
    )


def _size(metric: MetricPairing, change: float) -> str:
    if metric.kind.in_points:
        return f"{format_percent(change)} of the step time"
    return format_percent(change)


def _ok(quantities: Quantities) -> str:
    bound = max(quantity.loss_bound or 0.0 for quantity in quantities.judged)
    if bound <= 0:
        return "no loss, with 95 % confidence"
    return f"any loss is below {format_percent(bound)}, with 95 % confidence"


def _inconclusive(quantities: Quantities, quantity: Quantity, remedy: str) -> str:
    interval = quantity.gain.relative_change()
    if interval.low is None or interval.high is None:
        return "a single run does not tell how much runs differ; measure 3 or more"
    span = (
        f"{quantity.name} changed by {_signed(interval.value)} "
        f"(95 %: {_signed(interval.low)} to {_signed(interval.high)})"
    )
    if quantity.is_worse and quantity is quantities.speedup:
        return (
            f"{span}, and the runs do not tell whether 1 GPU got faster or more GPUs slower; "
            f"{remedy}"
        )
    return f"{span}, {_missed(quantity, interval)}; {remedy}"


def _missed(quantity: Quantity, interval: Estimate) -> str:
    """Which limit the quantity misses, on the way to a loss or to a pass."""
    not_excluded = f"a loss of {format_percent(quantity.ok_bound)} is not excluded"
    if interval.high is None or interval.high >= 0:
        return f"too uncertain to call: {not_excluded}"
    margin = quantity.limits.margin
    if quantity.loss <= margin or quantity.p_worse is None:
        return f"within the margin of {format_percent(margin)}, but {not_excluded}"
    return (
        f"a loss, but not beyond chance at {format_percent(quantity.rates.significance)} "
        f"(one-sided p {quantity.p_worse:.2g}, corrected for all tests)"
    )


def _signed(change: float) -> str:
    # Two wild runs can put a bound at any power of ten, which is no number to read.
    return "over +1000 %" if change > 10 else format_percent(change, signed=True)


def hopeless_text(spread: Spread) -> str:
    """Why further runs cannot settle a row, and what may."""
    deviation = format_percent(exponential(spread.deviation) - 1)
    if spread.source == "current runs":
        return (
            f"further runs cannot settle it, since these differ by {deviation} from one to the "
            "next: find what disturbs them"
        )
    if spread.source == "baseline runs":
        return (
            f"further runs cannot settle it, since the baseline's differ by {deviation} from one "
            "to the next: record more of them"
        )
    return (
        f"further runs of tonight cannot settle it, since nights differ by {deviation}: runs of "
        "more nights in the baseline may"
    )


def _moved(key: EntryKey, quantities: Quantities, decision: Decision) -> str:
    throughput = f"the throughput on {gpus_label(key.gpus)} {_change(quantities.time)}"
    if quantities.speedup is None or quantities.reference is None:
        return throughput
    efficiency = f"E({key.gpus}) {_change(quantities.speedup)}"
    one = _change(quantities.reference)
    if decision.finding is Finding.SCALING_LOSS:
        return f"{efficiency}: {throughput}, that on 1 GPU {one}"
    if decision.finding is Finding.SINGLE_GPU_SLOWDOWN:
        return f"{throughput}, as that on 1 GPU {one}: each GPU is slower, not the scaling"
    if decision.finding is Finding.REFERENCE_FASTER:
        return f"{efficiency} only because the throughput on 1 GPU {one}; {throughput}"
    return f"{throughput}; {efficiency}"


def _change(quantity: Quantity) -> str:
    if abs(quantity.loss) < _SMALLEST_SHOWN:
        return "stayed the same"
    word = "fell" if quantity.loss > 0 else "rose"
    return f"{word} by {format_percent(abs(quantity.loss))}"
