"""Find the changes that make an environment slower, and confirm each of them by measurement.

Halving: compare three environments, which apply none, the first half, and all of the changes.
Search the first half further if the second environment is slower than the first, and the second
half if the third is slower than the second. This finds several independent culprits at once.
Extension: if the culprits alone cause only a part of the slowdown, apply them and search the other
changes for those that act only together with them. If a slowdown remains without the culprits,
search the other changes alone, because culprits can hide others' effects. Drop needless culprits.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpuscale.analysis.estimates import Difference
from gpuscale.campaigns.bisection.kinds import Applied
from gpuscale.campaigns.bisection.trials import (
    AlternatingTrials,
    OutOfBudgetError,
    SpeedDifference,
    TrialAnswer,
    TrialLimits,
)
from gpuscale.records.cause import Bisection, BisectionFinding, Reason

_AT_FIRST = TrialLimits(slower=0.01, like=0.02)
"""Limits for the first trial, of GOOD against BAD, which decides whether there is any loss."""
_SLOWER, _LIKE, _EXPLAINED = 0.1, 0.25, 1 / 3
"""Fractions of the whole loss: minimum for a culprit, maximum in a half that is not searched, and
maximum that the culprits may leave unexplained."""
_SPLITS = 6
"""Number of split positions to try before changes count as inseparable."""
_EXTENSIONS = 6
_PATIENCE = 2
"""Factor that multiplies the maximum number of runs in trials that confirm a culprit."""

_SURE = 0.99

Steps = Sequence[SpeedDifference]
Unit = tuple[int, ...]
"""Indices of changes that cannot be tried separately; usually a single one."""


@dataclass(slots=True, kw_only=True)
class Search:
    """A search for changes that cause a slowdown; it tries those of a group together first."""

    turns: AlternatingTrials
    groups: Sequence[int]
    most_trials: int
    is_ordered: bool = False
    tell: Callable[[int, Sequence[Applied], Steps | None], None]
    """Callback after each trial, with the trial's number, its environments, and the differences
    between successive environments (None if an environment cannot be measured)."""
    trials: int = 0
    _loss: Difference | None = None
    _suspects: list[Unit] = field(default_factory=list)

    def run(self) -> Bisection | None:
        """Find the culprits and confirm them; return None if GOOD or BAD cannot be measured."""
        good, bad = frozenset[int](), frozenset(range(len(self.groups)))
        try:
            if (ends := self._compare((good, bad), _AT_FIRST)) is None:
                return None
            self._loss = loss = ends[0].difference
            if ends[0].answer is TrialAnswer.SLOWER:
                return self._searched(bad, loss.value)
        except OutOfBudgetError as spent:
            finding = BisectionFinding.SUSPECTED if self._suspects else BisectionFinding.UNDECIDED
            return self._result(finding, reason=spent.budget)
        if ends[0].answer is TrialAnswer.OPEN:
            return self._result(BisectionFinding.UNDECIDED, reason="noise")
        half = loss.half_width(_SURE)
        is_faster = half is not None and loss.value + half < -_AT_FIRST.slower
        return self._result(BisectionFinding.REVERSED if is_faster else BisectionFinding.SAME)

    def _searched(self, bad: Applied, loss: float) -> Bisection:
        changes = tuple(sorted(bad))
        self._suspects = [changes]
        if not (found := self._halved(frozenset(), changes, loss)):
            return self._result(BisectionFinding.UNDECIDED, reason="noise")
        if self.is_ordered:
            return self._proved_in_order(found, bad, loss)
        alone, taken_back = self._extended(found, bad, loss)
        if len(self._suspects) > 1:
            needed = [unit for unit in self._suspects if self._is_needed(unit, bad, loss)]
            if not needed:
                return self._result(BisectionFinding.SUSPECTED, reason="noise")
            if len(needed) < len(self._suspects):
                self._suspects = needed
                alone, taken_back = self._proofs(bad, loss)
        reason: Reason = "cannot be tried"
        if alone is not None and taken_back is not None:
            answers = (alone[0].answer, taken_back[0].answer, taken_back[1].answer)
            if answers == (TrialAnswer.SLOWER, TrialAnswer.LIKE, TrialAnswer.SLOWER):
                return self._result(BisectionFinding.FOUND, alone, taken_back)
            reason = "not explained"
        return self._result(BisectionFinding.SUSPECTED, alone, taken_back, reason=reason)

    def _proved_in_order(self, found: list[Unit], bad: Applied, loss: float) -> Bisection:
        """Confirm culprits among ordered changes by measuring just before and just after each."""
        units = {(unit[0], unit[-1] + 1): unit for unit in sorted(found)}
        edges = sorted({0, len(bad), *itertools.chain.from_iterable(units)})
        sides = [frozenset(range(edge)) for edge in edges]
        limits = self._limits(loss * _EXPLAINED)
        self._suspects = [*units.values()]
        if (steps := self._compare(sides, limits, _PATIENCE)) is None:
            return self._result(BisectionFinding.SUSPECTED, reason="cannot be tried")
        spans = dict(zip(itertools.pairwise(edges), steps, strict=True))
        slower = {at for at in units if spans[at].answer is TrialAnswer.SLOWER}
        rest = [step for at, step in spans.items() if at not in slower]
        if not slower or any(step.answer is not TrialAnswer.LIKE for step in rest):
            return self._result(BisectionFinding.SUSPECTED, reason="not explained")
        self._suspects = [units[at] for at in slower]
        # Report the smallest loss of any culprit, and the largest loss between culprits.
        alone = min((spans[at] for at in slower), key=attrgetter("difference.value"))
        least = sorted(rest, key=attrgetter("difference.value"))[-1:]
        return self._result(BisectionFinding.FOUND, [alone], least)

    def _halved(self, base: Applied, changes: Unit, loss: float) -> list[Unit]:
        """Return the culprits among `changes`; `changes` as a whole slow `base` down by `loss`."""
        if len(changes) == 1:
            return [changes]
        limits = self._limits(loss * _LIKE)
        for at in self._splits(changes):
            middle, top = base.union(changes[:at]), base.union(changes)
            if middle in self.turns.broken:
                continue
            if (steps := self._compare((base, middle, top), limits)) is None:
                continue
            parts = ((base, changes[:at]), (middle, changes[at:]))
            followed = [
                (start, part, step.difference.value)
                for (start, part), step in zip(parts, steps, strict=True)
                if step.answer is TrialAnswer.SLOWER
                or (step.answer is TrialAnswer.OPEN and step.difference.value > limits.like)
            ]
            self._suspects = [unit for unit in self._suspects if unit != changes]
            self._suspects += [part for _, part, _ in followed]
            return [unit for where in followed for unit in self._halved(*where)]
        return [changes]

    def _splits(self, changes: Unit) -> Iterator[int]:
        """Yield indices to split `changes` at, middle first; if possible, only between groups."""
        inner = range(1, len(changes))
        groups = [self.groups[change] for change in changes]
        between = [at for at in inner if groups[at - 1] != groups[at]]
        places = sorted(between or inner, key=lambda at: abs(2 * at - len(changes)))
        yield from places if self.is_ordered else places[:_SPLITS]

    def _extended(
        self, found: list[Unit], bad: Applied, loss: float
    ) -> tuple[Steps | None, Steps | None]:
        """Search for culprits that act only together with `found`, or whose effect `found` hides.

        Store all culprits in `_suspects`. Return the results of two trials: with only the culprits
        applied, and with all other changes applied; None for a trial that cannot be measured.
        """
        for _ in range(_EXTENSIONS):
            alone, taken_back = self._proofs(bad, loss)
            applied = frozenset[int]().union(*found)
            rest = tuple(sorted(bad - applied))
            more: list[Unit] = []
            # Search further only if the culprits leave a large part of the loss unexplained.
            if rest and alone and alone[1].answer is TrialAnswer.SLOWER:
                more = self._halved(applied, rest, alone[1].difference.value)
            elif rest and taken_back and taken_back[0].answer is TrialAnswer.SLOWER:
                more = self._halved(frozenset(), rest, taken_back[0].difference.value)
            if not more:
                break
            found = [*found, *more]
            self._suspects = found
        self._suspects = found
        return alone, taken_back

    def _proofs(self, bad: Applied, loss: float) -> tuple[Steps | None, Steps | None]:
        culprits = frozenset[int]().union(*self._suspects)
        limits = self._limits(loss * _EXPLAINED)
        return (
            self._compare((frozenset(), culprits, bad), limits, _PATIENCE),
            self._compare((frozenset(), bad - culprits, bad), limits, _PATIENCE),
        )

    def _is_needed(self, unit: Unit, bad: Applied, loss: float) -> bool:
        """True if applying only `unit` slows GOOD down, or removing only `unit` speeds BAD up."""
        limits = self._limits(loss * _LIKE)
        pairs = ((frozenset[int](), frozenset(unit)), (bad.difference(unit), bad))
        tried = (self._compare(pair, limits) for pair in pairs)
        return any(steps is not None and steps[0].answer is TrialAnswer.SLOWER for steps in tried)

    def _limits(self, like: float) -> TrialLimits:
        slower = _SLOWER * (0.0 if self._loss is None else self._loss.value)
        return TrialLimits(slower=slower, like=max(like, 1.5 * slower))

    def _compare(
        self, sides: Sequence[Applied], limits: TrialLimits, patience: int = 1
    ) -> Steps | None:
        if self.trials >= self.most_trials:
            raise OutOfBudgetError("trials")
        self.trials += 1
        steps = self.turns.compare(sides, limits, patience)
        self.tell(self.trials, sides, steps)
        return steps

    def _result(
        self,
        finding: BisectionFinding,
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
