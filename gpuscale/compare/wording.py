"""The one sentence of each judged row."""

from gpuscale.compare.decision import Decision, Quantities, Quantity
from gpuscale.records import EntryKey, Finding, Verdict
from gpuscale.units import format_percent

_SMALLEST_SHOWN = 0.0005
"""Changes below this fraction are printed as 0.0 %."""


def gpus_label(count: int) -> str:
    """`1 GPU` or `4 GPUs`."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def measured_reason(
    key: EntryKey,
    quantities: Quantities,
    decision: Decision,
    further_runs: int | None,
    without_speedup: str,
) -> str:
    """Why a row got its verdict against measured runs."""
    if decision.verdict is Verdict.INCONCLUSIVE:
        sentence = _inconclusive(quantities, decision.quantity, further_runs)
    elif decision.verdict is Verdict.OK and decision.finding is None:
        sentence = _ok(quantities)
    else:
        sentence = _moved(key, quantities, decision)
    if without_speedup:
        return f"{sentence}; the speedup is unknown: {without_speedup}"
    return sentence


def _ok(quantities: Quantities) -> str:
    bound = max(quantity.loss_bound or 0.0 for quantity in quantities.judged)
    if bound <= 0:
        return "no loss, with 95 % confidence"
    return f"any loss is below {format_percent(bound)}, with 95 % confidence"


def _inconclusive(quantities: Quantities, quantity: Quantity, further_runs: int | None) -> str:
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
            f"{_remedy(further_runs)}"
        )
    return f"{span}, too uncertain to call; {_remedy(further_runs)}"


def _signed(change: float) -> str:
    # Two wild runs can put a bound at any power of ten, which is no number to read.
    return "over +1000 %" if change > 10 else format_percent(change, signed=True)


def _remedy(further_runs: int | None) -> str:
    if further_runs is None:
        return "further runs cannot settle it, runs of more nights in the baseline may"
    runs = "1 further run" if further_runs == 1 else f"{further_runs} further runs"
    return f"{runs} would settle it"


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
