"""What a change is put down to, with the evidence for it."""

from dataclasses import dataclass
from enum import StrEnum


class CauseKind(StrEnum):
    """The kinds of cause that a diagnosis tells apart."""

    DATA = "data"
    COMMUNICATION = "communication"
    SLOW_RANK = "slow rank"
    COMPUTE = "compute"
    CLOCKS = "clocks"
    PCIE = "PCIe link"
    NVLINK = "NVLink"
    MEMORY_ERRORS = "memory errors"
    DRIVER_ERRORS = "driver errors"
    ENVIRONMENT = "environment"
    NOT_ESTABLISHED = "cause not established"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that a finding is put down to; the first of several carries the most."""

    kind: CauseKind
    headline: str
    """A few words for a table's row: `exposed all-reduce +14 ms`."""
    statement: str
    """One sentence that names rank, host and GPU where one of them carries it."""
    share: float | None = None
    """What part of the lost time it carries, 1.0 for all; None where that cannot be told."""
    lost_s: float | None = None
    """Seconds per step."""
    scope: str = ""
    """From which number of GPUs on, and on how many nodes; empty where nothing tells."""
    ranks: tuple[int, ...] = ()
    """The ranks that carry it; empty where all of them do, or where that cannot be told."""
    hosts: tuple[str, ...] = ()
    """Where those ranks ran."""
    device_uuids: tuple[str, ...] = ()
    """The devices of those ranks."""
    evidence: tuple[str, ...] = ()
    """What was seen, one fact each."""
    next_step: str = ""
    """What to run or look at next; empty where nothing is left to find out."""
