"""Results of `gpuscale selftest`, which tests gpuscale itself on a machine."""

from typing import Literal

import msgspec

from gpuscale.records.cause import CauseKind
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.point import Estimate, Rate


class OverheadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a run that measures gpuscale's overhead; ranks receive it with the run's request."""

    pairs: int
    """Number of pairs of windows, one measured as usual and one of a bare training loop."""
    sampler_pid: int | None
    """Process ID of the sampler, which pauses during bare loops; None if there is no sampler."""


class OverheadPair(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the same number of steps, with and without gpuscale's measurement."""

    measured_s: float
    """Seconds of training plus all of gpuscale's work between one window and the next."""
    bare_s: float
    """Seconds in a bare training loop."""


class OverheadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Overhead measurements of one rank in one run."""

    steps_per_window: int
    pairs: tuple[OverheadPair, ...]
    log_bytes: int | None = None
    """Growth of NCCL's log while the pairs were made; None without a log."""
    evidence_s: float = 0.0
    """Seconds that the evidence of the node and of this rank took, before and after the pairs."""


class OverheadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Overhead of gpuscale's measurement for one number of GPUs."""

    gpus: int
    runs: int
    pairs: int
    """Number of pairs of windows in all runs together."""
    step_time_s: float
    """Median seconds per step of the bare training loop."""
    ratio: Estimate
    """Time with gpuscale, divided by the time of the bare training loop."""
    evidence_s: float
    """Seconds a run that the evidence of the node takes outside of windows; median of the runs."""
    most_evidence_s: float
    """Seconds that the evidence took in the slowest run."""
    log_bytes: int | None
    """Growth of NCCL's logs during the windows of all runs; None without a log."""
    limit: float
    """Upper limit that gpuscale promises for the ratio."""
    verdict: Literal["within", "above", "not decided"]
    reason: str = ""
    """Reason for the verdict; empty if the ratio gives it."""


class OverheadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Overhead of gpuscale's measurement on one machine."""

    configuration: Configuration
    environment: Environment
    results: tuple[OverheadResult, ...]
    wall_s: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a certain size that is injected on purpose."""

    name: str
    """Name of the fault in words, such as `data stall`."""
    size: float
    """Extra time as a fraction of a step."""
    injection: str
    """Kind of fault as `--inject` names it, such as `slow-rank`."""
    kind: CauseKind
    """Cause that the diagnosis should name."""


class FaultResult(msgspec.Struct, frozen=True, kw_only=True):
    """How often a fault was found, and how often it was named correctly."""

    fault: Fault
    found: Rate | None
    """Rate of trials in which an affected row was called regressed; None if no trial was judged."""
    named: Rate | None
    """Rate at which a found fault was the first cause named for the row with the most GPUs."""


class DetectableLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Smallest loss of a row that is detected in 19 of 20 cases; median over the comparisons."""

    key: EntryKey
    loss: float


class TrialsReport(msgspec.Struct, frozen=True, kw_only=True):
    """False alarms, detected faults and overhead of gpuscale on one machine."""

    configuration: Configuration
    environment: Environment
    gpus: tuple[int, ...]
    runs_per_block: int
    comparisons: int
    """Number of judged comparisons between identical measurements."""
    false_alarms: Rate | None
    """Rate of rows called regressed although nothing had changed; None if no row was judged."""
    detectable_losses: tuple[DetectableLoss, ...]
    faults: tuple[FaultResult, ...]
    not_tried: tuple[str, ...]
    """Faults that cannot be injected on this machine or in this case, each with the reason."""
    runs: int
    failed_runs: int
    """Number of runs without a valid result, including runs rejected as unsteady."""
    overhead: OverheadReport
    wall_s: float
