"""What is simulated to try the judgement, and how often it erred and found."""

from dataclasses import dataclass
from enum import StrEnum

from gpuscale.records.estimate import Estimate


class BaselineNights(StrEnum):
    """Which nights the baseline's runs come from; tonight's all come from one."""

    SAME_ALLOCATION = "same allocation"
    ONE_NIGHT = "one other night"
    SIX_NIGHTS = "six other nights"


class LossKind(StrEnum):
    """Where a simulated loss strikes."""

    EVERY_N = "T(1) and T(n)"
    """Every number of GPUs of one case: what is slower is slower on one GPU already."""
    LARGEST_N = "T(8) only"
    """The largest number of GPUs of one case: scaling was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How the step times of a machine scatter; all deviations are relative."""

    run_deviation: float
    """Between the medians of runs of one entry in one allocation."""
    baseline: BaselineNights
    allocation_deviation: float = 0.0
    """Of T between allocations; S has half of it, since its two ends share a night."""
    declared_deviation: float | None = None
    """What the baseline file declares for T between allocations; None for the default."""
    window_deviation: float | None = None
    """Between the windows of a run; None where it is that between runs."""
    autocorrelation: float = 0.5
    """Of a window with the next one."""
    outlying_windows: float = 0.0
    """Share of the windows that are slowed."""
    outlying_runs: float = 0.0
    """Share of the runs that are slowed."""
    drift: float = 0.0
    """How much slower the last run of a night is than its first."""
    peculiarity: str = ""
    """What sets the world apart, where it is more than noise; for tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss of throughput: 0.05 is 5% less."""

    kind: LossKind
    size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Comparisons of one kind: a world, numbers of runs, and what was lost."""

    world: World
    current_runs: int
    """Of each entry, tonight."""
    baseline_runs: int = 6
    loss: Loss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many of so many, with the rate and its 95% interval."""

    count: int
    of: int
    rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the judgement did in one scenario; a row is one (case, gpus) of a comparison."""

    scenario: Scenario
    comparisons: int
    false_alarms: Rate
    """Rows without a loss that were called regressed."""
    false_alarm_comparisons: Rate
    """Comparisons with at least one of them."""
    passed: Rate
    """Rows without a loss that were ok or improved."""
    found: Rate | None = None
    """Rows with a loss that were called regressed; None where nothing was lost."""
    named: Rate | None = None
    """Those of them whose finding says rightly what moved."""


class Standing(StrEnum):
    """Whether a figure holds, and whether the simulation is large enough to say so."""

    MET = "met"
    MET_UNSURE = "met, not surely"
    NOT_MET_UNSURE = "not met, not surely"
    NOT_MET = "not met"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A rate that was promised beforehand, and the rate that was found."""

    statement: str
    limit: float
    at_most: bool
    """Whether the limit is the largest rate allowed, or else the smallest."""
    found: Rate

    @property
    def is_met(self) -> bool:
        """Whether the rate that was found is within the limit."""
        value = self.found.rate.value
        return value <= self.limit if self.at_most else value >= self.limit

    @property
    def standing(self) -> Standing:
        """Whether it is met, and whether the interval of the rate agrees."""
        bound = self.found.rate.high if self.at_most == self.is_met else self.found.rate.low
        sure = bound is not None and (bound <= self.limit) == (self.at_most == self.is_met)
        if self.is_met:
            return Standing.MET if sure else Standing.MET_UNSURE
        return Standing.NOT_MET if sure else Standing.NOT_MET_UNSURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All scenarios of one simulation, and the promised figures."""

    seed: int
    quiet: tuple[Outcome, ...]
    """Nights without a loss."""
    lossy: tuple[Outcome, ...]
    figures: tuple[Figure, ...]
    wall_s: float

    @property
    def comparisons(self) -> int:
        """How many comparisons were made in all."""
        return sum(outcome.comparisons for outcome in (*self.quiet, *self.lossy))

    @property
    def is_met(self) -> bool:
        """Whether every promised figure is met."""
        return all(figure.is_met for figure in self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """How one rule did in one scenario."""

    rule: str
    scenario: Scenario
    alarms: Rate
    """Rows with the scenario's loss that were called worse; all rows where nothing was lost."""
    nights: Rate
    """Comparisons with at least one row called worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Several rules on the same simulated nights."""

    seed: int
    comparisons: int
    """For each scenario."""
    outcomes: tuple[RuleOutcome, ...]
