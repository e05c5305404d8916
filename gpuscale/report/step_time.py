"""Where the time of a step goes: the efficiency budget, what is slow, and the phases."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscale.budget import (
    EfficiencyBudget,
    RankSkew,
    device_spreads,
    efficiency_budgets,
    rank_skews,
)
from gpuscale.records import EntryKey, Phases, Run
from gpuscale.report.phrases import UNKNOWN, configurations_text, gpus_text, set_apart
from gpuscale.report.screen import fitted, table
from gpuscale.scaling import PointKey, geometric_mean
from gpuscale.statistics.estimates import log_sample
from gpuscale.strategies import STRATEGIES
from gpuscale.units import format_percent, format_seconds

NAMED_SKEW = 0.02
"""Share of the time from which a skew, and a rank that lags in a run, is named."""
SUM_TOLERANCE = 0.03
"""By how much a window's phases may miss its time."""


def budget_lines(runs: Sequence[Run]) -> Iterator[str]:
    """The efficiency budget, the stragglers, and devices that differ, after an empty line.

    Such as `mnist_cnn/ddp 4 GPUs  E 0.84 = 1 − communication 0.09 − data 0.01 − …`; nothing at
    all where none of it was measured.
    """
    names = set_apart([run.configuration for run in runs])
    lines: list[tuple[str, str]] = []
    budgets = [budget for budget in efficiency_budgets(runs) if _measured(budget)]
    for budget in budgets:
        label = f"{names[budget.configuration]} {gpus_text(budget.key.gpus)}"
        lines.append((label, budget_text(budget)))
        if budget.skew is not None and budget.skew >= NAMED_SKEW:
            lines += [(label, line) for line in _stragglers(budget, runs)]
    for spread in device_spreads(runs):
        text = (
            f"T(1) over {spread.devices} devices: {format_seconds(spread.slowest_step_time_s)} on "
            f"{spread.slowest}, {format_percent(spread.spread)} more than on {spread.fastest}"
        )
        lines.append((f"{names[spread.configuration]} {gpus_text(spread.key.gpus)}", text))
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
    absent = [name for name in ("communication", "data", "skew") if name not in measured]
    note = f" (not measured, so in the rest: {', '.join(absent)})" if absent else ""
    return f"E {(100 - loss) / 100:.2f} = 1{terms}{note}"


def _measured(budget: EfficiencyBudget) -> dict[str, float]:
    parts = {"communication": budget.communication, "data": budget.data, "skew": budget.skew}
    return {name: part for name, part in parts.items() if part is not None}


def _whole_points(parts: Iterable[float], total: int) -> list[int]:
    """The parts in whole points whose sum is the total; each stays within a point of its part."""
    exact = [part * 100 for part in parts]
    points = [math.floor(part) for part in exact]
    largest_fraction_first = sorted(range(len(exact)), key=lambda i: points[i] - exact[i])
    for i in largest_fraction_first[: total - sum(points)]:
        points[i] += 1
    return points


def _stragglers(budget: EfficiencyBudget, runs: Iterable[Run]) -> Iterator[str]:
    found: dict[str, list[RankSkew]] = {}
    for skew in rank_skews(
        run for run in runs if (run.configuration, run.key) == (budget.configuration, budget.key)
    ):
        if skew.skew_s >= NAMED_SKEW * skew.median_pace_s:
            found.setdefault(_rank_text(skew), []).append(skew)
    for who, skews in found.items():
        lag = statistics.median(skew.skew_s / skew.median_pace_s for skew in skews)
        numbers = ", ".join(str(skew.run) for skew in skews)
        # Of two ranks the median one is the other.
        other = f"rank {1 - skews[0].rank}" if budget.key.gpus == 2 else "the median rank"
        yield (
            f"skew: {who} {format_percent(lag)} slower than {other} "
            f"in run{'s' if len(skews) > 1 else ''} {numbers}"
        )


def _rank_text(skew: RankSkew) -> str:
    """`rank 2 (node1, GPU-ab12…)`."""
    return f"rank {skew.rank} ({', '.join([skew.host, *skew.device_uuids])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An average step of one point, in seconds."""

    time_s: float
    typical_s: float
    """The step time of the scaling table: over runs, of the median of each."""
    phases: Phases
    communication_s: float | None
    """Exposed, as the mean over the runs, like that of the efficiency budget."""
    windows: int
    missing_windows: int
    """Windows whose phases do not add up to their time within the tolerance."""


def phase_lines(runs: Sequence[Run], columns: int | None) -> Iterator[str]:
    """A row for each (case, strategy, gpus), a column for each phase; the slowest ranks."""
    valid = [run for run in runs if run.is_valid]
    groups: dict[PointKey, list[Run]] = {}
    for run in valid:
        groups.setdefault(PointKey.of(run), []).append(run)
    steps = {point: step for point, runs in groups.items() if (step := _step(runs)) is not None}
    if not steps:
        yield "no phases were recorded"
        return
    yield _phase_table(steps, columns)
    yield ""
    yield from fitted(_notes(steps), columns)
    skews = rank_skews(valid)
    if skews:
        yield ""
        yield _skew_table(skews, columns)


def _step(runs: Sequence[Run]) -> _Step | None:
    """The average step of a point's runs; None where no window of theirs has phases."""
    # Time and phases of an average step of each window.
    described = [
        (window.time_s / run.steps_per_window, window.phases.scaled(1 / run.steps_per_window))
        for run in runs
        if run.steps_per_window
        for window in run.windows
        if window.phases is not None
    ]
    if not described:
        return None
    exposed_s = [
        run.measured["exposed_communication_s"]
        for run in runs
        if "exposed_communication_s" in run.measured
    ]
    # Unlike medians of each phase, means over the same windows add up to the time.
    described.sort(key=lambda step: step[0])
    cut = len(described) // 3
    middle = described[cut : len(described) - cut]
    means = {
        name: statistics.fmean(getattr(phases, name) for _, phases in middle)
        for name in Phases.__struct_fields__
    }
    return _Step(
        time_s=statistics.fmean(time_s for time_s, _ in middle),
        typical_s=geometric_mean(log_sample([run.log_step_time for run in runs])).value,
        phases=Phases(**means),
        communication_s=statistics.fmean(exposed_s) if exposed_s else None,
        windows=len(described),
        missing_windows=sum(
            abs(phases.total_s / time_s - 1) > SUM_TOLERANCE for time_s, phases in described
        ),
    )


def _phase_table(steps: Mapping[PointKey, _Step], columns: int | None) -> str:
    names = set_apart([point.configuration for point in steps])
    headers = ["case", "gpus", "step", "data", "h2d", "forward", "backward", "communication"]
    headers += ["optimizer", "sum"]
    order = list(names)
    ordered = sorted(steps, key=lambda point: (order.index(point.configuration), point.gpus))
    described = [[*_cells(steps[point])] for point in ordered]
    # A share takes no more room than the largest of its column: tables are wide enough.
    widths = [max(len(share) for _, share in column) for column in zip(*described, strict=True)]
    rows = [
        [
            names[point.configuration],
            str(point.gpus),
            format_seconds(steps[point].time_s),
            *(
                f"{time} {share:>{width}}" if share else time
                for (time, share), width in zip(cells, widths, strict=True)
            ),
            format_percent(steps[point].phases.total_s / steps[point].time_s),
        ]
        for point, cells in zip(ordered, described, strict=True)
    ]
    # Notes name the rows whose sum is not the whole.
    return table(headers, rows, columns, spare=("sum",))


def _cells(step: _Step) -> Iterator[tuple[str, str]]:
    """Each phase per step, such as `7.21 ms`, and as a share of the step, such as `17.6 %`."""
    phases, communication_s = step.phases, step.communication_s
    for seconds in (
        phases.data_s,
        phases.h2d_s,
        phases.forward_s,
        phases.backward_s - (communication_s or 0.0),
        communication_s,
        phases.optimizer_s,
    ):
        if seconds is None:
            yield UNKNOWN, ""
            continue
        sign = "−" if seconds < 0 else ""
        yield f"{sign}{format_seconds(abs(seconds))}", format_percent(seconds / step.time_s)


def _notes(steps: Mapping[PointKey, _Step]) -> Iterator[str]:
    configurations = configurations_text(point.configuration for point in steps)
    yield f"{configurations}; per step, and as a share of it; of the slowest rank"
    yield (
        "step: the mean over the middle third of the windows of all runs, to which the phases add "
        "up; the scaling table's step time is the geometric mean over runs of each run's median"
    )
    if any(step.communication_s is not None for step in steps.values()):
        yield (
            "communication: exposed; a step with gradient synchronisation less one without, the "
            "mean over runs; what DDP does with one rank's gradients is in it, which the "
            "efficiency budget leaves out"
        )
    several = dict.fromkeys(p.configuration.strategy for p in steps if p.gpus > 1)
    demands = {name: STRATEGIES[name] for name in several if name in STRATEGIES}
    measurable = {name for name, its in demands.items() if its.inside_computing is None}
    for strategy in demands:
        if strategy not in measurable:
            yield (
                f"{strategy}: {demands[strategy].inside_computing} are inside forward and "
                "backward; communication cannot be told apart"
            )
    for point, step in steps.items():
        label = EntryKey(point.configuration.case, point.configuration.strategy, point.gpus).label
        if abs(step.time_s / step.typical_s - 1) > SUM_TOLERANCE:
            yield (
                f"{label}: step {format_seconds(step.time_s)} here and "
                f"{format_seconds(step.typical_s)} in the scaling table, since its runs or windows "
                "are of different pace"
            )
        could_measure = point.gpus > 1 and point.configuration.strategy in measurable
        if could_measure and step.communication_s is None:
            yield f"{label}: exposed communication was not measured and is inside backward"
        if step.missing_windows:
            yield (
                f"{label}: the phases of {step.missing_windows} of {step.windows} windows miss "
                f"the window's time by more than {SUM_TOLERANCE:.0%}"
            )


def _skew_table(skews: Sequence[RankSkew], columns: int | None) -> str:
    rows = [
        [
            f"{skew.key.case}/{skew.key.strategy}",
            str(skew.key.gpus),
            str(skew.run),
            _rank_text(skew),
            format_seconds(skew.pace_s),
            format_percent(skew.skew_s / skew.median_pace_s),
        ]
        for skew in skews
    ]
    headers = ["case", "gpus", "run", "slowest rank", "own pace", "behind the median rank"]
    return table(headers, rows, columns, keys=3, left=("case", "slowest rank"))
