"""The configuration of a training workload, whose fields must agree in comparable results."""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from gpuscale.base.errors import UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.host import device_word
from gpuscale.base.text import counted, no_such
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.record import Count, Line, Name, PositiveCount, Record

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
ScalingMode = Literal["weak", "strong"]
DataKind = Literal["synthetic", "loader", "real"]


class Configuration(Record, cache_hash=True, frozen=True, kw_only=True):
    """A training workload and how it was run, apart from the number of GPUs.

    Measured results that differ in any field are not comparable. Unrecorded fields are None.
    """

    case: Name
    strategy: Name
    """Name of the strategy, such as `ddp`; names unknown to this version are allowed."""
    device: Name
    """Type of device that the ranks use, such as `cuda`, `rocm` or `cpu`."""
    size: Name | None = None
    batch: PositiveCount | None = None
    """Samples per GPU, or over all GPUs for strong scaling; None for the default of `size`."""
    precision: Name | None = None
    channels_last: bool | None = None
    compiled: bool | None = None
    scaling: ScalingMode | None = None
    data: DataKind | None = None
    """Source of batches: synthetic data (created once, or through a data loader), or real data."""
    threads_per_rank: PositiveCount | None = None
    """CPU threads per rank; None for the default of the training library."""
    data_workers: Count | None = None
    """Data-loader processes per rank; 0 if the rank loads the data itself, or no data is loaded."""
    micro_batches: PositiveCount | None = None
    """Number of micro-batches per GPU; None if the strategy is not a pipeline."""
    metric: OpenMetric | None = None
    """Metric that is judged instead of the step time; None if steps are timed."""
    command: Line | None = None
    """Training command with placeholders; None if gpuscale itself trains the case."""
    accumulate: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Batches over which each GPU accumulates gradients in a step; None for one batch."""
    strategy_options: Line | None = None
    """Strategy options that the case sets, such as `bucket_cap_mb=50`; None if it sets none."""
    ranks_per_gpu: Annotated[int, Meta(ge=2, le=1_000_000_000)] | None = None
    """Ranks that share each GPU (for tests, never compared); None if each rank has its own GPU."""

    @property
    def has_speedup(self) -> bool:
        """True if a speedup can be computed from runs on different numbers of GPUs."""
        return self.metric is None or self.metric.scaling is not None

    @property
    def label(self) -> str:
        """Short name for tables, such as `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"


class EntryKey(NamedTuple):
    """Key of a table row: the case, the strategy and the number of GPUs."""

    case: str
    strategy: str
    gpus: int

    @property
    def name(self) -> str:
        """Name of the row without the number of GPUs, such as `mnist_cnn/ddp`."""
        return f"{self.case}/{self.strategy}"

    def label_on(self, device: str) -> str:
        """Return the row's name for messages: `mnist_cnn/ddp on 4 GPUs`, or `… on 4 CPU ranks`."""
        return f"{self.name} on {counted(self.gpus, device_word(device))}"

    def is_of(self, cases: Collection[str] | None) -> bool:
        """True if `cases` is None or lists the case (`mnist_cnn`) or the name (`mnist_cnn/ddp`)."""
        return cases is None or self.case in cases or self.name in cases


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of table rows by case and number of GPUs; None selects every case or number."""

    cases: Collection[str] | None = None
    """Case names, such as `mnist_cnn` or `mnist_cnn/ddp`."""
    gpus: Collection[int] | None = None

    def includes(self, key: EntryKey) -> bool:
        """True if the row's case and number of GPUs are both selected."""
        return key.is_of(self.cases) and (self.gpus is None or key.gpus in self.gpus)

    def rows_of(self, keys: Sequence[EntryKey]) -> list[EntryKey]:
        """Return the selected keys, grouped by case and sorted by number of GPUs.

        If a selected case has no row with any selected number of GPUs, add a key for each of these
        numbers, so that they are reported as missing.
        """
        cases = {case: i for i, case in enumerate(dict.fromkeys(key[:2] for key in keys))}
        chosen = [key for key in keys if self.includes(key)]
        left = [name for name in self.cases or () if not any(key.is_of((name,)) for key in chosen)]
        absent = (
            key._replace(gpus=count) for key in keys if key.is_of(left) for count in self.gpus or ()
        )
        return sorted({*chosen, *absent}, key=lambda key: (cases[key[:2]], key.gpus))

    def validate(self, keys: Collection[EntryKey]) -> None:
        """Raise UsageError if a selected case or GPU count is in no key; accept empty `keys`."""
        if not keys:
            # There is nothing to choose from, which the caller says better.
            return
        for name in self.cases or ():
            if not any(key.is_of((name,)) for key in keys):
                names = dict.fromkeys(key.name if "/" in name else key.case for key in keys)
                raise UsageError(no_such(name, names, "case"))
        counts = {key.gpus for key in keys if key.is_of(self.cases)}
        for count in sorted(set(self.gpus or ()) - counts):
            known = ", ".join(map(str, sorted(counts)))
            raise UsageError(f"--gpus {count}: there is no such row; choose from {known}")


ALL_ROWS = Choice()


class RowMixin:
    """Adds the key and label of the row (configuration and GPU count) that an object belongs to."""

    __slots__ = ()
    configuration: Configuration
    gpus: int

    @property
    def key(self) -> EntryKey:
        """Key of the row in tables: case, strategy and number of GPUs."""
        return EntryKey(self.configuration.case, self.configuration.strategy, self.gpus)

    @property
    def label(self) -> str:
        """Name of the row in messages, such as `mnist_cnn/ddp on 4 GPUs`."""
        return self.key.label_on(self.configuration.device)


class FieldChange(NamedTuple):
    """A field whose value differs between two measurements."""

    name: str
    before: object
    after: object


def differences(before: Configuration, after: Configuration) -> tuple[FieldChange, ...]:
    """Return the fields in which two configurations differ, with both values."""
    pairs = (
        FieldChange(name, getattr(before, name), getattr(after, name))
        for name in Configuration.__struct_fields__
    )
    return tuple(pair for pair in pairs if pair.before != pair.after)


def commands_text(configurations: Iterable[Configuration]) -> str:
    """Return the training commands as one text; if there are several, prefix each with its case."""
    commands = {each.case: each.command for each in configurations if each.command is not None}
    if len(commands) == 1:
        return next(iter(commands.values()))
    return "; ".join(f"{case}: {command}" for case, command in commands.items())


def several_units(configurations: Iterable[Configuration]) -> list[str]:
    """Return the metrics that have more than one unit, such as `HPCG/gflops (GFLOPS, MFLOPS)`."""
    judged = ((each.label, each.metric) for each in configurations if each.metric is not None)
    units = by_key((label, metric.unit or "no unit") for label, metric in judged)
    distinct = {label: dict.fromkeys(of_label) for label, of_label in units.items()}
    return [f"{label} ({', '.join(found)})" for label, found in distinct.items() if len(found) > 1]
