"""Choose rows, match the entries of both sides, and find the rows that cannot be judged."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from gpuscale.analysis.outliers import far_apart
from gpuscale.analysis.scaling import Entry
from gpuscale.base.strategies import STRATEGIES
from gpuscale.judge.sides import Sides
from gpuscale.records import (
    EntryKey,
    EntryVerdict,
    Facts,
    FieldChange,
    PointKey,
    PublishedFigure,
    Scaling,
    ScalingPoint,
    Statement,
    Verdict,
    differences,
)

PUBLISHED_SIZE = "full"
_LONGEST_MESSAGE = 160


def first_failure(entry: Entry) -> str | None:
    """Return an entry's first failure in one short line; None if no run failed."""
    if not entry.failed:
        return None
    if (failure := entry.failed[0].failure) is None:
        return "the run has no windows"
    line = (failure.message.strip() or failure.kind).splitlines()[0]
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[: _LONGEST_MESSAGE - 1]}…"


def outlying_runs(before: Entry, after: Entry | None) -> Mapping[tuple[str, int], float]:
    """Return outlying baseline runs' signed distances from the median, by allocation and index.

    A baseline run is not outlying if any run of the results is nearer to this run than to the
    median, since the machine still produces such times.
    """
    tonight = [] if after is None else [log for logs in after.logs.values() for log in logs]
    found = {}
    for name, logs in before.logs.items():
        for place, apart in far_apart(logs).items():
            half_way = logs[place] - apart / 2
            if not any((log - half_way) * apart > 0 for log in tonight):
                found[name, place] = apart
    return found


def usual_logs(before: Entry, after: Entry | None) -> Mapping[str, tuple[float, ...]]:
    """Return the baseline's log step times by allocation, without outlying runs."""
    far = outlying_runs(before, after)
    return {
        name: tuple(log for place, log in enumerate(logs) if (name, place) not in far)
        for name, logs in before.logs.items()
    }


def usual_means(before: Entry, after: Entry | None) -> dict[str, float]:
    """Return the baseline's mean log step time by allocation, without outlying runs."""
    return {name: statistics.fmean(logs) for name, logs in usual_logs(before, after).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRow:
    """A row before it is judged."""

    key: EntryKey
    before: Entry | None = None
    published: ScalingPoint | None = None
    """Published scaling point to judge against; set only if `before` is None."""
    after: Entry | None = None
    obstacle: tuple[Verdict, Statement] | None = None
    """Verdict on a row that cannot be judged, and its reason; None if the row can be judged."""

    @property
    def points(self) -> tuple[PointKey, PointKey]:
        """Keys of both sides' entries; the row must have measured runs on both sides."""
        assert self.before is not None, "the baseline measured the row"
        assert self.after is not None, "the results measured the row"
        return self.before.key, self.after.key

    @property
    def figure(self) -> PublishedFigure | None:
        """The published figure that the row is judged against; None for measured baselines."""
        return None if self.published is None else self.published.figure

    def verdict_of(self, verdict: Verdict, reason: Statement) -> EntryVerdict:
        """Return the row's record with this verdict and reason, and the values of both sides."""
        shown = self.after or self.before
        before = Scaling() if self.before is None else self.before.point
        if self.published is not None:
            before = replace(self.published, step_time_s=None)
        return EntryVerdict(
            key=self.key,
            verdict=verdict,
            baseline=before,
            current=Scaling() if self.after is None else self.after.point,
            reason=reason,
            configuration=None if shown is None else shown.key.configuration,
        )

    def blocked(self, obstacle: Verdict, code: str, **facts: Unpack[Facts]) -> "MatchedRow":
        """Return a copy that cannot be judged: its verdict is `obstacle`, for the reason `code`."""
        return replace(self, obstacle=(obstacle, Statement.of(code, **facts)))


def match(sides: Sides, keys: Sequence[EntryKey]) -> list[MatchedRow]:
    """Match the entries of both sides that have one of these keys; return rows in key order."""
    rows: list[MatchedRow] = []
    for key in keys:
        then, now = sides.before.by_row.get(key), sides.after.by_row.get(key, ())
        published = _published(key, sides.published)
        if then:
            rows += _measured_rows(then, now)
        elif published is not None:
            # Publications without such details are assumed to use fp32 and no compiler.
            plainest = sorted(now, key=_options)
            found = [(_published_differences(published, entry.point), entry) for entry in plainest]
            rows.append(_with_nearest(MatchedRow(key=key, published=published), found))
        elif now:
            rows += [_new_row(entry, ()) for entry in now]
        else:
            rows.append(MatchedRow(key=key).blocked(Verdict.MISSING, "on_neither_side"))
    return rows


def _published(key: EntryKey, published: Mapping[EntryKey, ScalingPoint]) -> ScalingPoint | None:
    """Return the row's published point, or else that of the strategy that its strategy wraps."""
    demands = STRATEGIES.get(key.strategy)
    if key in published or demands is None or demands.wraps is None:
        return published.get(key)
    return published.get(key._replace(strategy=demands.wraps))


def _measured_rows(before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[MatchedRow]:
    """Pair each baseline entry with the most similar current entry; add rows for new entries."""
    taken = {entry.key.configuration for entry in before}
    free = [entry for entry in after if entry.key.configuration not in taken]
    shown = []
    for entry in before:
        same = [now for now in after if now.key.configuration == entry.key.configuration]
        found = [(_entry_differences(entry, now), now) for now in same or free]
        row = _with_nearest(MatchedRow(key=entry.point.key, before=entry), found)
        shown.append(row.after)
        yield row
    for now in after:
        if now not in shown:
            yield _new_row(now, before)


def _options(entry: Entry) -> int:
    used = entry.key.configuration
    options = used.precision != "fp32", used.channels_last, used.compiled, used.data != "real"
    return sum(map(bool, options))


def _new_row(after: Entry, before: Sequence[Entry]) -> MatchedRow:
    row = MatchedRow(key=after.point.key, after=after)
    if nearest := min((_entry_differences(each, after) for each in before), key=len, default=()):
        return row.blocked(Verdict.MISSING, "no_entry_alike", differences=nearest)
    return row.blocked(Verdict.MISSING, "no_entry")


def _with_nearest(
    row: MatchedRow, found: Sequence[tuple[Sequence[FieldChange], Entry]]
) -> MatchedRow:
    """Return `row` with the most similar entry of `found`, or blocked if it cannot be judged."""
    if not found:
        return row.blocked(Verdict.MISSING, "not_measured")
    different, after = min(found, key=lambda pair: len(pair[0]))
    row = replace(row, after=after)
    if different:
        return row.blocked(Verdict.INCOMPARABLE, "other_measurement", differences=different)
    if ranks := after.key.configuration.ranks_per_gpu:
        return row.blocked(Verdict.INCOMPARABLE, "shared_gpu", ranks=ranks)
    if after.logs:
        return row
    made, failure = len(after.failed), first_failure(after)
    return row.blocked(Verdict.MISSING, "all_runs_failed", all_made=made, failure=failure)


def _entry_differences(before: Entry, after: Entry) -> tuple[FieldChange, ...]:
    old, new = before.key, after.key
    found = differences(old.configuration, new.configuration)
    found += _differing("batch_per_gpu", old.batch_per_gpu, new.batch_per_gpu)
    if old.sample_shape is not None and new.sample_shape is not None:
        found += _differing("sample_shape", old.sample_shape, new.sample_shape)
    # No difference if a placement is unknown, or if the baseline has runs of each placement.
    then, now = _placements(before), _placements(after)
    if then and not now <= then:
        found += _differing("ranks_per_node", then, now)
    return found


def _placements(entry: Entry) -> frozenset[tuple[int, ...]]:
    """Return the distinct placements of valid runs: the ranks per node, in descending order."""
    return frozenset(
        tuple(sorted(Counter(rank.host for rank in run.ranks).values(), reverse=True))
        for run in entry.valid
        if run.ranks
    )


def _published_differences(
    published: ScalingPoint, measured: ScalingPoint
) -> tuple[FieldChange, ...]:
    of, used = published.configuration, measured.configuration
    if used.metric is not None:
        return _differing("metric", of.metric, used.metric)
    # Weak and strong scaling differ in the batch per GPU.
    return (
        *_differing("device", of.device, used.device),
        *_differing("size", PUBLISHED_SIZE, used.size),
        *_differing("batch_per_gpu", published.batch_per_gpu, measured.batch_per_gpu),
        *_differing("metric", of.metric, used.metric),
    )


def _differing(name: str, before: object, after: object) -> tuple[FieldChange, ...]:
    return () if before == after else (FieldChange(name, before, after),)
