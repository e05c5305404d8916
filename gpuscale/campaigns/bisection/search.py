"""Search the changes that make an environment slower, and prove them; nothing here measures.

Halving: between two environments, the first half of what differs is applied, and both halves are
judged by runs of all three in turn. So several independent culprits are found in one descent.
Minimisation: if the culprits alone do not explain the loss, the search is repeated with them
applied, which finds those that act only together; if taking them back does not end the loss, it is
repeated without them, which finds those that they hide. Culprits that are not needed are dropped.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpuscale.analysis.statistics.estimates import Difference
from gpuscale.campaigns.bisection.decision import (
    Answer,
    Applied,
    Limits,
    OutOfBudgetError,
    Step,
    Turns,
)
from gpuscale.records.bisection import Bisection, Finding, Reason

_AT_FIRST = Limits(slower=0.01, like=0.02)
"""Limits of the first trial: losses below `slower` are not searched, below `like` there is none."""
_SLOWER, _LIKE, _EXPLAINED = 0.1, 0.25, 1 / 3
"""Fractions of the loss: minimum for a culprit, maximum in a half that is not searched, and maximum
that may remain without the culprits."""
_SPLITS = 6
"""Number of places to split at that are tried before changes count as inseparable."""
_EXTENSIONS = 6
_PATIENCE = 2
"""Factor on the maximum number of runs if a trial is to prove a culprit."""

_SURE = 0.99

Steps = Sequence[Step]
Unit = tuple[int, ...]
"""Indices of changes that cannot be tried separately; usually a single one."""


@dataclass(slots=True, kw_only=True)
class Search:
    """One bisection; changes with the same number in `groups` are applied together."""

    turns: Turns
    groups: Sequence[int]
    most_trials: int
    is_ordered: bool = False
    """True if a change requires all earlier ones to be applied, as with commits."""
    tell: Callable[[int, Sequence[Applied], Steps | None], None]
    """Called after each trial: its number, its environments, and the steps from each to the next;
    None if one of them cannot be measured."""
    trials: int = 0
    _loss: Difference | None = None
    _suspects: list[Unit] = field(default_factory=list)

    def run(self) -> Bisection | None:
        """Search and prove the culprits; return None if either end cannot be measured."""
        good, bad = frozenset[int](), frozenset(range(len(self.groups)))
        try:
            ends = self._compare((good, bad), _AT_FIRST)
            if ends is None:
                return None
            self._loss = loss = ends[0].difference
            if ends[0].answer is Answer.SLOWER:
                return self._searched(bad, loss.value)
        except OutOfBudgetError as spent:
            finding = Finding.SUSPECTED if self._suspects else Finding.UNDECIDED
            return self._result(finding, reason=spent.budget)
        if ends[0].answer is Answer.OPEN:
            return self._result(Finding.UNDECIDED, reason="noise")
        half = loss.half_width(_SURE)
        is_faster = half is not None and loss.value + half < -_AT_FIRST.slower
        return self._result(Finding.REVERSED if is_faster else Finding.SAME)

    def _searched(self, bad: Applied, loss: float) -> Bisection:
        changes = tuple(sorted(bad))
        self._suspects = [changes]
        found = self._halved(frozenset(), changes, loss)
        if not found:
            return self._result(Finding.UNDECIDED, reason="contradictory")
        if self.is_ordered:
            return self._proved_in_order(found, bad, loss)
        alone, taken_back = self._extended(found, bad, loss)
        if len(self._suspects) > 1:
            needed = [unit for unit in self._suspects if self._is_needed(unit, bad, loss)]
            if not needed:
                return self._result(Finding.SUSPECTED, reason="not needed")
            if len(needed) < len(self._suspects):
                self._suspects = needed
                alone, taken_back = self._proofs(bad, loss)
        if alone is None or taken_back is None:
            return self._result(Finding.SUSPECTED, alone, taken_back, reason="cannot be tried")
        is_proved = (
            alone[0].answer is Answer.SLOWER
            and taken_back[0].answer is Answer.LIKE
            and taken_back[1].answer is Answer.SLOWER
        )
        if is_proved:
            return self._result(Finding.FOUND, alone, taken_back)
        return self._result(Finding.SUSPECTED, alone, taken_back, reason="not explained")

    def _proved_in_order(self, found: list[Unit], bad: Applied, loss: float) -> Bisection:
        """Prove the culprits of an ordered range, by measuring the states before and after each."""
        units = {(unit[0], unit[-1] + 1): unit for unit in sorted(found)}
        edges = sorted({0, len(bad), *itertools.chain.from_iterable(units)})
        sides = [frozenset(range(edge)) for edge in edges]
        limits = self._limits(loss * _EXPLAINED)
        self._suspects = [*units.values()]
        steps = self._compare(sides, limits, _PATIENCE)
        if steps is None:
            return self._result(Finding.SUSPECTED, reason="cannot be tried")
        spans = dict(zip(itertools.pairwise(edges), steps, strict=True))
        slower = {at for at in units if spans[at].answer is Answer.SLOWER}
        rest = [step for at, step in spans.items() if at not in slower]
        if not slower or any(step.answer is not Answer.LIKE for step in rest):
            return self._result(Finding.SUSPECTED, reason="not explained")
        self._suspects = [units[at] for at in slower]
        # The weakest of the culprits, and the largest loss of what is left.
        alone = min((spans[at] for at in slower), key=attrgetter("loss"))
        return self._result(Finding.FOUND, [alone], sorted(rest, key=attrgetter("loss"))[-1:])

    def _halved(self, base: Applied, changes: Unit, loss: float) -> list[Unit]:
        """Return the culprits among changes that are applied to `base` in order, by halving."""
        if len(changes) == 1:
            return [changes]
        limits = self._limits(loss * _LIKE)
        for at in self._splits(changes):
            middle, top = base.union(changes[:at]), base.union(changes)
            if middle in self.turns.broken:
                continue
            steps = self._compare((base, middle, top), limits)
            if steps is None:
                continue
            parts = ((base, changes[:at]), (middle, changes[at:]))
            followed = [
                (start, part, step.loss)
                for (start, part), step in zip(parts, steps, strict=True)
                if _is_followed(step, limits)
            ]
            self._suspects = [unit for unit in self._suspects if unit != changes]
            self._suspects += [part for _, part, _ in followed]
            return [unit for where in followed for unit in self._halved(*where)]
        return [changes]

    def _splits(self, changes: Unit) -> Iterator[int]:
        """Yield indices at which to split, middle first; inside of a group only if it is alone."""
        inner = range(1, len(changes))
        groups = [self.groups[change] for change in changes]
        between = [at for at in inner if groups[at - 1] != groups[at]]
        places = sorted(between or inner, key=lambda at: abs(2 * at - len(changes)))
        yield from places if self.is_ordered else places[:_SPLITS]

    def _extended(
        self, found: list[Unit], bad: Applied, loss: float
    ) -> tuple[Steps | None, Steps | None]:
        """Search for further culprits that act only with the others or are hidden by them.

        Return the proofs of all culprits: with them alone, and without them.
        """
        for _ in range(_EXTENSIONS):
            alone, taken_back = self._proofs(bad, loss)
            applied = _union(found)
            rest = tuple(sorted(bad - applied))
            more: list[Unit] = []
            # Searched only if a large part is missing, of which each culprit has some.
            if rest and alone and alone[1].answer is Answer.SLOWER:
                more = self._halved(applied, rest, alone[1].loss)
            elif rest and taken_back and taken_back[0].answer is Answer.SLOWER:
                more = self._halved(frozenset(), rest, taken_back[0].loss)
            if not more:
                break
            found = [*found, *more]
            self._suspects = found
        self._suspects = found
        return alone, taken_back

    def _proofs(self, bad: Applied, loss: float) -> tuple[Steps | None, Steps | None]:
        culprits, limits = _union(self._suspects), self._limits(loss * _EXPLAINED)
        return (
            self._compare((frozenset(), culprits, bad), limits, _PATIENCE),
            self._compare((frozenset(), bad - culprits, bad), limits, _PATIENCE),
        )

    def _is_needed(self, unit: Unit, bad: Applied, loss: float) -> bool:
        """True if applying the culprit alone loses speed, or if removing it alone gains speed."""
        limits = self._limits(loss * _LIKE)
        pairs = ((frozenset[int](), frozenset(unit)), (bad.difference(unit), bad))
        tried = (self._compare(pair, limits) for pair in pairs)
        return any(steps is not None and steps[0].answer is Answer.SLOWER for steps in tried)

    def _limits(self, like: float) -> Limits:
        loss = 0.0 if self._loss is None else self._loss.value
        slower = loss * _SLOWER
        return Limits(slower=slower, like=max(like, 1.5 * slower))

    def _compare(self, sides: Sequence[Applied], limits: Limits, patience: int = 1) -> Steps | None:
        if self.trials >= self.most_trials:
            raise OutOfBudgetError("trials")
        self.trials += 1
        steps = self.turns.compare(sides, limits, patience)
        self.tell(self.trials, sides, steps)
        return steps

    def _result(
        self,
        finding: Finding,
        alone: Steps | None = None,
        taken_back: Steps | None = None,
        *,
        reason: Reason | None = None,
    ) -> Bisection:
        return Bisection(
            finding=finding,
            loss=None if self._loss is None else (-self._loss).relative_change(),
            culprits=tuple(sorted(self._suspects)),
            alone=alone[0].speed if alone else None,
            taken_back=taken_back[0].speed if taken_back else None,
            trials=self.trials,
            reason=reason,
        )


def _is_followed(step: Step, limits: Limits) -> bool:
    """True if a half may contain a culprit; if the runs are undecided, their mean decides."""
    is_open = step.answer is Answer.OPEN and step.loss > limits.like
    return step.answer is Answer.SLOWER or is_open


def _union(units: Sequence[Unit]) -> Applied:
    return frozenset(change for unit in units for change in unit)
