"""What a baseline keeps of a run beside its step time: what later explains a loss."""

from dataclasses import dataclass

from gpuscale.records.gpu import GpuSummary
from gpuscale.records.phases import Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """One rank of a run: where it ran, its own pace, and where its step time went."""

    rank: int
    host: str
    device_uuids: tuple[str, ...] = ()
    pace_s: float | None = None
    """Seconds per step without waiting for the others."""
    phases: Phases | None = None
    """Seconds per step by phase, in synchronised training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """Beside the step time; None is what was not measured."""

    exposed_communication_s: float | None = None
    """Seconds per step that gradient synchronisation adds; slightly negative at times."""
    peak_memory_bytes: int | None = None
    """Largest peak of the CUDA allocator on any rank; None on CPU."""
    energy_per_sample_j: float | None = None
    """Joules of all devices together for one sample."""
    ranks: tuple[RankEvidence, ...] = ()
    gpu_summaries: tuple[GpuSummary, ...] = ()
    """Of the whole run: without their windows."""
