"""Which scenarios `gpuscale selftest --simulate` tries, and which figures were promised."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from gpuscale.records.simulation import (
    BaselineNights,
    Loss,
    LossKind,
    Scenario,
    World,
)

RUN_DEVIATIONS = (0.001, 0.003, 0.01, 0.02, 0.05)
CURRENT_RUNS = (3, 5)
LOSSES = (0.02, 0.05, 0.10)
ALLOCATION_DEVIATION = 0.01
NIGHTS = {
    BaselineNights.SAME_ALLOCATION: 0.0,
    BaselineNights.ONE_NIGHT: ALLOCATION_DEVIATION,
    BaselineNights.SIX_NIGHTS: ALLOCATION_DEVIATION,
}
"""The deviation between allocations with which each kind of baseline is tried."""
FALSE_ALARMS_ALLOWED = 0.01

_BASELINES = {
    BaselineNights.SAME_ALLOCATION: BaselineNights.SAME_ALLOCATION.value,
    BaselineNights.ONE_NIGHT: "another night",
}
"""How promises name the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A rate that was promised for all rows of some scenarios taken together."""

    statement: str
    limit: float
    scenarios: tuple[Scenario, ...]


def quiet_scenarios() -> tuple[Scenario, ...]:
    """Nights without a loss: every noise, every kind of baseline, and the peculiar worlds."""
    plain = [
        Scenario(world=_world(deviation, nights), current_runs=runs)
        for nights, deviation, runs in product(NIGHTS, RUN_DEVIATIONS, CURRENT_RUNS)
    ]
    peculiar = [Scenario(world=world, current_runs=3) for world in _peculiar_worlds()]
    return (*plain, *peculiar)


def lossy_scenarios() -> tuple[Scenario, ...]:
    """Nights with a loss: every size and kind, at every noise but the lowest."""
    return tuple(
        Scenario(
            world=_world(deviation, nights), current_runs=runs, loss=Loss(kind=kind, size=size)
        )
        for nights, deviation, runs, kind, size in product(
            NIGHTS, RUN_DEVIATIONS[1:], CURRENT_RUNS, LossKind, LOSSES
        )
    )


def false_alarm_promises() -> tuple[Promise, ...]:
    """At most 1% of the rows, at every noise, also with a baseline of one other night."""
    return tuple(
        Promise(
            statement=f"false alarms, {deviation:.1%} noise, {_BASELINES[nights]}",
            limit=FALSE_ALARMS_ALLOWED,
            scenarios=tuple(
                Scenario(world=_world(deviation, nights), current_runs=runs)
                for runs in CURRENT_RUNS
            ),
        )
        for nights, deviation in product(
            (BaselineNights.SAME_ALLOCATION, BaselineNights.ONE_NIGHT), RUN_DEVIATIONS
        )
    )


def power_promises() -> tuple[Promise, ...]:
    """The losses that must be found, each where all is slower and where only T(8) is."""
    return tuple(
        Promise(
            statement=(
                f"{size:.0%} loss of {kind.value}, {deviation:.1%} noise, {runs} : 6 runs, "
                f"{_BASELINES[nights]}"
            ),
            limit=limit,
            scenarios=(
                Scenario(
                    world=_world(deviation, nights),
                    current_runs=runs,
                    loss=Loss(kind=kind, size=size),
                ),
            ),
        )
        for limit, size, runs, deviation, nights in (
            (0.95, 0.05, 3, 0.003, BaselineNights.SAME_ALLOCATION),
            (0.80, 0.05, 3, 0.003, BaselineNights.ONE_NIGHT),
            (0.95, 0.10, 5, 0.02, BaselineNights.SAME_ALLOCATION),
        )
        for kind in LossKind
    )


def shares(
    scenarios: Sequence[Scenario], promises: Sequence[Promise], weight: int, total: int
) -> dict[Scenario, int]:
    """How many comparisons each scenario gets, at least one; promised ones get `weight` times.

    Args:
        scenarios: what to deal out to.
        promises: whose scenarios count more, since a promise needs a narrow interval.
        weight: how many times more.
        total: comparisons in all, up to rounding.
    """
    promised = {scenario for promise in promises for scenario in promise.scenarios}
    weights = {scenario: weight if scenario in promised else 1 for scenario in scenarios}
    unit = total / sum(weights.values())
    return {scenario: max(1, round(unit * count)) for scenario, count in weights.items()}


def _world(run_deviation: float, nights: BaselineNights) -> World:
    return World(run_deviation=run_deviation, baseline=nights, allocation_deviation=NIGHTS[nights])


def _peculiar_worlds() -> Iterator[World]:
    for deviation, declared, text in (
        (0.005, None, "allocations differ by 0.5%"),
        (0.03, 0.03, "allocations differ by 3%, and the baseline declares it"),
        (0.03, None, "allocations differ by 3%, and the baseline declares the default of 1%"),
    ):
        yield World(
            run_deviation=0.003,
            baseline=BaselineNights.ONE_NIGHT,
            allocation_deviation=deviation,
            declared_deviation=declared,
            peculiarity=text,
        )
    yield World(
        run_deviation=0.003,
        baseline=BaselineNights.SIX_NIGHTS,
        allocation_deviation=0.03,
        peculiarity="allocations differ by 3%",
    )
    for run_deviation in (0.003, 0.02):
        yield from _disturbed_worlds(run_deviation)


def _disturbed_worlds(run_deviation: float) -> Iterator[World]:
    def world(peculiarity: str, **disturbance: float) -> World:
        return World(
            run_deviation=run_deviation,
            baseline=BaselineNights.ONE_NIGHT,
            allocation_deviation=ALLOCATION_DEVIATION,
            peculiarity=peculiarity,
            **disturbance,
        )

    yield world("1 window in 10 is 30% slower", outlying_windows=0.1)
    yield world("1 run in 20 is 10% slower", outlying_runs=0.05)
    yield world("the last run of a night is 3% slower than its first", drift=0.03)
    yield world(
        "windows scatter by 5%, correlated by 0.9", window_deviation=0.05, autocorrelation=0.9
    )
