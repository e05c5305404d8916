"""The configuration of a training: the fields in which comparable results agree."""

from collections.abc import Collection
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from gpuscale.base.strategies import Schedule
from gpuscale.base.units import counted
from gpuscale.records.record import Count, Line, Name, PositiveCount, Record

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
ScalingMode = Literal["weak", "strong"]
DataKind = Literal["synthetic", "loader", "real"]


class Configuration(Record, frozen=True, kw_only=True):
    """A training workload and how it was run, apart from the number of GPUs.

    Results that differ in any field are never compared silently. A field is None if not recorded.
    """

    case: Name
    strategy: Name
    """Name such as `ddp`; a strategy that this gpuscale cannot measure can still be compared."""
    device: Name
    """`cuda`, `cpu`, or another device of the ranks."""
    size: Name | None = None
    batch: PositiveCount | None = None
    """Samples per GPU, or over all GPUs under strong scaling, if not the default of the size."""
    precision: Name | None = None
    channels_last: bool | None = None
    compiled: bool | None = None
    scaling: ScalingMode | None = None
    data: DataKind | None = None
    """Synthetic batches made once, synthetic samples through a loader, or real data."""
    threads_per_rank: PositiveCount | None = None
    """CPU threads of each rank; None for the library's default."""
    data_workers: Count | None = None
    """Loader processes of each rank; 0 if the rank itself loads, or nothing is loaded."""
    schedule: Schedule | None = None
    """The order of a pipeline's micro-batches; None without one."""
    micro_batches: PositiveCount | None = None
    """Micro-batches in each GPU's share of a batch, so a step on n GPUs has n times as many; None
    without a pipeline."""
    command: Line | None = None
    """The command with its placeholders; None for a case that gpuscale trains."""
    accumulate: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Batches of which each GPU accumulates gradients in a step; None for one batch."""
    strategy_options: Line | None = None
    """Options of the strategy that the case sets, such as `bucket_cap_mb=50`."""
    ranks_per_gpu: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Ranks on each GPU, to test several ranks on one device; such runs are never compared. None
    if each rank has its own GPU."""

    @property
    def is_loaded(self) -> bool:
        """True if batches come through a loader."""
        return self.data in ("loader", "real")

    @property
    def label(self) -> str:
        """The short name that tables use: `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"


class EntryKey(NamedTuple):
    """The key of a table row: a case, its strategy, and the number of GPUs."""

    case: str
    strategy: str
    gpus: int

    @property
    def name(self) -> str:
        """The name of the row without the number of GPUs: `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"

    @property
    def label(self) -> str:
        """The name that messages use: `mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.name} on {counted(self.gpus, 'GPU')}"

    def is_of(self, cases: Collection[str] | None) -> bool:
        """True if `mnist_cnn` or `mnist_cnn/ddp` is among the cases; None means all cases."""
        return cases is None or self.case in cases or self.name in cases


class FieldChange(NamedTuple):
    """A field in which two measurements differ."""

    name: str
    before: object
    after: object


def differences(before: Configuration, after: Configuration) -> tuple[FieldChange, ...]:
    """The fields in which two configurations differ."""
    pairs = (
        FieldChange(name, getattr(before, name), getattr(after, name))
        for name in Configuration.__struct_fields__
    )
    return tuple(pair for pair in pairs if pair.before != pair.after)
