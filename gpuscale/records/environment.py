"""Where a measurement was made: the machine, its software, and the job it ran in."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.records.record import Bytes, Line, Name, Number, PositiveCount, Record

Limit = Annotated[float, Meta(ge=0, le=1e6)]


class GpuDevice(Record, frozen=True, kw_only=True):
    """One device that the ranks can use, numbered as CUDA numbers it in this job."""

    index: Number
    name: Name
    uuid: Line | None = None
    smi_index: Number | None = None
    """As nvidia-smi numbers it, which counts all GPUs of the machine."""
    pci_address: Line | None = None
    memory_bytes: Bytes | None = None
    power_limit_w: Limit | None = None
    """That the driver enforces."""
    application_clock_mhz: Limit | None = None
    """Of the SMs, as set for applications (`nvidia-smi -ac`); newer drivers may not tell it."""
    max_clock_mhz: Limit | None = None
    """Of the SMs."""


class Node(Record, frozen=True, kw_only=True):
    """One node of a job whose runs go across nodes, as the ranks on it see it."""

    host: Name
    cpu_model: Line | None = None
    cpu_count: PositiveCount | None = None
    gpus: tuple[GpuDevice, ...] = ()


class Environment(Record, frozen=True, kw_only=True):
    """The machine and the software stack of one invocation; None is what is not known."""

    device: Name
    host: Name | None = None
    cpu_model: Line | None = None
    cpu_count: PositiveCount | None = None
    gpus: tuple[GpuDevice, ...] = ()
    python_version: Line | None = None
    torch_version: Line | None = None
    torchvision_version: Line | None = None
    lightning_version: Line | None = None
    cuda_version: Line | None = None
    cudnn_version: Line | None = None
    nccl_version: Line | None = None
    rocm_version: Line | None = None
    """HIP's version in place of CUDA's, for a torch that was built for AMD GPUs."""
    miopen_version: Line | None = None
    rccl_version: Line | None = None
    driver_version: Line | None = None
    kernel: Line | None = None
    variables: Mapping[Line, Line] = msgspec.field(default_factory=dict)
    """`NCCL_*`, `OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES` and the like, where they are set."""
    cases_revision: Line | None = None
    """Git revision of the repository of the cases, with `-dirty` for uncommitted changes."""
    scheduler: Line | None = None
    job_id: Line | None = None
    launcher: Line | None = None
    """The starter of the ranks: `local`, `slurm` or `mpirun`."""
    nodes: tuple[Node, ...] = ()
    """All nodes of the job, where the launcher reaches more than its own; `host`, the CPU fields
    and `gpus` are then those of the first."""

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The models of the GPUs, each once, in order."""
        return tuple(dict.fromkeys(gpu.name for gpu in self.gpus))

    @property
    def placed_gpus(self) -> Iterator[tuple[str | None, GpuDevice]]:
        """The GPUs of all nodes, each with its host; those of the first node come twice."""
        yield from ((self.host, gpu) for gpu in self.gpus)
        yield from ((node.host, gpu) for node in self.nodes for gpu in node.gpus)

    @property
    def node_count(self) -> int:
        """Nodes that a run can have."""
        return max(1, len(self.nodes))

    @property
    def gpus_per_node(self) -> int:
        """GPUs that a run can have on each node: as many as every node has."""
        return min((len(node.gpus) for node in self.nodes), default=len(self.gpus))

    @property
    def cores_per_node(self) -> int:
        """CPU cores that a run can have on each node, 1 where that is not known."""
        return min((node.cpu_count or 1 for node in self.nodes), default=self.cpu_count or 1)

    @property
    def hardware_label(self) -> str:
        """The machine in words: `4× Tesla V100`, `2 nodes with 4× A100`, `2 CPU cores (Xeon …)`."""
        across = f"{len(self.nodes)} nodes with " if len(self.nodes) > 1 else ""
        if self.gpus:
            return f"{across}{len(self.gpus)}× {' + '.join(self.gpu_names)}"
        cores = "CPU" if self.cpu_count is None else f"{self.cpu_count} CPU cores"
        return across + (f"{cores} ({self.cpu_model})" if self.cpu_model else cores)


def gpu_places(environments: Iterable[Environment]) -> dict[str, str]:
    """`GPU 3 at 00000000:C1:00.0 of node1`, as nvidia-smi has it, of each known GPU by its UUID."""
    return {
        gpu.uuid: f"GPU {gpu.smi_index} at {gpu.pci_address} of {host}"
        for environment in environments
        for host, gpu in environment.placed_gpus
        if gpu.uuid and gpu.smi_index is not None and gpu.pci_address
    }


class EnvironmentChange(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between environments; `environment_diff` has the words of a name."""

    name: str
    """Of a field or a variable."""
    before: tuple[str, ...]
    """The values there were; empty where nothing like it was."""
    after: tuple[str, ...]
    host: str | None = None
    """Where it is so, if only there."""
