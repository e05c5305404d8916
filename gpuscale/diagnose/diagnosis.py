"""The causes of every loss in a comparison, the heaviest first.

A new cause is a function in a file of its own, which is given a row and what is named already,
and its entry in `CAUSES`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from gpuscale.budget import EfficiencyBudget, efficiency_budgets
from gpuscale.diagnose.attribution import changes_of, step_of
from gpuscale.diagnose.row import Point, Row
from gpuscale.diagnose.slow_device import slow_device
from gpuscale.diagnose.slower_parts import communication, computing, data, time_in_no_part
from gpuscale.diagnose.stragglers import stragglers
from gpuscale.diagnose.untimed import device_faults, environment, lost_to_ideal, not_established
from gpuscale.records import (
    Baseline,
    Cause,
    Comparison,
    Configuration,
    EntryKey,
    EntryVerdict,
    Environment,
    Results,
    Run,
    Verdict,
)
from gpuscale.scaling import PointKey

Finder = Callable[[Row, Sequence[Cause]], Iterator[Cause]]
"""The causes of one kind, given those that stand before them."""
_OF_UNCERTAIN_ROWS: tuple[Finder, ...] = (slow_device,)
"""Of rows on one GPU that are inconclusive, too."""
CAUSES: tuple[tuple[Finder, ...], ...] = (
    _OF_UNCERTAIN_ROWS,
    (communication, data, computing, stragglers, time_in_no_part),
    (device_faults,),
    (not_established,),
    (environment,),
)
"""In the order in which they are named; those of one group by the time that they lost."""


def diagnose(baseline: Baseline, results: Sequence[Results], comparison: Comparison) -> Comparison:
    """The comparison with the causes of each row that says that something got worse.

    A row on one GPU that is inconclusive is given the device that makes it so, if one does.
    """
    diagnosed = {e.configuration for e in comparison.entries if _is_diagnosed(e)}
    if not diagnosed:
        return comparison
    evidence = _Evidence(baseline, results, diagnosed)
    entries = tuple(
        replace(entry, causes=_causes(entry, evidence)) if _is_diagnosed(entry) else entry
        for entry in comparison.entries
    )
    return replace(comparison, entries=entries)


def _is_diagnosed(entry: EntryVerdict) -> bool:
    alone = entry.verdict is Verdict.INCONCLUSIVE and entry.key.gpus == 1
    return entry.configuration is not None and (entry.verdict.is_loss or alone)


def _causes(entry: EntryVerdict, evidence: "_Evidence") -> tuple[Cause, ...]:
    row = evidence.row(entry)
    if row is None:
        budget = evidence.budgets.get((entry.configuration, entry.key))
        return tuple(lost_to_ideal(budget)) if entry.verdict.is_loss else ()
    named: tuple[Cause, ...] = ()
    for finders in CAUSES if entry.verdict.is_loss else (_OF_UNCERTAIN_ROWS,):
        found = [cause for finder in finders for cause in finder(row, named)]
        named += tuple(sorted(found, key=lambda cause: -(cause.lost_s or 0.0)))
    return named


class _Evidence:
    """The runs before and after by what they repeat, so that a row finds its own."""

    def __init__(
        self,
        baseline: Baseline,
        results: Sequence[Results],
        configurations: Collection[Configuration | None],
    ) -> None:
        self._baseline = baseline
        self._results = results
        self._before = _by_point(baseline.runs)
        self._after: dict[PointKey, list[Run]] = {}
        self._environments: dict[PointKey, list[Environment]] = {}
        self._points: dict[Configuration, dict[int, Point]] = {}
        for result in results:
            for key, runs in _by_point(result.runs).items():
                self._after.setdefault(key, []).extend(runs)
                self._environments.setdefault(key, []).append(result.environment)
        for key in self._before:
            if key.configuration in configurations:
                self._points.setdefault(key.configuration, {})[key.gpus] = self._point(key)

    def row(self, entry: EntryVerdict) -> Row | None:
        """What is known of an entry; None where the baseline has measured nothing of it."""
        assert entry.configuration is not None, "a row without one is not diagnosed"
        points = self._points.get(entry.configuration, {})
        if entry.key.gpus not in points:
            return None
        key = points[entry.key.gpus].key
        allocations = {run.allocation for run in self._before[key]}
        return Row(
            entry=entry,
            points=points,
            environments_before=tuple(
                each for name, each in self._baseline.environments.items() if name in allocations
            ),
            environments_after=tuple(self._environments.get(key, ())),
        )

    @cached_property
    def budgets(self) -> dict[tuple[Configuration | None, EntryKey], EfficiencyBudget]:
        """Where the efficiency of each row went, by the results alone."""
        runs = [run for result in self._results for run in result.runs]
        budgets = reversed(efficiency_budgets(runs))
        return {(budget.configuration, budget.key): budget for budget in budgets}

    def _point(self, key: PointKey) -> Point:
        before, after = (
            tuple(step for run in runs.get(key, ()) if (step := step_of(run)) is not None)
            for runs in (self._before, self._after)
        )
        deviation = self._baseline.tolerances.allocation_deviation_time
        changes = changes_of(before, after, deviation)
        return Point(key=key, before=before, after=after, changes=changes)


def _by_point(runs: Iterable[Run]) -> dict[PointKey, list[Run]]:
    """The valid runs."""
    found: dict[PointKey, list[Run]] = {}
    for run in runs:
        if run.is_valid:
            found.setdefault(PointKey.of(run), []).append(run)
    return found
