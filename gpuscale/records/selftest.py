"""The trials of `gpuscale selftest`, and their results on a machine."""

from typing import Literal

import msgspec

from gpuscale.records.cause import CauseKind
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.point import Estimate, Rate


class OverheadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Asked of the ranks beside a run's request."""

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
    """One rank's clock over one fresh start of all ranks."""

    steps_per_window: int
    pairs: tuple[OverheadPair, ...]


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


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault made on purpose, at one size."""

    name: str
    """The fault in words: `data stall`."""
    size: float
    """By what part of a step's time it makes a step longer."""
    injection: str
    """The kind of `--inject`."""
    kind: CauseKind
    """The cause that it should be put down to."""


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rates at which a fault was found and named."""

    fault: Fault
    found: Rate | None
    """Trials in which a row that it strikes was called regressed; None where none was judged."""
    named: Rate | None
    """Of those found, in how many it was the first cause of the row on the most GPUs."""


class DetectableLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest loss of a row that is found 19 times in 20, median over the comparisons."""

    key: EntryKey
    loss: float


class TrialsReport(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of false alarms and faults on a machine."""

    configuration: Configuration
    environment: Environment
    gpus: tuple[int, ...]
    runs_per_block: int
    comparisons: int
    """Of identical measurements, that could be judged."""
    false_alarms: Rate | None
    """Rows called regressed although nothing was changed."""
    detectable_losses: tuple[DetectableLoss, ...]
    faults: tuple[FaultResult, ...]
    not_tried: tuple[str, ...]
    """Faults that this machine or case cannot have, each with the reason."""
    runs: int
    failed_runs: int
    """Unsteady ones included."""
    overhead: OverheadReport
    wall_s: float
