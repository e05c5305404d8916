"""Trials of gpuscale on a machine by `gpuscale selftest`, and their results."""

from typing import Literal

import msgspec

from gpuscale.records.cause import CauseKind
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.point import Estimate, Rate


class OverheadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a run that measures the overhead; ranks get it in addition to the request."""

    pairs: int
    """Windows as measured, and as many of the bare loop, in turn."""
    sampler_pid: int | None
    """Process of the sampler, which pauses while the bare loop runs; None without a sampler."""


class OverheadPair(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the same number of steps, measured and bare."""

    measured_s: float
    """With everything that gpuscale does from one window to the next."""
    bare_s: float
    """In a bare training loop."""


class OverheadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Times that one rank measured in one run."""

    steps_per_window: int
    pairs: tuple[OverheadPair, ...]


class OverheadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The overhead on one number of GPUs."""

    gpus: int
    runs: int
    pairs: int
    """Pairs of windows in all runs together."""
    step_time_s: float
    """Median of the bare loop."""
    ratio: Estimate
    """Time with gpuscale, divided by the time of the bare loop."""
    limit: float
    """The largest ratio that gpuscale promises."""
    verdict: Literal["within", "above", "not decided"]
    reason: str = ""
    """Reason for `not decided`; else empty."""


class OverheadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The overhead of measuring on a machine."""

    configuration: Configuration
    environment: Environment
    results: tuple[OverheadResult, ...]
    wall_s: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault made on purpose, at one size."""

    name: str
    """The fault in words: `data stall`."""
    size: float
    """Extra time as a fraction of a step."""
    injection: str
    """The kind of `--inject`."""
    kind: CauseKind
    """The cause that the diagnosis should name."""


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rates at which a fault was found and named."""

    fault: Fault
    found: Rate | None
    """Trials in which an affected row was called regressed; None if none was judged."""
    named: Rate | None
    """Trials found in which it was the first cause of the row on the most GPUs."""


class DetectableLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest loss of a row that is found 19 times in 20, median over the comparisons."""

    key: EntryKey
    loss: float


class TrialsReport(msgspec.Struct, frozen=True, kw_only=True):
    """False alarms, faults found and overhead of gpuscale on a machine."""

    configuration: Configuration
    environment: Environment
    gpus: tuple[int, ...]
    runs_per_block: int
    comparisons: int
    """Comparisons of identical measurements that could be judged."""
    false_alarms: Rate | None
    """Rows called regressed although nothing had changed."""
    detectable_losses: tuple[DetectableLoss, ...]
    faults: tuple[FaultResult, ...]
    not_tried: tuple[str, ...]
    """Faults that this machine or case cannot have, each with the reason."""
    runs: int
    failed_runs: int
    """Runs without a number, unsteady ones included."""
    overhead: OverheadReport
    wall_s: float
