"""Visits to the nodes of a cluster in a sweep, and the verdict on each node."""

import math
from enum import StrEnum
from typing import Literal

import msgspec

from gpuscale.base.errors import FieldError
from gpuscale.records.point import Estimate

NotMeasured = Literal[
    "down", "busy", "no access", "failed", "stopped", "not reached", "none alike", "row missing"
]
"""Reasons why a node is not judged: the scheduler reports it as down or drained, its job never
started, the user may not use it, its job or all its runs failed, the sweep was stopped, its turn
never came, there are too few nodes of its kind to compare it with, or only some rows were measured.
"""
Doubt = Literal["one job", "not seen again", "nodes differ"]
"""Reasons why a node is unclear: it had only one job, a second job did not show the loss again, or
every job shows a large loss but the other nodes differ too much to prove it."""
Reference = Literal["fleet", "past"]


class FleetRow(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A row that is measured on each node: one GPU alone, or all GPUs of the node together."""

    gpus: int
    """Number of GPUs, or of CPU ranks."""
    device: int | None = None
    """Number of the GPU that is measured alone; None if all GPUs of the node are measured."""


class NodeVisit(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one job on one node."""

    node: str
    kind: str
    """Partition and model of GPU or CPU, such as `gpu, NVIDIA A100`; each kind is judged alone."""
    job: int = 0
    """Number of the job among the node's jobs in this sweep, from 0."""
    measured_at_s: float
    """Middle of the job's runs, in Unix time."""
    step_times_s: tuple[tuple[FleetRow, tuple[float, ...]], ...]
    """Step time of each valid run of each row; a row without valid runs is left out."""
    is_control: bool = False
    """True if the node is measured repeatedly to observe the machine's drift, not on suspicion."""

    def __post_init__(self) -> None:
        runs = dict(self.step_times_s)
        if len(runs) < len(self.step_times_s) or not all(runs.values()):
            raise FieldError("step_times_s", f"expected each row once, with runs, on {self.node}")
        if not all(0 < time_s < math.inf for times in runs.values() for time_s in times):
            raise FieldError("step_times_s", f"expected positive step times, on {self.node}")


class NodeState(StrEnum):
    """The verdict on a node."""

    SICK = "sick"
    UNCLEAR = "unclear"
    HEALTHY = "healthy"
    NOT_MEASURED = "not measured"


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one node; speeds are relative changes, so −0.05 is 5 % slower."""

    node: str
    kind: str | None
    """Kind as in `NodeVisit.kind`; None if the node was never visited."""
    state: NodeState
    reason: NotMeasured | None = None
    """Reason why the node was not measured; None if it was measured."""
    doubt: Doubt | None = None
    """Reason why the node is unclear; None for other states."""
    speed: Estimate | None = None
    """Speed of `row` relative to `against`, from the jobs after the one that raised suspicion; None
    if the node was not measured."""
    row: FleetRow | None = None
    """The row that shows the loss, or the slowest row of a healthy node."""
    against: Reference | None = None
    """Reference of `speed`: the other nodes (`fleet`), or the node in earlier sweeps (`past`)."""
    jobs: int = 0
    """Number of jobs that measured the node."""
    jobs_slow: int = 0
    """Number of these jobs in which the row was slow."""
    past: float | None = None
    """Speed of the row relative to its kind in earlier sweeps; None if there are none."""


class KindSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Typical step time and spread of a kind of node, for single GPUs or for all GPUs of a node."""

    kind: str
    gpus: int
    nodes: int
    step_time_s: float
    """Typical step time, in the middle of the sweep."""
    spread: float
    """Standard deviation between healthy nodes, relative to the step time."""


class FleetVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of a sweep: sick nodes first, and in each state the slowest node first."""

    nodes: tuple[NodeVerdict, ...]
    kinds: tuple[KindSpread, ...]

    def in_state(self, state: NodeState) -> tuple[NodeVerdict, ...]:
        """Return the nodes in one state, the slowest first."""
        return tuple(node for node in self.nodes if node.state is state)
