"""A training and the way it was run: the fields in which two results must agree."""

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
    """A training workload and the way it was run, apart from the number of GPUs.

    Results that differ in any field are never compared silently; None is what nobody recorded.
    """

    case: Name
    strategy: Name
    """Such as `ddp`; what this gpuscale cannot measure can be written down and compared too."""
    device: Name
    """`cuda`, `cpu`, or what else the ranks trained on."""
    size: Name | None = None
    batch: PositiveCount | None = None
    """Samples per GPU, under strong scaling over all GPUs, where another batch was asked for than
    that of the size."""
    precision: Name | None = None
    channels_last: bool | None = None
    compiled: bool | None = None
    scaling: ScalingMode | None = None
    data: DataKind | None = None
    """Synthetic batches that were made once, synthetic samples through a loader, or real data."""
    threads_per_rank: PositiveCount | None = None
    """CPU threads of each rank; None where the library's own default was left alone."""
    data_workers: Count | None = None
    """Loader processes of each rank; 0 where the rank loads by itself, or nothing is loaded."""
    schedule: Schedule | None = None
    """The order of a pipeline's micro-batches; None without one."""
    micro_batches: PositiveCount | None = None
    """Micro-batches of each GPU's share of a batch, so that n GPUs have n times as many in a step;
    None without a pipeline."""
    command: Line | None = None
    """What was started, with its placeholders, where no case of gpuscale's own was trained."""
    accumulate: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Batches whose gradients each GPU adds up for a step; None where a step has one."""
    strategy_options: Line | None = None
    """What the case asks of its strategy, such as `bucket_cap_mb=50`; None is nothing."""
    ranks_per_gpu: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Ranks that share a GPU, to try the way of several ranks on one; such a run is compared with
    none. None where each rank has a GPU of its own."""

    @property
    def is_loaded(self) -> bool:
        """True of batches that come through a loader."""
        return self.data in ("loader", "real")

    @property
    def label(self) -> str:
        """The short name that tables use: `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"


class EntryKey(NamedTuple):
    """One row of every table: a case, made parallel by a strategy, on a number of GPUs."""

    case: str
    strategy: str
    gpus: int

    @property
    def name(self) -> str:
        """The row without its number of GPUs: `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"

    @property
    def label(self) -> str:
        """The name that messages use: `mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.name} on {counted(self.gpus, 'GPU')}"

    def is_of(self, cases: Collection[str] | None) -> bool:
        """True where `mnist_cnn` or `mnist_cnn/ddp` is one of the cases; None is all of them."""
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
    return tuple(each for each in pairs if each.before != each.after)
