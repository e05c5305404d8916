"""Where the time of a step goes: one row per (case, strategy, gpus), one column per phase."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from gpuscale.budget import RankSkew, rank_skews
from gpuscale.records import EntryKey, Phases, Results, Run
from gpuscale.report.budget_text import skew_text
from gpuscale.report.configurations import set_apart
from gpuscale.report.injection_text import injection_warning
from gpuscale.report.table import UNKNOWN
from gpuscale.scaling import PointKey
from gpuscale.units import format_percent, format_seconds

SUM_TOLERANCE = 0.03
"""By how much a window's phases may miss its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """An average step of one point, in seconds."""

    time_s: float
    phases: Phases
    communication_s: float | None
    windows: int
    missing_windows: int
    """Windows whose phases do not add up to their time within the tolerance."""


def phases_text(results: Results) -> str:
    """The phases of every row and the pace of the slowest ranks, without a closing line break."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    if results.injections:
        yield injection_warning(results.injections)
    valid = [run for run in results.runs if run.is_valid]
    groups: dict[PointKey, list[Run]] = {}
    for run in valid:
        groups.setdefault(PointKey.of(run), []).append(run)
    steps = {point: step for point, runs in groups.items() if (step := _step(runs)) is not None}
    if not steps:
        yield "no phases were recorded"
        return
    yield _phase_table(steps)
    yield ""
    yield from _notes(steps)
    skews = rank_skews(valid)
    if skews:
        yield ""
        yield _skew_table(skews)


def _step(runs: Iterable[Run]) -> _Step | None:
    """What a point's runs say of a step; None where no window of theirs has phases."""
    described: list[tuple[float, Phases]] = []
    exposed_s: list[float] = []
    for run in runs:
        described += _steps_of_windows(run)
        if run.exposed_communication_s is not None:
            exposed_s.append(run.exposed_communication_s)
    if not described:
        return None
    # Unlike medians of each phase, means over the same windows add up to the time.
    described.sort(key=lambda step: step[0])
    cut = len(described) // 3
    middle = described[cut : len(described) - cut]
    return _Step(
        time_s=statistics.fmean(time_s for time_s, _ in middle),
        phases=_mean([phases for _, phases in middle]),
        communication_s=statistics.median(exposed_s) if exposed_s else None,
        windows=len(described),
        missing_windows=sum(
            abs(phases.total_s / time_s - 1) > SUM_TOLERANCE for time_s, phases in described
        ),
    )


def _steps_of_windows(run: Run) -> Iterator[tuple[float, Phases]]:
    """Time and phases of an average step of each window that has them."""
    for window in run.windows:
        if window.phases is not None and run.steps_per_window:
            share = 1 / run.steps_per_window
            yield window.time_s * share, window.phases.scaled(share)


def _mean(phases: Sequence[Phases]) -> Phases:
    return Phases(
        data_s=statistics.fmean(each.data_s for each in phases),
        h2d_s=statistics.fmean(each.h2d_s for each in phases),
        forward_s=statistics.fmean(each.forward_s for each in phases),
        backward_s=statistics.fmean(each.backward_s for each in phases),
        optimizer_s=statistics.fmean(each.optimizer_s for each in phases),
    )


def _phase_table(steps: dict[PointKey, _Step]) -> str:
    names = set_apart([point.configuration for point in steps])
    headers = ["case", "gpus", "step", "data", "h2d", "forward", "backward", "communication"]
    headers += ["optimizer", "sum"]
    order = list(names)
    rows = [
        [names[point.configuration], str(point.gpus), format_seconds(step.time_s), *_cells(step)]
        for point, step in sorted(
            steps.items(), key=lambda item: (order.index(item[0].configuration), item[0].gpus)
        )
    ]
    return tabulate(
        rows, headers, disable_numparse=True, colalign=("left", *["right"] * (len(headers) - 1))
    )


def _cells(step: _Step) -> Iterator[str]:
    phases, communication_s = step.phases, step.communication_s
    for seconds in (
        phases.data_s,
        phases.h2d_s,
        phases.forward_s,
        phases.backward_s - (communication_s or 0.0),
        communication_s,
        phases.optimizer_s,
    ):
        yield UNKNOWN if seconds is None else _cell(seconds, step.time_s)
    yield format_percent(phases.total_s / step.time_s)


def _cell(seconds: float, step_time_s: float) -> str:
    """`7.21 ms 17.6 %`: per step, and as a share of the step."""
    sign = "−" if seconds < 0 else ""
    return f"{sign}{format_seconds(abs(seconds))} {format_percent(seconds / step_time_s):>6}"


def _notes(steps: dict[PointKey, _Step]) -> Iterator[str]:
    yield "per step, and as a share of it; of the slowest rank, in the middle third of the windows"
    if any(step.communication_s is not None for step in steps.values()):
        yield "communication: exposed; a step with gradient synchronisation less one without"
    if any(point.configuration.strategy == "dp" and point.gpus > 1 for point in steps):
        yield (
            "dp: scatter, replicate and gather are inside forward and backward; "
            "communication cannot be told apart"
        )
    for point, step in steps.items():
        label = EntryKey(point.configuration.case, point.configuration.strategy, point.gpus).label
        if _lacks_communication(point, step):
            yield f"{label}: exposed communication was not measured and is inside backward"
        if step.missing_windows:
            yield (
                f"{label}: the phases of {step.missing_windows} of {step.windows} windows miss "
                f"the window's time by more than {SUM_TOLERANCE:.0%}"
            )


def _lacks_communication(point: PointKey, step: _Step) -> bool:
    """Whether a row could have had its exposed communication measured, and has not."""
    several_ranks = point.gpus > 1 and point.configuration.strategy != "dp"
    return several_ranks and step.communication_s is None


def _skew_table(skews: Sequence[RankSkew]) -> str:
    rows = [
        [
            f"{skew.key.case}/{skew.key.strategy}",
            str(skew.key.gpus),
            str(skew.run),
            skew_text(skew),
            format_seconds(skew.pace_s),
            format_percent(skew.skew_s / skew.median_pace_s),
        ]
        for skew in skews
    ]
    headers = ["case", "gpus", "run", "slowest rank", "own pace", "behind the median rank"]
    return tabulate(
        rows,
        headers,
        disable_numparse=True,
        colalign=("left", "right", "right", "left", "right", "right"),
    )
