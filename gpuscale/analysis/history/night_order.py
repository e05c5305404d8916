"""Find results with contradictory timestamps, which may put nights in the wrong order."""

import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from gpuscale.records import Results

_LONGEST_NIGHT = timedelta(days=2)
_FURTHEST_AHEAD = timedelta(days=1)
_FEWEST = 3
_TIMES = 10
"""Files form a numbered series if at most one, or one in `_TIMES`, began before its predecessor."""
_SMALLEST_S = 1.0


def doubts(files: Sequence[tuple[str, Results]]) -> Iterator[str]:
    """Yield one sentence for each kind of contradiction between timestamps in result files.

    Each sentence names the first file concerned.
    """
    known = [(name, results, began) for name, results in files if (began := _began(results))]
    yield from _first_of(list(_within(files)))
    twice = dict(_job_numbers_that_come_twice(known))
    yield from _first_of(list(twice.values()))
    once = [file for file in known if file[0] not in twice]
    jobs = [(results.environment.job_id or "", name, began) for name, results, began in once]
    names = [(name, name, began) for name, _, began in once]
    by_job, by_name = dict(_going_back(jobs, "job number")), dict(_going_back(names, "name"))
    yield from _first_of(list({**by_name, **by_job}.values()))


def yet_to_come(files: Sequence[tuple[str, Results]], now: datetime) -> dict[str, datetime]:
    """Return start times that are more than a day later than `now`, by file name.

    Return nothing if most files start that late, since the present clock is then probably wrong.
    """
    known = {name: began for name, results in files if (began := _began(results))}
    ahead = {name: began for name, began in known.items() if began > now + _FURTHEST_AHEAD}
    return ahead if 2 * len(ahead) <= len(known) else {}


def _first_of(sentences: Sequence[str]) -> Iterator[str]:
    more = len(sentences) - 1
    if sentences:
        yield sentences[0] + (f" (and so with {more} more)" if more else "")


def _within(files: Sequence[tuple[str, Results]]) -> Iterator[str]:
    for name, results in files:
        starts = [run.started_at_s for run in results.runs if run.started_at_s is not None]
        back_s = max((was - is_now for was, is_now in itertools.pairwise(starts)), default=0.0)
        if back_s > _SMALLEST_S:
            yield f"{name}: the clock went back by {back_s:.0f} s between two of its runs"


def _job_numbers_that_come_twice(
    known: Sequence[tuple[str, Results, datetime]],
) -> Iterator[tuple[str, str]]:
    nights: dict[str, tuple[str, datetime]] = {}
    for name, results, began in known:
        first, then = nights.setdefault(results.allocation, (name, began))
        if abs(began - then) > _LONGEST_NIGHT:
            yield (
                name,
                f"{name} ({began:%Y-%m-%d}) has the job number of {first} ({then:%Y-%m-%d}), "
                f"{results.allocation}: both count as one night",
            )


def _began(results: Results) -> datetime | None:
    starts = [run.started_at_s for run in results.runs if run.started_at_s is not None]
    if starts:
        return datetime.fromtimestamp(min(starts), UTC)
    return datetime.fromisoformat(results.created_at).astimezone(UTC) if results.runs else None


def _going_back(
    series: Sequence[tuple[str, str, datetime]], what: str
) -> Iterator[tuple[str, str]]:
    """Yield the name of each file that began before a lower-numbered file, with an explanation.

    `series` has a numbered text, a name and a start time for each file. Files are compared if their
    numbered texts differ only in the numbers.
    """
    alike: dict[str, list[tuple[list[int], str, datetime]]] = {}
    for numbered, name, began in series:
        numbers = [int(digits) for digits in re.findall(r"\d+", numbered)]
        if numbers:
            alike.setdefault(re.sub(r"\d+", "#", numbered), []).append((numbers, name, began))
    for files in alike.values():
        ordered = sorted(files)
        back = [
            (earlier, now)
            for earlier, now in itertools.pairwise(ordered)
            if now[2] < earlier[2] and now[0] > earlier[0]
        ]
        if len(ordered) < _FEWEST or len(back) > max(1, len(ordered) // _TIMES):
            continue
        for (_, earlier, _), (_, name, began) in back:
            yield (
                name,
                f"{name} began on {began:%Y-%m-%d %H:%M}, before {earlier}, whose {what} is the "
                "earlier one: was a clock wrong? Nights are taken in the order of their clocks",
            )
