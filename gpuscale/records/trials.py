"""What `gpuscale selftest` found on a real machine."""

from dataclasses import dataclass
from typing import Literal

from gpuscale.records.cause import CauseKind
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.environment import Environment
from gpuscale.records.overhead import OverheadReport
from gpuscale.records.simulation import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault made on purpose, at one size."""

    name: str
    """What is wrong, in words: `data stall`."""
    size: float
    """By what part of a step's time it makes a step longer."""
    injection: Literal["data", "slow-rank", "compute"]
    """The kind of `--inject`."""
    kind: CauseKind
    """What it should be put down to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """How often a fault was found and named."""

    fault: Fault
    found: Rate | None
    """Trials in which a row that it strikes was called regressed; None where none was judged."""
    named: Rate | None
    """Of those found, in how many it was the first cause of the row on the most GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectableLoss:
    """The smallest loss of a row that is found 19 times in 20, median over the comparisons."""

    key: EntryKey
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsReport:
    """One trial of false alarms and faults on a machine."""

    configuration: Configuration
    environment: Environment
    gpus: tuple[int, ...]
    runs_per_block: int
    comparisons: int
    """Of identical measurements, that could be judged."""
    false_alarms: Rate | None
    """Rows called regressed although nothing was changed."""
    detectable_losses: tuple[DetectableLoss, ...]
    faults: tuple[FaultResult, ...]
    not_tried: tuple[str, ...]
    """Faults that this machine or case cannot have, each with the reason."""
    runs: int
    failed_runs: int
    """Unsteady ones included."""
    overhead: OverheadReport | None
    wall_s: float
