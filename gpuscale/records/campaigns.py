"""Results of campaigns: sweeps over nodes, and bisections."""

from enum import StrEnum
from typing import Literal

import msgspec

from gpuscale.records.scaling import Estimate

NotMeasured = Literal[
    "down", "busy", "failed", "stopped", "not reached", "none alike", "row missing"
]
"""Reasons why a node is not judged: it is down or drained, its job never started, its job or all
its runs failed, the sweep was stopped, its turn never came, too few nodes are of its kind, or only
some rows were measured."""
Reference = Literal["fleet", "past"]


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of measurement on each node: one GPU alone, or all GPUs of the node together."""

    gpus: int
    """Number of GPUs, or of CPU ranks."""
    device: int | None = None
    """Number of the GPU that is measured alone; None if all GPUs of the node are measured."""


class NodeVisit(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one job on one node."""

    node: str
    kind: str
    """Partition and GPU or CPU model, such as `gpu, NVIDIA A100`; kinds are judged separately."""
    job: int = 0
    """Number of the job among the node's jobs in this sweep, from 0."""
    measured_at_s: float
    """Unix time at the middle of the job's runs."""
    step_times_s: tuple[tuple[FleetRow, tuple[float, ...]], ...]
    """Step time of each valid run of each row; a row without valid runs is left out."""
    is_control: bool = False
    """True if the node is remeasured to track the cluster's drift, not because it is suspect."""


class NodeState(StrEnum):
    """The possible verdicts on a node; `NodeVerdict` adds the evidence."""

    SICK = "sick"
    UNCLEAR = "unclear"
    HEALTHY = "healthy"
    NOT_MEASURED = "not measured"


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one node; speeds are relative changes, so −0.05 is 5 % slower."""

    node: str
    state: NodeState
    reason: NotMeasured | None = None
    """Reason why the node is not judged; None if it is judged."""
    detail: str = ""
    """Details of `reason`, from the scheduler or from the first failed run."""
    needs_job: bool = False
    """True if one more job could settle whether the node is sick."""
    speed: Estimate | None = None
    """Speed of `row` relative to `against`, measured by the jobs after the first one if there are
    any; None if the node was not measured."""
    row: FleetRow | None = None
    """The row that shows the loss, or the slowest row of a healthy node."""
    against: Reference | None = None
    """Reference for `speed`: the other nodes (`fleet`), or the node in earlier sweeps (`past`)."""
    jobs: int = 0
    jobs_slow: int = 0
    past: float | None = None
    """Speed on `row` in earlier sweeps, relative to other nodes of the kind; None if unknown."""


class BisectionFinding(StrEnum):
    """Outcome of a bisection."""

    FOUND = "found"
    """The culprits are confirmed: they alone cause the loss, and undoing them removes it."""
    SUSPECTED = "suspected"
    UNDECIDED = "undecided"
    SAME = "same"
    """The bad environment is now as fast as the good one on this machine."""
    REVERSED = "reversed"
    """The bad environment is the faster one."""


Reason = Literal["noise", "trials", "time", "cannot be tried", "not explained"]


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a bisection; speeds are relative changes, so −0.12 is 12 % slower."""

    finding: BisectionFinding
    loss: Estimate | None
    """Relative change of speed from the good to the bad environment; None if not estimated."""
    culprits: tuple[tuple[int, ...], ...] = ()
    """Indices of the culprit changes; changes that cannot be tried separately form one group."""
    alone: Estimate | None = None
    """Speed of the good environment with only the culprits applied, relative to the good one; for
    commits, the speed at the culprit with the smallest loss, relative to the commit before it."""
    taken_back: Estimate | None = None
    """Speed of the bad environment without the culprits, relative to the good one; for commits,
    the change over the stretch of other commits that loses the most speed."""
    trials: int
    reason: Reason | None = None
    """Reason why no culprit is confirmed; None if one is confirmed or there is no loss."""
