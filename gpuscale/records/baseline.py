"""Reference results of one cluster: measured runs, or published numbers with their source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuscale.records.configuration import Configuration, Device, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.evidence import RunEvidence
from gpuscale.records.tolerances import Tolerances

Timed = Literal["job", "training_loop", "epoch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine that a baseline speaks of; what is None was not recorded."""

    device: Device
    gpu_name: str | None = None
    """As published or as CUDA reports it; matched by the model in it (`V100`, `A100`)."""
    gpus_per_node: int | None = None
    cpu_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where published figures come from."""

    title: str
    url: str | None = None
    published: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One published result: either times for a fixed amount of training, or a throughput.

    A wall clock holds start-up and validation, a throughput does not, so the two are
    separate fields and exactly one of them is given.
    """

    case: str
    strategy: str
    gpus: int
    batch_per_gpu: int
    runs: int
    """How many repetitions stand behind the figure."""
    nodes: int = 1
    times_s: tuple[float, ...] = ()
    """Wall-clock seconds; several are repetitions, such as the epochs of one job."""
    timed: Timed | None = None
    """What `times_s` spans."""
    discard_first: int = 0
    """How many of the first `times_s` the source itself leaves out."""
    samples_per_s: float | None = None
    note: str | None = None

    @property
    def key(self) -> EntryKey:
        """The table row that this figure belongs to."""
        return EntryKey(self.case, self.strategy, self.gpus)

    @property
    def mean_time_s(self) -> float | None:
        """Mean of the times that count, in seconds; None for a throughput figure."""
        counted = self.times_s[self.discard_first :]
        return sum(counted) / len(counted) if counted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What a baseline keeps of one run."""

    step_time_s: float
    allocation: str
    """Which job on which nodes: runs of one allocation share what that night was like."""
    evidence: RunEvidence | None = None
    """None in baselines that kept only the step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEntry:
    """The measured runs of one (configuration, gpus)."""

    configuration: Configuration
    gpus: int
    batch_per_gpu: int
    sample_shape: tuple[int, ...]
    runs: tuple[MeasuredRun, ...]

    @property
    def key(self) -> EntryKey:
        """The table row that this entry belongs to."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChange:
    """One approved change of a baseline: what was there before, and why it went."""

    at: str
    """ISO 8601 with offset."""
    reason: str
    by: str | None = None
    """Login name."""
    replaced: tuple[MeasuredEntry, ...] = ()
    """The entries as they were, without the evidence of their runs."""
    added: tuple[str, ...] = ()
    """Rows that had no measured entry before, in words."""
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """Of the replaced runs, by allocation, as far as no other entry has runs of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline file in memory."""

    name: str
    cluster: str
    hardware: Hardware
    published: tuple[PublishedFigure, ...] = ()
    measured: tuple[MeasuredEntry, ...] = ()
    source: Source | None = None
    recorded_at: str | None = None
    tolerances: Tolerances = field(default_factory=Tolerances)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """Machine and software of the measured runs, by allocation."""
    recorded_by: str | None = None
    """Login name."""
    gpuscale_version: str | None = None
    """The gpuscale that measured; several where the results came from several."""
    expires_on: str | None = None
    """The last day on which it is valid, as `2027-05-01`; None is never."""
    history: tuple[BaselineChange, ...] = ()
    """Its changes since it was recorded, the oldest first."""
