"""The environment of a measurement: the machine, its software, and the job."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.base.host import UNRECORDED, is_gpu
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.text import counted
from gpuscale.records.record import Line, Name, Number, PositiveCount, Record

Limit = Annotated[float, Meta(ge=0, le=1e6)]
CACHE_VARIABLES = frozenset(
    {"CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"}
    | {"TORCH_EXTENSIONS_DIR"}
)
"""Environment variables that name cache folders; torch's defaults may contain the login name."""


class GpuDevice(Record, frozen=True, kw_only=True):
    """One GPU that the ranks can use; `index` is the CUDA device number in this job."""

    index: Number
    name: Name
    uuid: Line | None = None
    smi: Line | None = None
    """Source of telemetry, `NVML` or `AMD SMI`."""
    smi_index: Number | None = None
    """Device number in nvidia-smi or amd-smi."""
    partition: Line | None = None
    """Partition modes of an AMD GPU, such as `CPX/NPS4`."""
    pci_address: Line | None = None
    numa_node: Number | None = None
    power_limit_w: Limit | None = None
    """Power limit that the driver enforces."""
    application_clock_mhz: Limit | None = None
    """SM clock set for applications (`nvidia-smi -ac`); newer drivers may not report it."""
    max_clock_mhz: Limit | None = None
    """Highest SM clock that the GPU supports."""
    firmware: Line | None = None
    """Versions of the GPU's firmware, such as `VBIOS 96.00.74, GSP 575.57`."""


class Node(Record, frozen=True, kw_only=True):
    """One node of a job with several nodes, as seen by the ranks on that node."""

    host: Name
    cpu_model: Line | None = None
    cpu_count: PositiveCount | None = None
    gpus: tuple[GpuDevice, ...] = ()


class Environment(Record, frozen=True, kw_only=True):
    """The machine and software of one invocation of gpuscale; a field is None if unknown."""

    device: Name
    host: Name | None = None
    system: Line | None = None
    """System and partition of imported results, as the other tool named them: `lumi:gpu`."""
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
    """HIP version of a PyTorch build for AMD GPUs, which has no CUDA version."""
    miopen_version: Line | None = None
    rccl_version: Line | None = None
    driver_version: Line | None = None
    packages: Mapping[Line, Line] = {}
    """Python packages used for training: the version and, if not from an index, the origin."""
    packages_absent: Line | None = None
    """Reason why `packages` is empty; None if it is not empty."""
    kernel: Line | None = None
    variables: Mapping[Line, Line] = {}
    """Environment variables that begin with `CUBLAS_`, `CUDA_`, `CUDNN_`, `CXI_`, `FI_`, `GLOO_`,
    `HIP_`, `HSA_`, `MIOPEN_`, `MKL_`, `MPICH_`, `NCCL_`, `NVIDIA_TF32_OVERRIDE`, `OMP_`,
    `PYTORCH_`, `RCCL_`, `ROCR_`, `TORCH_`, `TORCHINDUCTOR_` or `UCX_`, except for folders of
    caches; no others, such as those of a script."""
    cases_revision: Line | None = None
    """Git revision of the repository with the cases; `-dirty` is added for uncommitted changes."""
    scripts: Mapping[Line, Line] = {}
    """Start of the SHA-256 of each file with a case, and of each script that a command names."""
    scheduler: Line | None = None
    job_id: Line | None = None
    launcher: Line | None = None
    """Launcher that starts the ranks: `local`, `slurm` or `mpirun`."""
    cpu_bind: Line | None = None
    """Value of `--cpu-bind`, such as `none` or `mask_cpu:0xff,0xff00`."""
    nodes: tuple[Node, ...] = ()
    """Nodes of the launcher, if several; `host`, the CPU fields and `gpus` describe the first."""

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Distinct names of the GPUs in `gpus`, in order of first occurrence."""
        return tuple(dict.fromkeys(gpu.name for gpu in self.gpus))

    def with_software_of(self, other: "Environment") -> "Environment":
        """Return a copy with packages and versions from `other`, except for the driver version."""
        names = {name for name in self.__struct_fields__ if name.endswith("_version")}
        names = (names | {"packages", "packages_absent"}) - {"driver_version"}
        return msgspec.structs.replace(self, **{name: getattr(other, name) for name in names})

    @property
    def placed_gpus(self) -> Iterator[tuple[str | None, GpuDevice]]:
        """Yield host name (None if unknown) and GPU, twice for a GPU in `gpus` and `nodes`."""
        yield from ((self.host, gpu) for gpu in self.gpus)
        yield from ((node.host, gpu) for node in self.nodes for gpu in node.gpus)

    @property
    def node_count(self) -> int:
        """Number of nodes available to a run."""
        return max(1, len(self.nodes))

    @property
    def gpus_per_node(self) -> int:
        """Smallest number of GPUs on any node."""
        return min((len(node.gpus) for node in self.nodes), default=len(self.gpus))

    @property
    def cores_per_node(self) -> int:
        """Smallest number of CPU cores on any node; an unknown number counts as 1."""
        return min((node.cpu_count or 1 for node in self.nodes), default=self.cpu_count or 1)

    def nodes_for(self, gpus: int) -> int:
        """Return the number of nodes needed for `gpus` GPUs or CPU ranks, at most `node_count`."""
        here = self.gpus_per_node if is_gpu(self.device) else self.cores_per_node
        return min(self.node_count, math.ceil(gpus / max(1, here)))

    @property
    def data_workers(self) -> int:
        """Default number of data-loader processes per rank; 0 on CPU."""
        if self.device == "cpu":
            return 0
        return max(1, min(8, (self.cpu_count or 1) // max(1, len(self.gpus)) - 1))

    def ranks_per_gpu(self, strategy: str, gpus: int) -> int | None:
        """Return the most ranks on any GPU; None if that is 1, or for CPU or multi-node runs."""
        if self.device == "cpu" or self.nodes or not self.gpus:
            return None
        ranks = math.ceil(STRATEGIES[strategy].processes(gpus) / len(self.gpus))
        return ranks if ranks > 1 else None

    def devices_of_run(self, run: int, gpus: int) -> tuple[int, ...]:
        """Return a run's CUDA devices in order of local rank, the same on all nodes; empty on CPU.

        Successive runs use successive blocks of devices, so that 1-GPU runs do not all use GPU 0.
        Of 4 GPUs, 2-GPU runs use either 0 and 1, or 2 and 3; GPUs 1 and 2 may have a slower link.
        """
        count = self.gpus_per_node
        if self.device == "cpu" or not count:
            return ()
        on_each_node = math.ceil(gpus / math.ceil(gpus / count))
        blocks = count // math.gcd(count, on_each_node)
        # Runs also rotate over the nodes. After each common cycle of nodes and blocks, the blocks
        # shift by one; otherwise only some devices of each node would ever be measured.
        rounds = (run - 1) // math.lcm(self.node_count, blocks)
        ahead = rounds % math.gcd(self.node_count, blocks)
        start = (run - 1 + ahead) * on_each_node
        return tuple((start + position) % count for position in range(gpus))

    @property
    def hardware_label(self) -> str:
        """Short description of the hardware, such as `4× Tesla V100`; empty if not recorded."""
        if self.system is not None:
            return self.system
        across = f"{len(self.nodes)} nodes with " if len(self.nodes) > 1 else ""
        if self.gpus:
            return f"{across}{len(self.gpus)}× {' + '.join(self.gpu_names)}"
        if self.device == UNRECORDED and self.cpu_model is None:
            return ""
        cores = "CPU" if self.cpu_count is None else counted(self.cpu_count, "CPU core")
        return across + (f"{cores} ({self.cpu_model})" if self.cpu_model else cores)


def without_software(reason: str | None = None) -> Environment:
    """Return an environment whose software is unknown; `reason` says why, if that is known."""
    return Environment(device=UNRECORDED, packages_absent=reason)


def gpu_places(environments: Iterable[Environment]) -> dict[str, str]:
    """Return the location of each GPU by UUID, such as `GPU 3 at 00000000:C1:00.0 of node1`."""
    return {
        gpu.uuid: f"GPU {gpu.smi_index} at {gpu.pci_address} of {host}"
        for environment in environments
        for host, gpu in environment.placed_gpus
        if gpu.uuid and gpu.smi_index is not None and gpu.pci_address
    }


class EnvironmentChange(msgspec.Struct, frozen=True, kw_only=True):
    """A field, setting, package or environment variable that differs between environments."""

    name: str
    """Name of the field, setting, package or variable, not yet in words for people."""
    before: tuple[str, ...]
    """Previous values; empty if there were none."""
    after: tuple[str, ...]
    host: str | None = None
    """Host that the change concerns; None if it concerns all hosts."""
    nodes: tuple[str, ...] = ()
    """Hosts with the new values; empty if all nodes have them."""
    of_nodes: int | None = None
    """Number of nodes whose value is known; None if the value is not recorded per node."""
