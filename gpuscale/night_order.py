"""Results whose clocks cannot all have been right, so that nights may stand in another order."""

import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from gpuscale.records import Results

_LONGEST_NIGHT = timedelta(days=2)
_FEWEST = 3
_TIMES = 10
"""A series of names goes back in time once in so many nights, or once; else it is no series."""
_SMALLEST_S = 1.0


def doubts(files: Sequence[tuple[str, Results]]) -> Iterator[str]:
    """One sentence for each file, given by its name, whose time its place or content denies."""
    told = set()
    for name, results in files:
        starts = [run.started_at_s for run in results.runs if run.started_at_s is not None]
        back_s = max((was - is_now for was, is_now in itertools.pairwise(starts)), default=0.0)
        if back_s > _SMALLEST_S:
            told.add(name)
            yield f"{name}: the clock went back by {back_s:.0f} s between two of its runs"
    known = [(name, results, began) for name, results in files if (began := _began(results))]
    nights: dict[str, tuple[str, datetime]] = {}
    for name, results, began in known:
        first, then = nights.setdefault(results.allocation, (name, began))
        if abs(began - then) > _LONGEST_NIGHT:
            told.add(name)
            yield (
                f"{name} ({began:%Y-%m-%d}) has the job number of {first} ({then:%Y-%m-%d}), "
                f"{results.allocation}: both count as one night"
            )
    known = [each for each in known if each[0] not in told]
    jobs = [(results.environment.job_id or "", name, began) for name, results, began in known]
    names = [(name, name, began) for name, _, began in known]
    for what, series in (("job number is lower", jobs), ("name comes first", names)):
        for earlier, (name, began) in _going_back(series):
            if name not in told:
                told.add(name)
                yield (
                    f"{name} began on {began:%Y-%m-%d %H:%M}, before {earlier}, whose {what}: "
                    "was a clock wrong? Nights are taken in the order of their clocks"
                )


def _began(results: Results) -> datetime | None:
    starts = [run.started_at_s for run in results.runs if run.started_at_s is not None]
    if starts:
        return datetime.fromtimestamp(min(starts), UTC)
    return datetime.fromisoformat(results.created_at).astimezone(UTC) if results.runs else None


def _going_back(
    series: Sequence[tuple[str, str, datetime]],
) -> Iterator[tuple[str, tuple[str, datetime]]]:
    """The places at which what is numbered later began earlier, of those that differ by numbers.

    Given are what holds the number, the file, and its time.
    """
    alike: dict[str, list[tuple[list[int], str, datetime]]] = {}
    for numbered, name, began in series:
        numbers = [int(digits) for digits in re.findall(r"\d+", numbered)]
        if numbers:
            alike.setdefault(re.sub(r"\d+", "#", numbered), []).append((numbers, name, began))
    for its in alike.values():
        ordered = sorted(its)
        back = [
            (before[1], now[1:])
            for before, now in itertools.pairwise(ordered)
            if now[2] < before[2] and now[0] > before[0]
        ]
        if len(ordered) >= _FEWEST and len(back) <= max(1, len(ordered) // _TIMES):
            yield from back
