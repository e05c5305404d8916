"""What was trained and how: the fields in which two results must agree to be compared."""

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

Device = Literal["cuda", "cpu"]
Strategy = Literal["dp", "ddp"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
ScalingMode = Literal["weak", "strong"]
DataKind = Literal["synthetic", "real"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A training workload and the way it was run, apart from the number of GPUs.

    Results that differ in any field are never compared silently.
    """

    case: str
    strategy: Strategy
    device: Device
    size: str
    precision: Precision
    channels_last: bool
    compiled: bool
    scaling: ScalingMode
    data: DataKind
    threads_per_rank: int | None = None
    """CPU threads of each rank; None where the library's own default was left alone."""
    data_workers: int | None = None
    """Loader processes of each rank; None where it was not recorded."""

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
    def label(self) -> str:
        """The name that messages use: `mnist_cnn/ddp on 4 GPUs`."""
        return f"{self.case}/{self.strategy} on {self.gpus} GPU{'' if self.gpus == 1 else 's'}"


def differences(baseline: Configuration, current: Configuration) -> tuple[str, ...]:
    """The fields in which two configurations differ, each as `size: full → smoke`."""
    found = []
    for field in fields(Configuration):
        before, now = getattr(baseline, field.name), getattr(current, field.name)
        if before != now:
            found.append(f"{field.name}: {before} → {now}")
    return tuple(found)
