"""Environments whose speed is known, for simulated bisections."""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statements import known

from gpuscale.analysis.estimates import Difference, Term
from gpuscale.campaigns.bisection.kinds import Applied
from gpuscale.campaigns.bisection.search import Search
from gpuscale.campaigns.bisection.trials import AlternatingTrials, MakeRun
from gpuscale.judge.stopping import SequentialPlan
from gpuscale.records.cause import Bisection, BisectionFinding

PLAN = SequentialPlan(fewest_runs=3, most_runs=8)
KINDS = ("one", "two", "three", "partial", "together", "hidden", "helped")


@dataclass(slots=True)
class Machine:
    """Runs whose log step time is the sum of the effects that an environment has, and noise."""

    effect: Callable[[Applied], float]
    noise: float
    rng: random.Random
    drift: float = 0.0
    broken: Callable[[Applied], bool] = lambda _: False
    runs: int = 0

    def make_run(self, applied: Applied) -> float | None:
        self.runs += 1
        if self.broken(applied):
            return None
        return self.effect(applied) + self.drift * self.runs + self.rng.gauss(0, self.noise)

    def log_s(self, state: int) -> float:
        """A run with the first changes, of an environment that is not broken."""
        return known(self.make_run(frozenset(range(state))))


def additive(losses: Mapping[int, float]) -> Callable[[Applied], float]:
    return lambda applied: math.fsum(losses.get(change, 0.0) for change in applied)


class Truth(NamedTuple):
    culprits: frozenset[int]
    effect: Callable[[Applied], float]


def loss_of_a_culprit(noise: float) -> float:
    """Three times the loss that one trial's runs find 19 times in 20."""
    part = Term(variance=2 * noise**2 / PLAN.most_runs, df=math.inf)
    of_plan = Difference(value=0.0, parts=(part,))
    found = known(of_plan.detectable_loss(significance=PLAN.rates().significance))
    return max(-math.log1p(-min(3 * found, 0.7)), 0.03)


def truth(kind: str, changes: int, loss: float, rng: random.Random) -> Truth:
    first, second, third, other = rng.sample(range(changes), 4)
    if kind == "helped":
        return Truth(frozenset({first}), additive({first: 2 * loss, other: -loss}))
    if kind in ("together", "hidden"):
        both = frozenset({first, second})
        needed = 2 if kind == "together" else 1
        return Truth(both, lambda applied: loss * (len(applied & both) >= needed))
    count = {"one": 1, "two": 2, "three": 3, "partial": 2}[kind]
    losses = dict.fromkeys((first, second, third)[:count], loss)
    losses[first] = 3 * loss if kind == "partial" else loss
    return Truth(frozenset(losses), additive(losses))


def searched(
    make_run: MakeRun,
    groups: Sequence[int],
    *,
    trials: int = 200,
    is_ordered: bool = False,
    tried: list[Applied] | None = None,
) -> Bisection | None:
    """What a search finds; `tried` gets the environments of all trials."""
    return Search(
        turns=AlternatingTrials(make_run, PLAN),
        groups=groups,
        most_trials=trials,
        is_ordered=is_ordered,
        tell=lambda _, sides, __: None if tried is None else tried.extend(sides),
    ).run()


def search(machine: Machine, changes: int, *, trials: int = 200) -> Bisection:
    return known(searched(machine.make_run, range(changes), trials=trials))


def culprits(found: Bisection) -> frozenset[int]:
    return frozenset(change for unit in found.culprits for change in unit)


@dataclass(slots=True)
class Tally:
    right: int = 0
    wrong: int = 0
    """Something named as proved that is no culprit."""
    trials: int = 0

    def add(self, found: Bisection, true: Truth) -> None:
        is_found, named = found.finding is BisectionFinding.FOUND, culprits(found)
        self.right += is_found and named == true.culprits
        self.wrong += is_found and not named <= true.culprits
        self.trials += found.trials


def plain_halving(machine: Machine, changes: int) -> frozenset[int]:
    """Halve by single runs: an environment is bad if it is 5 % slower than the good one's run."""
    good = machine.log_s(0)
    low, high = 0, changes
    while high - low > 1:
        middle = (low + high) // 2
        is_slower = machine.log_s(middle) - good > math.log(1.05)
        low, high = (low, middle) if is_slower else (middle, high)
    return frozenset({low})


def triage(machine: Machine, changes: int) -> frozenset[int] | None:
    """Halve by the rule of jax-toolbox-triage's metrics; None if a value stays ambiguous.

    Two values of each end make two normal distributions of one variance. A state is sorted into
    one of them if it is 0.997 likely to be its own, by up to four runs; what is sorted teaches the
    distribution. The last two states are measured twice more.
    """
    sides: dict[bool, list[float]] = {False: [], True: []}

    def evidence(known: list[float], new: list[float]) -> float:
        """Log evidence of new values beside known ones; both sides share their variance."""
        spread = 0.5 * math.fsum(_squares(side) for side in sides.values())
        gap = statistics.fmean(sides[True]) - statistics.fmean(sides[False])
        spread = max(spread, 2e-4 * gap**2)
        shape, count = sum(map(len, sides.values())) / 2, len(new)
        total = len(known) + count
        away = statistics.fmean(new) - statistics.fmean(known)
        more = 0.5 * _squares(new) + len(known) * count * away**2 / (2 * total)
        after = shape + count / 2
        fit = shape * math.log(spread) - after * math.log(spread + more)
        return math.lgamma(after) + fit + 0.5 * (math.log(len(known)) - math.log(total))

    def is_bad(state: int, fewest: int = 1) -> bool | None:
        new: list[float] = []
        while len(new) < 4:
            new.append(machine.log_s(state))
            odds = evidence(sides[True], new) - evidence(sides[False], new)
            if len(new) >= fewest and abs(odds) > math.log(0.997 / 0.003):
                sides[odds > 0].extend(new)
                return odds > 0
        return None

    for is_slow, state in ((False, 0), (True, changes)):
        sides[is_slow] += [machine.log_s(state) for _ in range(2)]
    low, high = 0, changes
    while high - low > 1:
        middle = (low + high) // 2
        answer = is_bad(middle)
        if answer is None:
            return None
        low, high = (low, middle) if answer else (middle, high)
    confirmed = is_bad(high, 2) is True and is_bad(low, 2) is False
    return frozenset({low}) if confirmed else None


def _squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)
