"""How many nodes a job takes, and how each of them is divided."""

from dataclasses import dataclass
from typing import Literal

from gpuscale.clusters import ClusterProfile
from gpuscale.errors import UsageError

Launcher = Literal["local", "slurm", "mpirun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What a job asks for; all of its nodes alike."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    cores_per_task: int | None
    """None where the profile does not know how many cores a node has."""
    launcher: Launcher


def allocation_for(
    profile: ClusterProfile, gpus: tuple[int, ...], *, gpus_per_node: int | None = None
) -> Allocation:
    """The smallest allocation on which the largest of the numbers of GPUs can be measured.

    Within a node one task gets all its cores and starts the ranks itself; across nodes there is
    a task for each GPU.

    Args:
        profile: The cluster.
        gpus: The numbers of GPUs to be measured.
        gpus_per_node: Of the nodes; None for what the profile knows.

    Raises:
        UsageError: the cluster cannot give that, or nobody said how many GPUs a node has.
    """
    per_node = gpus_per_node or profile.node.gpus
    if per_node is None:
        raise UsageError(
            f"the profile {profile.name} does not know how many GPUs a node has; "
            "add --gpus-per-node N"
        )
    largest = max(gpus)
    if largest <= per_node:
        asked = per_node if profile.node.whole else largest
        return Allocation(
            nodes=1,
            gpus_per_node=asked,
            tasks_per_node=1,
            cores_per_task=_share(profile.node.cores, asked, per_node),
            launcher="local",
        )
    if profile.scheduler == "sge":
        raise UsageError(
            f"--gpus: {largest} GPUs are more than the {per_node} of a node of {profile.name}, and "
            f"jobs under SGE stay within one; ask for at most {per_node}"
        )
    return Allocation(
        nodes=-(-largest // per_node),
        gpus_per_node=per_node,
        tasks_per_node=per_node,
        cores_per_task=_share(profile.node.cores, 1, per_node),
        launcher="slurm" if profile.scheduler == "slurm" else "mpirun",
    )


def _share(cores: int | None, gpus: int, per_node: int) -> int | None:
    return None if cores is None else max(1, cores * gpus // per_node)
