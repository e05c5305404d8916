"""What measuring costs: gpuscale's windows in turn with a bare training loop."""

from typing import Literal

import msgspec

from gpuscale.records.configuration import Configuration
from gpuscale.records.environment import Environment
from gpuscale.records.estimate import Estimate
from gpuscale.records.run import Failure


class OverheadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher asks of the ranks beside a run's request."""

    pairs: int
    """Windows of each kind, in turn."""
    sampler_pid: int | None
    """The sampling process, which pauses while the bare loop runs; None without one."""


class OverheadPair(msgspec.Struct, frozen=True, kw_only=True):
    """The same number of steps made twice; seconds from a common start until they were done."""

    measured_s: float
    """As gpuscale measures, with everything that it does from one window to the next."""
    bare_s: float
    """By a bare loop."""


class OverheadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's clock saw."""

    rank: int
    steps_per_window: int
    pairs: tuple[OverheadPair, ...]


class OverheadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh start of all ranks; each pair has the times of the slowest rank."""

    configuration: Configuration
    gpus: int
    steps_per_window: int | None
    """None where the run failed."""
    pairs: tuple[OverheadPair, ...]
    failure: Failure | None = None


class OverheadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The overhead on one number of GPUs."""

    gpus: int
    runs: int
    pairs: int
    """Of all runs together."""
    step_time_s: float
    """Of the bare loop."""
    ratio: Estimate
    """Time as measured over time of the bare loop."""
    limit: float
    """The ratio that gpuscale holds to."""
    verdict: Literal["within", "above", "not decided"]
    reason: str = ""
    """Why it is not decided; empty where it is."""


class OverheadReport(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of the overhead."""

    configuration: Configuration
    environment: Environment
    results: tuple[OverheadResult, ...]
    wall_s: float
