"""Where the lost efficiency went, in a line for each row that lost some."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from gpuscale.budget import (
    DeviceSpread,
    EfficiencyBudget,
    RankSkew,
    device_spreads,
    efficiency_budgets,
    rank_skews,
)
from gpuscale.records import EntryKey, Run
from gpuscale.report.configurations import set_apart
from gpuscale.units import format_percent, format_seconds

NAMED_SKEW = 0.02
"""Share of the time from which a skew, and a rank that lags in a run, is named."""

_PARTS = ("communication", "data", "skew")


def budget_lines(runs: Sequence[Run]) -> Iterator[str]:
    """The efficiency budget, the ranks that lag, and devices that differ, after an empty line.

    Such as `mnist_cnn/ddp 4 GPUs  E 0.84 = 1 − communication 0.09 − data 0.01 − …`; nothing at
    all where none of it was measured.
    """
    names = set_apart([run.configuration for run in runs])
    lines: list[tuple[str, str]] = []
    budgets = efficiency_budgets(runs)
    for budget in budgets:
        if _measured(budget):
            label = _label(names[budget.configuration], budget.key)
            lines.append((label, budget_text(budget)))
            if budget.skew is not None and budget.skew >= NAMED_SKEW:
                lines += [(label, line) for line in _laggards(budget, runs)]
    for spread in device_spreads(runs):
        lines.append((_label(names[spread.configuration], spread.key), _spread_text(spread)))
    width = max((len(label) for label, _ in lines), default=0)
    if lines:
        yield ""
    for label, text in lines:
        yield f"{label:<{width}}  {text}"
    if any(budget.communication is not None for budget in budgets):
        yield (
            "E: efficiency, the speedup over the number of GPUs; communication: exposed, less what "
            "DDP does with the gradients of a single rank (show --phases has both together)"
        )


def budget_text(budget: EfficiencyBudget) -> str:
    """`E 0.84 = 1 − communication 0.09 − …`: two decimals that add up as they are printed."""
    measured = _measured(budget)
    parts = {**measured, "rest": budget.rest}
    loss = 100 - round(budget.efficiency * 100)
    points = dict(zip(parts, _whole_points(parts.values(), loss), strict=True))
    terms = "".join(
        f" {'+' if value < 0 else '−'} {name} {abs(value) / 100:.2f}"
        for name, value in points.items()
    )
    absent = [name for name in _PARTS if name not in measured]
    note = f" (not measured, so in the rest: {', '.join(absent)})" if absent else ""
    return f"E {(100 - loss) / 100:.2f} = 1{terms}{note}"


def skew_text(skew: RankSkew) -> str:
    """Who was slowest: `rank 2 (node1, GPU-ab12…)`."""
    where = [skew.host, *skew.device_uuids]
    return f"rank {skew.rank} ({', '.join(where)})"


def _measured(budget: EfficiencyBudget) -> dict[str, float]:
    parts = dict(zip(_PARTS, (budget.communication, budget.data, budget.skew), strict=True))
    return {name: part for name, part in parts.items() if part is not None}


def _whole_points(parts: Iterable[float], total: int) -> list[int]:
    """The parts in whole points whose sum is the total; each stays within a point of its part."""
    exact = [part * 100 for part in parts]
    points = [math.floor(part) for part in exact]
    largest_fraction_first = sorted(range(len(exact)), key=lambda i: points[i] - exact[i])
    for i in largest_fraction_first[: total - sum(points)]:
        points[i] += 1
    return points


def _laggards(budget: EfficiencyBudget, runs: Iterable[Run]) -> Iterator[str]:
    found: dict[str, list[RankSkew]] = {}
    for skew in rank_skews(
        run for run in runs if (run.configuration, run.key) == (budget.configuration, budget.key)
    ):
        if skew.skew_s >= NAMED_SKEW * skew.median_pace_s:
            found.setdefault(skew_text(skew), []).append(skew)
    for who, skews in found.items():
        lag = statistics.median(skew.skew_s / skew.median_pace_s for skew in skews)
        numbers = ", ".join(str(skew.run) for skew in skews)
        yield (
            f"skew: {who} {format_percent(lag)} slower than {_compared_with(skews[0])} "
            f"in run{'s' if len(skews) > 1 else ''} {numbers}"
        )


def _compared_with(skew: RankSkew) -> str:
    # Of two ranks the median one is the other.
    return f"rank {1 - skew.rank}" if skew.key.gpus == 2 else "the median rank"


def _spread_text(spread: DeviceSpread) -> str:
    return (
        f"T(1) over {spread.devices} devices: {format_seconds(spread.slowest_step_time_s)} on "
        f"{spread.slowest}, {format_percent(spread.spread)} more than on {spread.fastest}"
    )


def _label(name: str, key: EntryKey) -> str:
    return f"{name} {key.gpus} GPU{'' if key.gpus == 1 else 's'}"
