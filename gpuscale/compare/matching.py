"""The rows of a comparison, both sides of each, and what keeps a row from being judged."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuscale.records import (
    Baseline,
    Configuration,
    EntryKey,
    Failure,
    PublishedFigure,
    ReasonCode,
    Results,
    Run,
    Statement,
    Verdict,
    differences,
)
from gpuscale.scaling import PointKey, References, ScalingPoint, scaling_points

PUBLISHED_SIZE = "full"
_LONGEST_MESSAGE = 160
_NOT_MEASURED = Statement.of(ReasonCode.NOT_MEASURED)
_ON_NEITHER_SIDE = Statement.of(ReasonCode.ON_NEITHER_SIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The runs of one configuration on one number of GPUs, on one side of a comparison."""

    point: ScalingPoint
    logs: Mapping[str, tuple[float, ...]]
    """Logarithms of the step times of the valid runs, by allocation."""
    runs: Mapping[str, tuple[Run, ...]]
    """The valid runs, by allocation."""
    first_failure: str | None
    failures: Mapping[str, int]
    """The number of failed runs, by the kind of failure."""

    @property
    def placements(self) -> frozenset[tuple[int, ...]]:
        """The numbers of ranks on each node, the most first, of each run that tells them."""
        return frozenset(
            tuple(sorted(Counter(rank.host for rank in run.ranks).values(), reverse=True))
            for runs in self.runs.values()
            for run in runs
            if run.ranks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The entries of one side of a comparison, by row and by point."""

    entries: tuple[Entry, ...]
    by_row: Mapping[EntryKey, Sequence[Entry]]
    by_point: Mapping[PointKey, Entry]
    """Those that have a valid run."""
    references: References

    @classmethod
    def of_runs(cls, placed: Sequence[tuple[str, Run]]) -> "Side":
        """The side that runs make, each given with its allocation."""
        entries = _entries(placed)
        by_row: dict[EntryKey, list[Entry]] = {}
        for entry in entries:
            by_row.setdefault(entry.point.key, []).append(entry)
        by_point = {entry.point.point_key: entry for entry in entries if entry.logs}
        return cls(
            entries=entries, by_row=by_row, by_point=by_point, references=References(by_point)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row before it is judged; `obstacle` and `reason` are set where it cannot be."""

    key: EntryKey
    before: Entry | None = None
    figure: PublishedFigure | None = None
    after: Entry | None = None
    obstacle: Verdict | None = None
    reason: Statement | None = None


def side_of_baseline(baseline: Baseline) -> Side:
    """The measured runs of a baseline."""
    return Side.of_runs([(run.allocation or baseline.name, run) for run in baseline.runs])


def side_of_results(results: Sequence[Results]) -> Side:
    """The runs of all results together."""
    return Side.of_runs(
        [(result.allocation_of(run), run) for result in results for run in result.runs]
    )


def _entries(placed: Sequence[tuple[str, Run]]) -> tuple[Entry, ...]:
    runs: dict[PointKey, dict[str, list[Run]]] = {}
    failures: dict[PointKey, str] = {}
    kinds: dict[PointKey, Counter[str]] = {}
    for allocation, run in placed:
        key = PointKey.of(run)
        if run.is_valid:
            runs.setdefault(key, {}).setdefault(allocation, []).append(run)
        else:
            failures.setdefault(key, failure_text(run.failure))
            kind = "" if run.failure is None else run.failure.kind
            kinds.setdefault(key, Counter())[kind] += 1
    entries = []
    for point in scaling_points([run for _, run in placed]):
        made = runs.get(point.point_key, {})
        entries.append(
            Entry(
                point=point,
                logs={
                    night: tuple(run.log_step_time for run in its) for night, its in made.items()
                },
                runs={night: tuple(its) for night, its in made.items()},
                first_failure=failures.get(point.point_key),
                failures=kinds.get(point.point_key, {}),
            )
        )
    return tuple(entries)


def failure_text(failure: Failure | None) -> str:
    """The first line of why a run failed, cut to a length that a table bears."""
    if failure is None:
        return "the run has no windows"
    message = failure.message.strip() or failure.kind
    line = message.splitlines()[0]
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"


def match(
    baseline: Baseline,
    before: Side,
    after: Side,
    *,
    cases: Collection[str] | None,
    gpus: Collection[int] | None,
) -> list[Row]:
    """One row for each entry of either side that the filters let through.

    A case that was asked for and has none of the numbers of GPUs that were has rows as well.
    Rows come case by case, the baseline's first, each with its numbers of GPUs ascending.
    """
    keys = known_keys(baseline, before, after)
    appearance = {(key.case, key.strategy): i for i, key in reversed(list(enumerate(keys)))}
    chosen = [key for key in keys if _selected(key, cases, gpus)]
    chosen += _absent(keys, chosen, cases, gpus)
    ordered = sorted(chosen, key=lambda key: (appearance[key.case, key.strategy], key.gpus))
    figures = {figure.key: figure for figure in baseline.published}
    return [
        row
        for key in ordered
        for row in _rows_of_key(
            key,
            before.by_row.get(key, ()),
            figures.get(key),
            after.by_row.get(key, ()),
            baseline.hardware.device,
        )
    ]


def known_keys(baseline: Baseline, before: Side, after: Side) -> tuple[EntryKey, ...]:
    """The rows that any side has, the baseline's first."""
    published = (figure.key for figure in baseline.published)
    return tuple(dict.fromkeys((*before.by_row, *published, *after.by_row)))


def names_case(name: str, key: EntryKey) -> bool:
    """True where `mnist_cnn` or `mnist_cnn/ddp` means this row."""
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


def _rows_of_key(
    key: EntryKey,
    before: Sequence[Entry],
    figure: PublishedFigure | None,
    after: Sequence[Entry],
    device: str,
) -> list[Row]:
    if before:
        taken = {entry.point.configuration for entry in before}
        free = [entry for entry in after if entry.point.configuration not in taken]
        rows = [_measured_row(entry, after, free) for entry in before]
        shown = [row.after for row in rows]
        return [*rows, *(_new_row(entry, before) for entry in after if entry not in shown)]
    if figure is not None:
        return [_published_row(figure, device, after)]
    if not after:
        return [Row(key=key, obstacle=Verdict.MISSING, reason=_ON_NEITHER_SIDE)]
    return [_new_row(entry, ()) for entry in after]


def _new_row(after: Entry, before: Sequence[Entry]) -> Row:
    nearest = min((_all_differences(entry, after) for entry in before), key=len, default=())
    reason = Statement.of(ReasonCode.NO_ENTRY)
    if nearest:
        reason = Statement.of(ReasonCode.NO_ENTRY_ALIKE, differences=nearest)
    return Row(key=after.point.key, after=after, obstacle=Verdict.MISSING, reason=reason)


def point_differences(before: ScalingPoint, after: ScalingPoint) -> tuple[str, ...]:
    """The differences that keep runs of two points from being repetitions: `size: full → smoke`."""
    return (
        *differences(before.configuration, after.configuration),
        *_number_differences(before.batch_per_gpu, after.batch_per_gpu, name="batch_per_gpu"),
        *_shape_differences(before.sample_shape, after.sample_shape),
    )


def _all_differences(before: Entry, after: Entry) -> tuple[str, ...]:
    return (
        *point_differences(before.point, after.point),
        *_placement_differences(before.placements, after.placements),
    )


def _placement_differences(
    before: Collection[tuple[int, ...]], after: Collection[tuple[int, ...]]
) -> Iterable[str]:
    """Nothing where a side does not know, and where the baseline has runs of each placement."""
    if before and not set(after) <= set(before):
        then, now = (
            " or ".join(" + ".join(map(str, placement)) for placement in sorted(placements))
            for placements in (before, after)
        )
        yield f"ranks per node: {then} → {now}"


def _measured_row(before: Entry, after: Sequence[Entry], free: Sequence[Entry]) -> Row:
    key = before.point.key
    same = [each for each in after if each.point.configuration == before.point.configuration]
    if not same and not free:
        return Row(key=key, before=before, obstacle=Verdict.MISSING, reason=_NOT_MEASURED)
    found = [(_all_differences(before, each), each) for each in same or free]
    nearest_differences, nearest = min(found, key=lambda each: len(each[0]))
    return _checked(Row(key=key, before=before, after=nearest), nearest, nearest_differences)


def _published_row(figure: PublishedFigure, device: str, after: Sequence[Entry]) -> Row:
    if not after:
        return Row(key=figure.key, figure=figure, obstacle=Verdict.MISSING, reason=_NOT_MEASURED)
    found = [(published_differences(figure, device, each.point), each) for each in after]
    nearest_differences, nearest = min(
        found,
        key=lambda each: (len(each[0]), _distance_from_plain(each[1].point.configuration)),
    )
    return _checked(Row(key=figure.key, figure=figure, after=nearest), nearest, nearest_differences)


def _checked(row: Row, after: Entry, found: Sequence[str]) -> Row:
    if found:
        reason = Statement.of(ReasonCode.OTHER_MEASUREMENT, differences=found)
        return replace(row, obstacle=Verdict.INCOMPARABLE, reason=reason)
    if not after.point.valid_runs:
        made = after.point.failed_runs
        code = ReasonCode.ONLY_RUN_FAILED if made == 1 else ReasonCode.ALL_RUNS_FAILED
        reason = Statement.of(code, made=made, failure=after.first_failure)
        return replace(row, obstacle=Verdict.MISSING, reason=reason)
    return row


def published_differences(
    figure: PublishedFigure, device: str, point: ScalingPoint
) -> tuple[str, ...]:
    """The differences between a published figure and a point, as far as it tells them.

    Weak or strong scaling needs no look of its own: it shows in the batch per GPU.
    """
    configuration = point.configuration
    found = []
    if configuration.device != device:
        found.append(f"device: {device} → {configuration.device}")
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
        + bool(configuration.channels_last)
        + bool(configuration.compiled)
        + (configuration.data != "real")
    )


def _number_differences(before: int, after: int, *, name: str) -> Iterable[str]:
    if before != after:
        yield f"{name}: {before} → {after}"


def _shape_differences(
    before: tuple[int, ...] | None, after: tuple[int, ...] | None
) -> Iterable[str]:
    if before is not None and after is not None and before != after:
        old, new = ("×".join(map(str, shape)) for shape in (before, after))
        yield f"sample_shape: {old} → {new}"
