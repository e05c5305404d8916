"""The simulated scenarios, and the figures that are promised for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from validation.simulated_machine import BaselineNights, Loss, LossKind, Scenario, SimulatedMachine

RUN_DEVIATIONS = (0.001, 0.003, 0.01, 0.02, 0.05)
CURRENT_RUNS = (3, 5)
LOSSES = (0.02, 0.05, 0.10)
ALLOCATION_DEVIATION = 0.01
NIGHTS = {
    BaselineNights.SAME_ALLOCATION: 0.0,
    BaselineNights.ONE_NIGHT: ALLOCATION_DEVIATION,
    BaselineNights.SIX_NIGHTS: ALLOCATION_DEVIATION,
}
"""Deviation between allocations that is simulated for each kind of baseline."""
FALSE_ALARMS_ALLOWED = 0.01

_SAME = BaselineNights.SAME_ALLOCATION
_BASELINES = {_SAME: _SAME.value, BaselineNights.ONE_NIGHT: "another night"}
"""Names of the baselines in promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A rate that was promised for all rows of some scenarios taken together."""

    statement: str
    limit: float
    at_most: bool
    """True if the limit is the largest rate allowed; otherwise it is the smallest."""
    scenarios: tuple[Scenario, ...]


def quiet_scenarios() -> tuple[Scenario, ...]:
    """Nights without a loss: every noise, every kind of baseline, and the peculiar machines."""
    plain = [_scenario(*setting) for setting in product(NIGHTS, RUN_DEVIATIONS, CURRENT_RUNS)]
    peculiar = [Scenario(machine=machine, current_runs=3) for machine in _peculiar_machines()]
    return (*plain, *peculiar)


def lossy_scenarios() -> tuple[Scenario, ...]:
    """Nights with a loss: every size and kind, at every noise but the lowest."""
    settings = product(NIGHTS, RUN_DEVIATIONS[1:], CURRENT_RUNS, LossKind, LOSSES)
    return tuple(
        _scenario(nights, deviation, runs, Loss(kind=kind, size=size))
        for nights, deviation, runs, kind, size in settings
    )


def promises() -> tuple[Promise, ...]:
    """Return the promises: at most 1% false alarms for every noise, then losses that must be found.

    Both kinds of losses are promised: every T slower, and only T(8) slower.
    """
    alarms = (
        Promise(
            statement=f"false alarms, {deviation:.1%} noise, {_BASELINES[nights]}",
            limit=FALSE_ALARMS_ALLOWED,
            at_most=True,
            scenarios=tuple(_scenario(nights, deviation, runs) for runs in CURRENT_RUNS),
        )
        for nights, deviation in product(_BASELINES, RUN_DEVIATIONS)
    )
    found = (
        Promise(
            statement=(
                f"{size:.0%} loss of {kind.value}, {deviation:.1%} noise, {runs} : 6 runs, "
                f"{_BASELINES[nights]}"
            ),
            limit=limit,
            at_most=False,
            scenarios=(_scenario(nights, deviation, runs, Loss(kind=kind, size=size)),),
        )
        for limit, size, runs, deviation, nights in (
            (0.95, 0.05, 3, 0.003, BaselineNights.SAME_ALLOCATION),
            (0.80, 0.05, 3, 0.003, BaselineNights.ONE_NIGHT),
            (0.95, 0.10, 5, 0.02, BaselineNights.SAME_ALLOCATION),
        )
        for kind in LossKind
    )
    return (*alarms, *found)


def shares(
    scenarios: Sequence[Scenario], promised: Sequence[Promise], weight: int, total: int
) -> dict[Scenario, int]:
    """Divide about `total` comparisons among the scenarios; each gets at least one.

    Scenarios of a promise, which needs a narrow interval, get `weight` times as many as others.
    """
    preferred = {scenario for promise in promised for scenario in promise.scenarios}
    weights = {scenario: weight if scenario in preferred else 1 for scenario in scenarios}
    unit = total / sum(weights.values())
    return {scenario: max(1, round(unit * count)) for scenario, count in weights.items()}


def _scenario(
    nights: BaselineNights, run_deviation: float, runs: int, loss: Loss | None = None
) -> Scenario:
    machine = SimulatedMachine(
        run_deviation=run_deviation, baseline=nights, allocation_deviation=NIGHTS[nights]
    )
    return Scenario(machine=machine, current_runs=runs, loss=loss)


def _peculiar_machines() -> Iterator[SimulatedMachine]:
    steady = partial(SimulatedMachine, run_deviation=0.003)
    for deviation, declared, text in (
        (0.005, None, "allocations differ by 0.5%"),
        (0.03, 0.03, "allocations differ by 3%, and the baseline declares it"),
        (0.03, None, "allocations differ by 3%, and the baseline declares the default of 1%"),
    ):
        yield steady(allocation_deviation=deviation, declared_deviation=declared, peculiarity=text)
    yield steady(
        baseline=BaselineNights.SIX_NIGHTS,
        allocation_deviation=0.03,
        peculiarity="allocations differ by 3%",
    )
    for run_deviation in (0.003, 0.02):
        yield from _disturbed_machines(run_deviation)


def _disturbed_machines(run_deviation: float) -> Iterator[SimulatedMachine]:
    noisy = SimulatedMachine(run_deviation=run_deviation, allocation_deviation=ALLOCATION_DEVIATION)
    yield replace(noisy, outlying_windows=0.1, peculiarity="1 window in 10 takes 30% longer")
    yield replace(noisy, outlying_runs=0.05, peculiarity="1 run in 20 takes 10% longer")
    yield replace(
        noisy, drift=0.03, peculiarity="the last run of a night takes 3% longer than its first"
    )
    yield replace(
        noisy,
        window_deviation=0.05,
        autocorrelation=0.9,
        peculiarity="windows scatter by 5%, correlated by 0.9",
    )
