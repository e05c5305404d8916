"""What is known of a cluster: its nodes, its scheduler, and what a night measures there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scheduler = Literal["slurm", "sge", "lsf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The GPU nodes, which are all alike."""

    gpus: int | None = None
    """None where only the site knows."""
    cores: int | None = None
    """As the scheduler counts them; a job gets them in proportion to its GPUs."""
    whole: bool = False
    """Whether a job takes whole nodes, however few GPUs it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """How the machine is told from others, from where jobs are submitted; any one is enough."""

    hosts: tuple[str, ...] = ()
    """Patterns of host names, such as `jwlogin*`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files and the text that each holds there, apart from spaces around it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables and patterns of their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What the scheduler is told, and what the job's shell does first."""

    time_limit: str
    """As `HH:MM:SS`."""
    gpu_option: str | None = None
    """The scheduler's option for GPUs, with `{gpus}` for the number on each node."""
    partition: str | None = None
    """Slurm's partition; the queue of SGE and LSF."""
    account: str | None = None
    """Slurm's account; the project of SGE and LSF."""
    options: tuple[str, ...] = ()
    """Further options of the scheduler, as they are."""
    modules: tuple[str, ...] = ()
    modules_remedy: str | None = None
    """What to say where modules must be named and are not; None where `modules` will do."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set in the job."""
    unset: tuple[str, ...] = ()
    """Environment variables that the scheduler sets and that disturb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a night measures: arguments of pytest."""

    cases: tuple[str, ...] = ("bench_cases",)
    strategies: tuple[str, ...] = ("ddp",)
    gpus: tuple[int, ...] = ()
    """Where `--gpus` does not say; empty where it must."""
    runs: int = 3
    device: Literal["cuda", "cpu"] = "cuda"
    size: str = "full"
    run_seconds: float | None = None
    """Time for the windows of a run; None for the default of the device."""
    options: tuple[str, ...] = ()
    """Further arguments of pytest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a night is compared with; without a baseline it is only measured."""

    baseline: str | None = None
    cases: tuple[str, ...] = ()
    """`CASE/STRATEGY`; empty for all."""
    gpus: tuple[int, ...] = ()
    """The numbers of GPUs that the baseline knows; empty for all that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProfile:
    """A cluster as its file describes it."""

    name: str
    """The file's name without its ending: part of the names of jobs and nights."""
    description: str
    scheduler: Scheduler
    job: JobSettings
    node: Node = field(default_factory=Node)
    recognise: Recognition = field(default_factory=Recognition)
    measure: Measured = field(default_factory=Measured)
    judge: Judged = field(default_factory=Judged)
