"""Where a measurement was made: the machine, its software, and the job it ran in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscale.records.configuration import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One device that the ranks can use, numbered as CUDA numbers it in this job."""

    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The machine and the software stack of one invocation."""

    device: Device
    host: str
    cpu_model: str | None
    cpu_count: int | None
    gpus: tuple[GpuDevice, ...]
    python_version: str
    torch_version: str
    torchvision_version: str | None = None
    cuda_version: str | None = None
    cudnn_version: str | None = None
    nccl_version: str | None = None
    driver_version: str | None = None
    kernel: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """`NCCL_*`, `OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES` and the like, where they are set."""
    cases_revision: str | None = None
    """Git revision of the repository of the cases, with `-dirty` for uncommitted changes."""
    scheduler: str | None = None
    job_id: str | None = None

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The models of the GPUs, each once, in order."""
        return tuple(dict.fromkeys(gpu.name for gpu in self.gpus))

    @property
    def hardware_label(self) -> str:
        """The machine in words: `4× Tesla V100` or `2 CPU cores (Xeon …)`."""
        if self.device == "cuda" and self.gpus:
            return f"{len(self.gpus)}× {' + '.join(self.gpu_names)}"
        cores = "CPU" if self.cpu_count is None else f"{self.cpu_count} CPU cores"
        return f"{cores} ({self.cpu_model})" if self.cpu_model else cores
