"""The rows of a comparison, before and after of each, and what keeps a row from being judged."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from gpuscale.analysis.scaling import Figures, point_keys, published_speedup, scaling_points
from gpuscale.analysis.statistics.levels import outlying_allocations
from gpuscale.base.strategies import STRATEGIES
from gpuscale.records import (
    Baseline,
    EntryKey,
    EntryVerdict,
    Estimate,
    Facts,
    FieldChange,
    PointKey,
    PublishedFigure,
    Results,
    Run,
    Scaling,
    ScalingPoint,
    Statement,
    Verdict,
    differences,
)

PUBLISHED_SIZE = "full"
FEWEST_VALID_RUNS = 2
"""So many runs must give a number, and as many as did not, for a pass beside failures."""
_LONGEST_MESSAGE = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The runs of one configuration on one number of GPUs, on one side of a comparison."""

    point: ScalingPoint
    logs: Mapping[str, tuple[float, ...]]
    """Logarithms of the step times of the valid runs, by allocation."""
    runs: Mapping[str, Sequence[Run]]
    """The valid runs, by allocation."""
    failed: Sequence[Run]

    @property
    def all_logs(self) -> list[float]:
        """Those of all allocations."""
        return [log for logs in self.logs.values() for log in logs]

    @property
    def first_failure(self) -> str | None:
        """The first line of why a run failed, cut to a length that a table bears."""
        if not self.failed:
            return None
        failure = self.failed[0].failure
        if failure is None:
            return "the run has no windows"
        line = (failure.message.strip() or failure.kind).splitlines()[0]
        return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"

    @property
    def placements(self) -> frozenset[tuple[int, ...]]:
        """The numbers of ranks on each node, the most first, of each run that tells them."""
        return frozenset(
            tuple(sorted(Counter(rank.host for rank in run.ranks).values(), reverse=True))
            for runs in self.runs.values()
            for run in runs
            if run.ranks
        )

    @property
    def too_few_valid_runs(self) -> Facts | None:
        """The facts of runs that cannot carry a pass; None where they can, or none failed.

        Those that gave a number are no fair sample of all where most gave none.
        """
        valid, failed = self.point.valid_runs, len(self.failed)
        if not failed or valid >= max(failed, FEWEST_VALID_RUNS):
            return None
        kinds = Counter("" if run.failure is None else run.failure.kind for run in self.failed)
        return {"valid": valid, "made": valid + failed, "failures": kinds}


def outlying_runs(before: Entry, after: Entry | None) -> Mapping[tuple[str, int], float]:
    """By how much the logarithm of T of the baseline's outlying runs is above the others'.

    Each is given as its allocation and its place among the runs there. One that a run of tonight
    is more like than like the others is not outlying: the machine does so.
    """
    tonight = [] if after is None else after.all_logs
    found = {}
    for name, logs in before.logs.items():
        far = outlying_allocations({str(place): log for place, log in enumerate(logs)})
        for place, apart in far.items():
            half_way = logs[int(place)] - apart / 2
            if not any((log - half_way) * apart > 0 for log in tonight):
                found[name, int(place)] = apart
    return found


def usual_logs(before: Entry, after: Entry | None) -> Mapping[str, tuple[float, ...]]:
    """The baseline's logarithms of T by allocation, without those of outlying runs."""
    far = outlying_runs(before, after)
    return {
        name: tuple(log for place, log in enumerate(logs) if (name, place) not in far)
        for name, logs in before.logs.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The entries of one side of a comparison, by row and by point."""

    entries: Sequence[Entry]
    by_row: Mapping[EntryKey, Sequence[Entry]]
    by_point: Mapping[PointKey, Entry]
    """Those that have a valid run."""


def side_of_baseline(baseline: Baseline) -> Side:
    """The measured runs of a baseline."""
    return _side([(run.allocation or baseline.name, run) for run in baseline.runs])


def side_of_results(results: Sequence[Results]) -> Side:
    """The runs of all results together."""
    return _side([(result.allocation_of(run), run) for result in results for run in result.runs])


def _side(placed: Sequence[tuple[str, Run]]) -> Side:
    """The side that runs make, each given with its allocation."""
    valid: dict[PointKey, dict[str, list[Run]]] = {}
    failed: dict[PointKey, list[Run]] = {}
    made = [run for _, run in placed]
    for key, (allocation, run) in zip(point_keys(made), placed, strict=True):
        if run.is_valid:
            valid.setdefault(key, {}).setdefault(allocation, []).append(run)
        else:
            failed.setdefault(key, []).append(run)
    entries = []
    by_row: dict[EntryKey, list[Entry]] = {}
    for point in scaling_points(made):
        runs = valid.get(point.point_key, {})
        logs = {night: tuple(run.log_step_time for run in its) for night, its in runs.items()}
        failures = failed.get(point.point_key, ())
        entries.append(Entry(point=point, logs=logs, runs=runs, failed=failures))
        by_row.setdefault(point.key, []).append(entries[-1])
    by_point = {entry.point.point_key: entry for entry in entries if entry.logs}
    return Side(entries=entries, by_row=by_row, by_point=by_point)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row before it is judged; `obstacle` and `reason` are set where it cannot be."""

    key: EntryKey
    before: Entry | None = None
    figure: PublishedFigure | None = None
    """Never beside runs before."""
    published_speedup: float | None = None
    after: Entry | None = None
    obstacle: Verdict | None = None
    reason: Statement | None = None

    def told(self, verdict: Verdict, reason: Statement) -> EntryVerdict:
        """The row with this verdict, and with what either side has of it, judged or not."""
        shown = self.after or self.before
        before: Scaling = Scaling() if self.before is None else self.before.point
        if self.published_speedup is not None:
            known = Estimate(value=self.published_speedup)
            before = Scaling(speedup=known, efficiency=known.scaled(1 / self.key.gpus))
        if self.figure is not None and self.figure.samples_per_s is not None:
            before = replace(before, samples_per_s=Estimate(value=self.figure.samples_per_s))
        return EntryVerdict(
            key=self.key,
            verdict=verdict,
            baseline=before,
            current=Scaling() if self.after is None else self.after.point,
            reason=reason,
            configuration=None if shown is None else shown.point.configuration,
        )

    def blocked(self, obstacle: Verdict, code: str, **facts: Unpack[Facts]) -> "Row":
        """The row that cannot be judged, for this reason."""
        return replace(self, obstacle=obstacle, reason=Statement.of(code, **facts))


def match(baseline: Baseline, before: Side, after: Side, keys: Sequence[EntryKey]) -> list[Row]:
    """One row for each entry of either side with one of the keys, in their order."""
    figures = {figure.key: figure for figure in baseline.published}
    rows: list[Row] = []
    for key in keys:
        then, now, figure = before.by_row.get(key), after.by_row.get(key, ()), _figure(key, figures)
        if then:
            rows += _measured_rows(then, now)
        elif figure is not None:
            speedup, device = published_speedup(figure, figures), baseline.hardware.device
            row = Row(key=key, figure=figure, published_speedup=speedup)
            # A publication that names no precision and no compiler is taken to have used none.
            plainest = sorted(now, key=_options)
            found = [
                (_published_differences(figure, device, each.point), each) for each in plainest
            ]
            rows.append(_beside_nearest(row, found))
        elif now:
            rows += [_new_row(entry, ()) for entry in now]
        else:
            rows.append(Row(key=key).blocked(Verdict.MISSING, "on_neither_side"))
    return rows


def _figure(key: EntryKey, figures: Figures) -> PublishedFigure | None:
    """What was published of the row, or else of the strategy that its own wraps."""
    demands = STRATEGIES.get(key.strategy)
    wrapped = None if demands is None else demands.wraps
    return figures.get(key) or (figures.get(key._replace(strategy=wrapped)) if wrapped else None)


def _measured_rows(before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[Row]:
    """A row for each entry before, beside what is most like it, and for each that is new."""
    taken = {entry.point.configuration for entry in before}
    free = [entry for entry in after if entry.point.configuration not in taken]
    shown = []
    for entry in before:
        point = entry.point
        same = [now for now in after if now.point.configuration == point.configuration]
        found = [(_entry_differences(entry, now), now) for now in same or free]
        row = _beside_nearest(Row(key=point.key, before=entry), found)
        shown.append(row.after)
        yield row
    for now in after:
        if now not in shown:
            yield _new_row(now, before)


def _options(entry: Entry) -> int:
    used = entry.point.configuration
    options = used.precision != "fp32", used.channels_last, used.compiled, used.data != "real"
    return sum(map(bool, options))


def _new_row(after: Entry, before: Sequence[Entry]) -> Row:
    row = Row(key=after.point.key, after=after)
    nearest = min((_entry_differences(entry, after) for entry in before), key=len, default=())
    if nearest:
        return row.blocked(Verdict.MISSING, "no_entry_alike", differences=nearest)
    return row.blocked(Verdict.MISSING, "no_entry")


def _beside_nearest(row: Row, found: Sequence[tuple[Sequence[FieldChange], Entry]]) -> Row:
    """The row with the entry that differs least, and with what keeps it from being judged."""
    if not found:
        return row.blocked(Verdict.MISSING, "not_measured")
    different, after = min(found, key=lambda each: len(each[0]))
    row = replace(row, after=after)
    if different:
        return row.blocked(Verdict.INCOMPARABLE, "other_measurement", differences=different)
    if ranks := after.point.configuration.ranks_per_gpu:
        return row.blocked(Verdict.INCOMPARABLE, "shared_gpu", ranks=ranks)
    if after.point.valid_runs:
        return row
    made, failure = len(after.failed), after.first_failure
    return row.blocked(Verdict.MISSING, "all_runs_failed", all_made=made, failure=failure)


def point_differences(before: ScalingPoint, after: ScalingPoint) -> tuple[FieldChange, ...]:
    """The differences that keep runs of two points from being repetitions."""
    found = differences(before.configuration, after.configuration)
    found += _differing("batch_per_gpu", before.batch_per_gpu, after.batch_per_gpu)
    if before.sample_shape is not None and after.sample_shape is not None:
        found += _differing("sample_shape", before.sample_shape, after.sample_shape)
    return found


def _entry_differences(before: Entry, after: Entry) -> tuple[FieldChange, ...]:
    found = point_differences(before.point, after.point)
    # Nothing where a side does not know, and where the baseline has runs of each placement.
    then, now = before.placements, after.placements
    if then and not now <= then:
        found += _differing("ranks_per_node", then, now)
    return found


def _published_differences(
    figure: PublishedFigure, device: str, point: ScalingPoint
) -> tuple[FieldChange, ...]:
    """The differences between a published figure and a point, as far as it tells them.

    Weak or strong scaling needs no look of its own: it shows in the batch per GPU.
    """
    return (
        *_differing("device", device, point.configuration.device),
        *_differing("size", PUBLISHED_SIZE, point.configuration.size),
        *_differing("batch_per_gpu", figure.batch_per_gpu, point.batch_per_gpu),
    )


def _differing(name: str, before: object, after: object) -> tuple[FieldChange, ...]:
    return () if before == after else (FieldChange(name, before, after),)
