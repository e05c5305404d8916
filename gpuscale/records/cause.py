"""The causes of a change, with the evidence for them: codes and numbers, no words."""

from enum import StrEnum, auto

import msgspec

from gpuscale.records.environment import EnvironmentChange


class CauseKind(StrEnum):
    """The kinds of cause that several finders share; the values are those of the JSON report."""

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


class Beside(StrEnum):
    """The usual that a device is set beside."""

    BASELINE = auto()
    OTHER_GPUS = auto()
    MOST = auto()
    """The most that it could have where it is."""


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A phase or part of a step, in seconds per step."""

    name: str
    before_s: float
    after_s: float


class DeviceSymptom(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with one device."""

    kind: CauseKind
    uuid: str
    host: str | None
    counter: str
    """As `telemetry.fields` names it, or what is read at one moment of several counters."""
    now: float
    usual: float | None = None
    """None of an event, which is new as it is."""
    beside: Beside = Beside.BASELINE
    reason: str | None = None
    """Of a clock event."""
    temperature_max_c: float | None = None


class EfficiencyLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what E(n) lacks to ideal scaling, as fractions of the step."""

    gpus: int
    lost: float
    part: float


class LostMetric(msgspec.Struct, frozen=True):
    """A metric that got worse while the step did not."""

    name: str


Evidence = PhaseChange | DeviceSymptom | EnvironmentChange | EfficiencyLoss | LostMetric


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of GPUs on which a part is lost too, and those that are spared, ascending."""

    lost_on: tuple[int, ...]
    spared_on: tuple[int, ...]
    nodes: int
    """Nodes of the ranks where the loss begins."""
    spared_nodes: int | None
    """The most nodes below that; None where no smaller number of GPUs is spared."""


class CountOf(msgspec.Struct, frozen=True):
    """So many of several."""

    count: int
    of: int


class RanksOf(msgspec.Struct, frozen=True):
    """The ranks that share a change, of so many."""

    ranks: tuple[int, ...]
    of: int


class Remedy(msgspec.Struct, frozen=True):
    """The next thing to run or look at."""

    code: str
    """Of its words in `reports.cause_words`."""
    hosts: tuple[str, ...] = ()
    runs: int | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a finding is put down to; the first of several carries the most."""

    kind: str
    """One of `CauseKind`, or a finder's own, as the JSON report has it."""
    code: str
    """Of its words in `reports.cause_words`."""
    share: float | None = None
    """The part of the lost time that it carries, 1.0 for all; None where that cannot be told."""
    lost_s: float | None = None
    """Seconds per step, like the next two."""
    before_s: float | None = None
    after_s: float | None = None
    onset: Onset | None = None
    """None where no other number of GPUs tells anything of it."""
    shared_by: RanksOf | None = None
    """The ranks that take part in what is not a few ranks' own; None of a single rank."""
    includes: str | None = None
    """The strategy's communication, where the cause is about it or has it inside."""
    ranks: tuple[int, ...] = ()
    """The ranks that carry it; empty where all of them do, or where that cannot be told."""
    hosts: tuple[str, ...] = ()
    """Where those ranks ran."""
    device_uuids: tuple[str, ...] = ()
    """The devices of those ranks."""
    is_whole_host: bool = False
    """Those ranks are all the ranks of one host, among ranks of other hosts."""
    seen_in: CountOf | None = None
    """The runs that show it."""
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    """None where nothing is left to find out."""
