"""Compare environments by alternating runs until it is decided which of them are slower."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from gpuscale.analysis.estimates import Difference, Term
from gpuscale.judge.stopping import SequentialPlan
from gpuscale.records import Estimate

Applied = frozenset[int]
"""Indices of the changes that an environment applies to the good environment."""
MakeRun = Callable[[Applied], float | None]
"""Function that executes a run in an environment; returns the log step time, None on failure."""

_PRIOR_DF = 6.0
"""Maximum weight, in degrees of freedom, of the noise estimated from earlier trials."""
_ATTEMPTS = 2
"""Number of successive failed runs after which an environment counts as broken."""


class OutOfBudgetError(Exception):
    """Raised if the budget of trials or time is spent, so that no further run may start."""

    def __init__(self, budget: Literal["trials", "time"]) -> None:
        super().__init__(budget)
        self.budget = budget


class TrialAnswer(StrEnum):
    """Outcome of comparing an environment with its predecessor in a trial."""

    SLOWER = "slower"
    LIKE = "not slower"
    OPEN = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedDifference:
    """The difference in log step time between an environment and its predecessor in a trial."""

    answer: TrialAnswer
    difference: Difference

    @property
    def loss(self) -> float:
        """Difference in log step time; positive if slower than the predecessor."""
        return self.difference.value

    @property
    def speed(self) -> Estimate:
        """The environment's speed relative to that of its predecessor."""
        return (-self.difference).relative_change()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """Limits for the slowdown of an environment, as differences in log step time."""

    slower: float
    """An environment is slower if its slowdown is significantly larger than this."""
    like: float
    """An environment is not slower if its slowdown is significantly smaller than this."""


@dataclass(slots=True)
class AlternatingTrials:
    """Compares environments by alternating runs; sequential tests decide when a trial ends."""

    make_run: MakeRun
    plan: SequentialPlan
    broken: set[Applied] = field(default_factory=set)
    """Environments in which every attempt at a run failed."""
    _squares: float = 0.0
    _df: int = 0
    """Degrees of freedom of `_squares`, the residual sum of squares of all trials so far."""

    def compare(
        self, sides: Sequence[Applied], limits: TrialLimits, patience: int = 1
    ) -> list[SpeedDifference] | None:
        """Compare each environment with the one before it; return None if one cannot be measured.

        `patience` multiplies the number of runs after which an undecided trial ends.
        """
        rounds: list[list[float]] = []
        most = patience * self.plan.most_runs
        rates = replace(self.plan, most_runs=most).rates()
        for count in range(1, most + 1):
            made = self._round(sides, backwards=count % 2 == 0)
            if made is None:
                return None
            rounds.append(made)
            if count < self.plan.fewest_runs:
                continue
            steps = [
                _decided(each, limits, rates.significance, rates.confidence)
                for each in self._differences(rounds)
            ]
            if all(step.answer is not TrialAnswer.OPEN for step in steps):
                break
        squares, df = _residuals(rounds)
        self._squares, self._df = self._squares + squares, self._df + df
        return steps

    def _round(self, sides: Sequence[Applied], *, backwards: bool) -> list[float] | None:
        """Measure each environment's log step time once; return None if one cannot be measured.

        The caller reverses the order (`backwards`) in every other round, to cancel a drift.
        """
        made: dict[int, float] = {}
        for position in sorted(range(len(sides)), reverse=backwards):
            side = sides[position]
            if side in self.broken:
                return None
            # The first attempt that succeeds counts.
            logs = (self.make_run(side) for _ in range(_ATTEMPTS))
            log_s = next((log_s for log_s in logs if log_s is not None), None)
            if log_s is None:
                self.broken.add(side)
                return None
            made[position] = log_s
        return [made[position] for position in range(len(sides))]

    def _differences(self, rounds: Sequence[Sequence[float]]) -> list[Difference]:
        """Return the differences of successive environments, with noise pooled over all trials."""
        squares, df = _residuals(rounds)
        total: float = df
        if self._df:
            weight = min(_PRIOR_DF, self._df)
            squares, total = squares + weight * self._squares / self._df, df + weight
        part = Term(variance=2 * squares / total / len(rounds), df=total)
        means = [statistics.fmean(side) for side in zip(*rounds, strict=True)]
        return [
            Difference(value=after - before, parts=(part,))
            for before, after in itertools.pairwise(means)
        ]


def _residuals(rounds: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the residual sum of squares about round and side means, and degrees of freedom."""
    sides = [statistics.fmean(side) for side in zip(*rounds, strict=True)]
    whole = statistics.fmean(sides)
    squares = math.fsum(
        (value - side - statistics.fmean(one) + whole) ** 2
        for one in rounds
        for value, side in zip(one, sides, strict=True)
    )
    return squares, (len(rounds) - 1) * (len(sides) - 1)


def _decided(
    difference: Difference, limits: TrialLimits, significance: float, confidence: float
) -> SpeedDifference:
    lower = difference.lower_bound(1 - significance)
    half = difference.half_width((1 + confidence) / 2)
    answer = TrialAnswer.OPEN
    if lower is not None and lower > limits.slower:
        answer = TrialAnswer.SLOWER
    elif half is not None and difference.value + half < limits.like:
        answer = TrialAnswer.LIKE
    return SpeedDifference(answer=answer, difference=difference)
