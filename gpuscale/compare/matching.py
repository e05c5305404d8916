"""Which rows there are, what stands on each side, and what keeps a row from being judged."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.compare.layout import layout_differences
from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Failure,
    MeasuredEntry,
    PublishedFigure,
    Results,
    Run,
    Verdict,
    differences,
)
from gpuscale.scaling import PointKey, ScalingPoint, scaling_points

PUBLISHED_SIZE = "full"
NOT_MEASURED = "not measured"
_RECORD_ONE = "record one with 'gpuscale baseline record'"
_LONGEST_MESSAGE = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """What the results hold of one configuration on one number of GPUs."""

    point: ScalingPoint
    logs: Mapping[str, tuple[float, ...]]
    """Logarithms of the step times of the valid runs, by allocation."""
    runs: Mapping[str, tuple[Run, ...]]
    """The valid runs, by allocation."""
    first_failure: str | None
    failures: Mapping[str, int]
    """How many runs failed, by the kind of failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row before it is judged; `obstacle` and `reason` are set where it cannot be."""

    key: EntryKey
    entry: MeasuredEntry | None = None
    figure: PublishedFigure | None = None
    current: Current | None = None
    obstacle: Verdict | None = None
    reason: str = ""


def currents_of(results: Sequence[Results]) -> tuple[Current, ...]:
    """The points of all results together, with their runs by allocation."""
    runs: dict[PointKey, dict[str, tuple[Run, ...]]] = {}
    failures: dict[PointKey, str] = {}
    kinds: dict[PointKey, Counter[str]] = {}
    for result in results:
        for run in result.runs:
            key, allocation = PointKey.of(run), result.allocation_of(run)
            if run.is_valid:
                nights = runs.setdefault(key, {})
                nights[allocation] = (*nights.get(allocation, ()), run)
            else:
                failures.setdefault(key, failure_text(run.failure))
                kind = "" if run.failure is None else run.failure.kind
                kinds.setdefault(key, Counter())[kind] += 1
    return tuple(
        Current(
            point=point,
            logs={
                night: tuple(run.log_step_time for run in made)
                for night, made in runs.get(point.point_key, {}).items()
            },
            runs=runs.get(point.point_key, {}),
            first_failure=failures.get(point.point_key),
            failures=kinds.get(point.point_key, {}),
        )
        for point in scaling_points([run for result in results for run in result.runs])
    )


def failure_text(failure: Failure | None) -> str:
    """The first line of why a run failed, cut to a length that a table bears."""
    if failure is None:
        return "the run has no windows"
    message = failure.message.strip() or failure.kind
    line = message.splitlines()[0]
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"


def match(
    baseline: Baseline,
    currents: Sequence[Current],
    *,
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> list[Row]:
    """One row for each entry of either side that the filters let through.

    A case that was asked for and has none of the numbers of GPUs that were has rows as well.
    Rows come case by case, the baseline's first, each with its numbers of GPUs ascending.
    """
    keys = known_keys(baseline, currents)
    appearance = {(key.case, key.strategy): i for i, key in reversed(list(enumerate(keys)))}
    chosen = [key for key in keys if _selected(key, cases, gpus)]
    chosen += _absent(keys, chosen, cases, gpus)
    ordered = sorted(chosen, key=lambda key: (appearance[key.case, key.strategy], key.gpus))
    return [
        row
        for key in ordered
        for row in _rows_of_key(key, baseline, [c for c in currents if c.point.key == key])
    ]


def known_keys(baseline: Baseline, currents: Sequence[Current]) -> tuple[EntryKey, ...]:
    """The rows that any side has, the baseline's first."""
    return tuple(
        dict.fromkeys(
            (
                *(entry.key for entry in baseline.measured),
                *(figure.key for figure in baseline.published),
                *(current.point.key for current in currents),
            )
        )
    )


def names_case(name: str, key: EntryKey) -> bool:
    """Whether `mnist_cnn` or `mnist_cnn/ddp` means this row."""
    return name in (key.case, f"{key.case}/{key.strategy}")


def _absent(
    keys: Collection[EntryKey],
    chosen: Collection[EntryKey],
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> list[EntryKey]:
    """Rows that were asked for, of cases that have no other row."""
    left = [name for name in cases or () if not any(names_case(name, key) for key in chosen)]
    return list(
        dict.fromkeys(
            key._replace(gpus=count)
            for key in keys
            if any(names_case(name, key) for name in left)
            for count in gpus or ()
        )
    )


def _selected(key: EntryKey, cases: Collection[str] | None, gpus: Collection[int] | None) -> bool:
    if gpus is not None and key.gpus not in gpus:
        return False
    return cases is None or any(names_case(name, key) for name in cases)


def _rows_of_key(key: EntryKey, baseline: Baseline, currents: Sequence[Current]) -> list[Row]:
    entries = [entry for entry in baseline.measured if entry.key == key]
    figures = [figure for figure in baseline.published if figure.key == key]
    if entries:
        taken = {entry.configuration for entry in entries}
        free = [current for current in currents if current.point.configuration not in taken]
        rows = [_measured_row(entry, currents, free) for entry in entries]
        shown = [row.current for row in rows]
        return [*rows, *(_new_row(c, entries) for c in currents if c not in shown)]
    if figures:
        return [_published_row(figures[0], baseline, currents)]
    if not currents:
        return [Row(key=key, obstacle=Verdict.MISSING, reason="asked for, and on neither side")]
    return [_new_row(current, ()) for current in currents]


def _new_row(current: Current, entries: Sequence[MeasuredEntry]) -> Row:
    nearest = min((_all_differences(entry, current) for entry in entries), key=len, default=())
    other = f" of this configuration ({', '.join(nearest)})" if nearest else ""
    return Row(
        key=current.point.key,
        current=current,
        obstacle=Verdict.MISSING,
        reason=f"no entry in the baseline{other}; {_RECORD_ONE}",
    )


def point_differences(before: MeasuredEntry | ScalingPoint, now: ScalingPoint) -> tuple[str, ...]:
    """What keeps runs of two points from being repetitions, each as `size: full → smoke`."""
    return (
        *differences(before.configuration, now.configuration),
        *_number_differences(before.batch_per_gpu, now.batch_per_gpu, name="batch_per_gpu"),
        *_shape_differences(before.sample_shape, now.sample_shape),
    )


def _all_differences(entry: MeasuredEntry, current: Current) -> tuple[str, ...]:
    return (
        *point_differences(entry, current.point),
        *layout_differences(entry, [run for runs in current.runs.values() for run in runs]),
    )


def _measured_row(
    entry: MeasuredEntry, currents: Sequence[Current], free: Sequence[Current]
) -> Row:
    same = [c for c in currents if c.point.configuration == entry.configuration]
    if not same and not free:
        return Row(key=entry.key, entry=entry, obstacle=Verdict.MISSING, reason=NOT_MEASURED)
    by_difference = {
        current.point.point_key: _all_differences(entry, current) for current in same or free
    }
    nearest = min(same or free, key=lambda c: len(by_difference[c.point.point_key]))
    row = Row(key=entry.key, entry=entry, current=nearest)
    return _checked(row, nearest, by_difference[nearest.point.point_key])


def _published_row(figure: PublishedFigure, baseline: Baseline, currents: Sequence[Current]) -> Row:
    if not currents:
        return Row(
            key=figure.key,
            figure=figure,
            obstacle=Verdict.MISSING,
            reason=NOT_MEASURED,
        )
    by_difference = {
        current.point.point_key: published_differences(figure, baseline, current.point)
        for current in currents
    }
    nearest = min(
        currents,
        key=lambda c: (
            len(by_difference[c.point.point_key]),
            _distance_from_plain(c.point.configuration),
        ),
    )
    row = Row(key=figure.key, figure=figure, current=nearest)
    return _checked(row, nearest, by_difference[nearest.point.point_key])


def _checked(row: Row, current: Current, found: Sequence[str]) -> Row:
    if found:
        return replace(
            row,
            obstacle=Verdict.INCOMPARABLE,
            reason=f"not the same measurement ({', '.join(found)})",
        )
    if not current.point.valid_runs:
        failed = _all_failed(current.point.failed_runs)
        return replace(row, obstacle=Verdict.MISSING, reason=f"{failed}: {current.first_failure}")
    return row


def _all_failed(count: int) -> str:
    return "the only run failed" if count == 1 else f"all {count} runs failed"


def published_differences(
    figure: PublishedFigure, baseline: Baseline, point: ScalingPoint
) -> tuple[str, ...]:
    """The differences between a published figure and a point, as far as it tells them.

    Weak or strong scaling needs no look of its own: it shows in the batch per GPU.
    """
    configuration = point.configuration
    found = []
    if configuration.device != baseline.hardware.device:
        found.append(f"device: {baseline.hardware.device} → {configuration.device}")
    if configuration.size != PUBLISHED_SIZE:
        found.append(f"size: {PUBLISHED_SIZE} → {configuration.size}")
    found.extend(
        _number_differences(figure.batch_per_gpu, point.batch_per_gpu, name="batch_per_gpu")
    )
    return tuple(found)


def _distance_from_plain(configuration: Configuration) -> int:
    # A publication that names no precision and no compiler is taken to have used none.
    return (
        (configuration.precision != "fp32")
        + configuration.channels_last
        + configuration.compiled
        + (configuration.data != "real")
    )


def _number_differences(before: int, now: int, *, name: str) -> Iterable[str]:
    if before != now:
        yield f"{name}: {before} → {now}"


def _shape_differences(before: tuple[int, ...], now: tuple[int, ...]) -> Iterable[str]:
    if before != now:
        old, new = ("×".join(map(str, shape)) for shape in (before, now))
        yield f"sample_shape: {old} → {new}"
