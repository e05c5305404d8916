"""One run: a fresh start of all ranks of one (case, strategy, gpus), and what it measured."""

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.gpu import GpuSummary
from gpuscale.records.phases import Phases

FailureKind = Literal["raised", "killed", "timeout", "launch", "invalid", "unsteady"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A group of consecutive steps timed as one, from barrier to barrier."""

    time_s: float
    """Seconds of the slowest rank, from the opening barrier to the closing synchronisation."""
    started_at_s: float
    """Unix time at which rank 0 opened the window."""
    busy_s: tuple[float, ...]
    """Seconds of each rank without its wait at the closing barrier, by rank."""
    phases: Phases | None = None
    """Phases of the run's slowest rank by its own pace, in seconds of the whole window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank says of itself after the windows."""

    rank: int
    local_rank: int
    host: str
    devices: tuple[int, ...]
    """CUDA device numbers in this job; empty on CPU."""
    device_uuids: tuple[str, ...]
    parameter_digest: str
    """SHA-256 of all parameters: data-parallel ranks that train together agree."""
    final_loss: float | None
    """The last step's loss; None where it was not a finite number."""
    peak_memory_bytes: int | None
    """Peak of the CUDA allocator over the rank's devices; None on CPU."""
    peak_host_memory_bytes: int | None
    """Peak resident set of the process."""
    pace_s: float | None = None
    """Median seconds per step of this rank alone, without waiting for the others: from the
    unsynchronised windows, or from the others where there is one rank."""
    phases: Phases | None = None
    """Median over the synchronised windows of each phase, in seconds per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run has no result."""

    kind: FailureKind
    message: str
    rank: int | None = None
    host: str | None = None
    detail: str = ""
    """The rank's traceback or last state; empty where it left none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The sampling unit of every statistic here: one fresh start of all ranks."""

    configuration: Configuration
    gpus: int
    index: int
    """1 for the first run of its (case, strategy, gpus)."""
    started_at_s: float
    batch_per_gpu: int
    sample_shape: tuple[int, ...]
    steps_per_window: int | None
    """None, like the fields below, where the run failed before it was known."""
    windows: tuple[Window, ...]
    """Of synchronised training: the ones that count."""
    ranks: tuple[RankReport, ...]
    warmup_steps: int | None
    warmup_s: float | None
    startup_s: float | None
    """Seconds from the launch until every rank had joined the process group."""
    wall_s: float
    gpu_summaries: tuple[GpuSummary, ...] = ()
    telemetry_absent: str | None = None
    """Why there are no GPU summaries; None where there are."""
    failure: Failure | None = None
    unsynced_windows: tuple[Window, ...] = ()
    """The same steps without gradient synchronisation, measured in turn with `windows`."""
    job_id: str | None = None
    """The scheduler's job that made it, which a resumed file has several of; None without one."""

    @property
    def key(self) -> EntryKey:
        """The table row that this run belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def is_valid(self) -> bool:
        """Whether the run ended with windows and passed the checks after them."""
        return self.failure is None and bool(self.windows) and bool(self.steps_per_window)

    @property
    def median_step_time_s(self) -> float:
        """Median over the windows of seconds per step.

        Raises:
            ValueError: the run is not valid and has no step time.
        """
        if not self.is_valid or not self.steps_per_window:
            raise ValueError(f"{self.key.label}, run {self.index} has no valid windows")
        return statistics.median(w.time_s for w in self.windows) / self.steps_per_window

    @property
    def exposed_communication_s(self) -> float | None:
        """What synchronisation adds to a step of several ranks, in seconds."""
        return self.synchronization_s if len(self.ranks) > 1 else None

    @property
    def synchronization_s(self) -> float | None:
        """Seconds per step that gradient synchronisation adds; None where it was not measured.

        On one rank that is DDP's own handling of the gradients. May be slightly negative: it is
        the difference of two medians.
        """
        if not self.is_valid or not self.unsynced_windows or not self.steps_per_window:
            return None
        without_s = statistics.median(w.time_s for w in self.unsynced_windows)
        return self.median_step_time_s - without_s / self.steps_per_window

    @property
    def log_step_time(self) -> float:
        """Natural logarithm of the median step time: the one number that judging uses."""
        return math.log(self.median_step_time_s)
