"""Where the time of a step goes: one row per (case, strategy, gpus), one column per phase."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpuscale.budget import RankSkew, rank_skews
from gpuscale.records import EntryKey, Phases, Results, Run
from gpuscale.report.phrases import UNKNOWN, configuration_text, set_apart
from gpuscale.report.results import provenance_lines, skew_text
from gpuscale.report.screen import fitted, table
from gpuscale.scaling import PointKey, geometric_mean
from gpuscale.statistics.estimates import log_sample
from gpuscale.strategies import STRATEGIES
from gpuscale.units import format_percent, format_seconds

SUM_TOLERANCE = 0.03
"""By how much a window's phases may miss its time."""


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


def phases_text(
    results: Results,
    *,
    path: Path | None = None,
    now: datetime | None = None,
    columns: int | None = None,
) -> str:
    """The phases of every row and the pace of the slowest ranks, without a closing line break.

    Args:
        results: What to show.
        path: Where they were read from.
        now: By which results of another day say how old they are.
        columns: Of the terminal; None where there is room for any line.
    """
    head = fitted(provenance_lines(results, path, now), columns)
    return "\n".join([*head, *_lines(results, columns)])


def _lines(results: Results, columns: int | None) -> Iterator[str]:
    valid = [run for run in results.runs if run.is_valid]
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
    described: list[tuple[float, Phases]] = []
    exposed_s: list[float] = []
    for run in runs:
        described += _steps_of_windows(run)
        if "exposed_communication_s" in run.measured:
            exposed_s.append(run.measured["exposed_communication_s"])
    if not described:
        return None
    # Unlike medians of each phase, means over the same windows add up to the time.
    described.sort(key=lambda step: step[0])
    cut = len(described) // 3
    middle = described[cut : len(described) - cut]
    return _Step(
        time_s=statistics.fmean(time_s for time_s, _ in middle),
        typical_s=geometric_mean(log_sample([run.log_step_time for run in runs])).value,
        phases=_mean([phases for _, phases in middle]),
        communication_s=statistics.fmean(exposed_s) if exposed_s else None,
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
        **{
            name: statistics.fmean(getattr(each, name) for each in phases)
            for name in Phases.__struct_fields__
        }
    )


def _phase_table(steps: Mapping[PointKey, _Step], columns: int | None) -> str:
    names = set_apart([point.configuration for point in steps])
    headers = ["case", "gpus", "step", "data", "h2d", "forward", "backward", "communication"]
    headers += ["optimizer", "sum"]
    order = list(names)
    ordered = sorted(
        steps.items(), key=lambda item: (order.index(item[0].configuration), item[0].gpus)
    )
    described = [[*_cells(step)] for _, step in ordered]
    # A share takes no more room than the largest of its column: tables are wide enough.
    widths = [max(len(share) for _, share in column) for column in zip(*described, strict=True)]
    rows = [
        [
            names[point.configuration],
            str(point.gpus),
            format_seconds(step.time_s),
            *(
                f"{time} {share:>{width}}" if share else time
                for (time, share), width in zip(cells, widths, strict=True)
            ),
            format_percent(step.phases.total_s / step.time_s),
        ]
        for (point, step), cells in zip(ordered, described, strict=True)
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
    texts = dict.fromkeys(configuration_text(point.configuration) for point in steps)
    yield f"{'; '.join(texts)}; per step, and as a share of it; of the slowest rank"
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
    for strategy in dict.fromkeys(p.configuration.strategy for p in steps if p.gpus > 1):
        demands = STRATEGIES.get(strategy)
        if demands is not None and demands.inside_computing is not None:
            yield (
                f"{strategy}: {demands.inside_computing} are inside forward and backward; "
                "communication cannot be told apart"
            )
    for point, step in steps.items():
        label = EntryKey(point.configuration.case, point.configuration.strategy, point.gpus).label
        if abs(step.time_s / step.typical_s - 1) > SUM_TOLERANCE:
            yield (
                f"{label}: step {format_seconds(step.time_s)} here and "
                f"{format_seconds(step.typical_s)} in the scaling table, since its runs or windows "
                "are of different pace"
            )
        if _lacks_communication(point, step):
            yield f"{label}: exposed communication was not measured and is inside backward"
        if step.missing_windows:
            yield (
                f"{label}: the phases of {step.missing_windows} of {step.windows} windows miss "
                f"the window's time by more than {SUM_TOLERANCE:.0%}"
            )


def _lacks_communication(point: PointKey, step: _Step) -> bool:
    """True of a row whose exposed communication could have been measured, and was not."""
    demands = STRATEGIES.get(point.configuration.strategy)
    could = demands is not None and point.gpus > 1 and demands.inside_computing is None
    return could and step.communication_s is None


def _skew_table(skews: Sequence[RankSkew], columns: int | None) -> str:
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
    return table(headers, rows, columns, keys=3, left=("case", "slowest rank"))
