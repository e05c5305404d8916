"""What a job will cost, roughly: nobody knows before it has run."""

from dataclasses import dataclass

from gpuscale.run_defaults import PACINGS
from gpuscale.submission.request import JobRequest

_BESIDE_RUN_S = {"cuda": 25.0, "cpu": 6.0}
"""Starting the ranks, loading kernels, joining, warming up, the checks: a guess, on the high side
for a node of today, on the low side for one whose file system is slow tonight."""
_ACROSS_NODES_S = 10.0
_BESIDE_MEASURING_S = 60.0
"""Starting pytest, describing the machine, comparing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """How long a job takes if nothing goes wrong, and the most it can cost."""

    items: int
    """Fresh starts: of every case, strategy, number of GPUs and run."""
    seconds_an_item: float
    seconds_beside: float
    """Before the first of them and after the last."""
    seconds: float
    limit_s: float
    nodes: int

    @property
    def node_hours(self) -> float:
        """What the job is expected to cost."""
        return self.seconds * self.nodes / 3600

    @property
    def most_node_hours(self) -> float:
        """What it costs at its time limit."""
        return self.limit_s * self.nodes / 3600

    @property
    def fits(self) -> bool:
        """Whether the expected time is within the limit."""
        return self.seconds <= self.limit_s


def estimate_cost(request: JobRequest, *, cases: int) -> CostEstimate:
    """The estimate for a job.

    All its nodes are held from the first item to the last: those on few GPUs leave most idle.

    Args:
        request: The job.
        cases: How many cases it measures.
    """
    measured = request.profile.measure
    run_s = measured.run_seconds or PACINGS[measured.device].run_seconds
    beside_s = _BESIDE_RUN_S[measured.device]
    if request.allocation.nodes > 1:
        beside_s += _ACROSS_NODES_S
    items = cases * len(measured.strategies) * len(request.gpus) * request.runs
    return CostEstimate(
        items=items,
        seconds_an_item=run_s + beside_s,
        seconds_beside=_BESIDE_MEASURING_S,
        seconds=items * (run_s + beside_s) + _BESIDE_MEASURING_S,
        limit_s=request.limit_s,
        nodes=request.allocation.nodes,
    )
