"""The causes of a change and their evidence, as codes and numbers without words."""

from enum import StrEnum, auto

import msgspec

from gpuscale.records.environment import EnvironmentChange


class CauseKind(StrEnum):
    """Kinds of causes that several finders share; the values appear in the JSON report."""

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
    """The reference with which a device is compared."""

    BASELINE = auto()
    OTHER_GPUS = auto()
    MOST = auto()
    """The maximum that the hardware allows, such as a link's width."""


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A phase or part of a step, in seconds per step."""

    name: str
    before_s: float
    after_s: float


class DeviceSymptom(msgspec.Struct, frozen=True, kw_only=True):
    """A symptom of one device."""

    kind: CauseKind
    uuid: str
    host: str | None
    counter: str
    """Name of a counter, or of a value that combines several counters."""
    now: float
    usual: float | None = None
    """None for an event, which has no usual value."""
    beside: Beside = Beside.BASELINE
    reason: str | None = None
    """Reason of a clock event."""
    temperature_max_c: float | None = None


class EfficiencyLoss(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the efficiency lost on n GPUs, as fractions of the step time."""

    gpus: int
    lost: float
    part: float


class LostMetric(msgspec.Struct, frozen=True):
    """A metric that got worse although the step time did not."""

    name: str


Evidence = PhaseChange | DeviceSymptom | EnvironmentChange | EfficiencyLoss | LostMetric


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of GPUs that lose the same part, and those that do not, ascending."""

    lost_on: tuple[int, ...]
    spared_on: tuple[int, ...]
    nodes: int
    """Nodes of the smallest affected run."""
    spared_nodes: int | None
    """Most nodes of a smaller run without the loss; None if every smaller run has it."""


class CountOf(msgspec.Struct, frozen=True):
    """A count out of a total."""

    count: int
    of: int


class RanksOf(msgspec.Struct, frozen=True):
    """The ranks that share a change, out of a total."""

    ranks: tuple[int, ...]
    of: int


class Remedy(msgspec.Struct, frozen=True):
    """The next command to run or thing to check."""

    code: str
    """Key of its words in `reports.cause_words`."""
    hosts: tuple[str, ...] = ()
    runs: int | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of a finding; causes are sorted by their share of the lost time."""

    kind: str
    """A `CauseKind` or a finder's own kind, as in the JSON report."""
    code: str
    """Key of its words in `reports.cause_words`."""
    share: float | None = None
    """Share of the lost time, 1.0 for all of it; None if unknown."""
    lost_s: float | None = None
    """Lost seconds per step; the next two fields are seconds per step too."""
    before_s: float | None = None
    after_s: float | None = None
    onset: Onset | None = None
    """None if no other number of GPUs shows where the loss begins."""
    shared_by: RanksOf | None = None
    """The ranks that share the change; None for a single rank, or if only a few ranks changed."""
    includes: str | None = None
    """The strategy's communication, if the cause consists of it or includes it."""
    ranks: tuple[int, ...] = ()
    """The affected ranks; empty if all of them are, or if unknown."""
    hosts: tuple[str, ...] = ()
    """Hosts of the affected ranks."""
    device_uuids: tuple[str, ...] = ()
    """Devices of the affected ranks."""
    is_whole_host: bool = False
    """The affected ranks are all the ranks of one of several hosts."""
    seen_in: CountOf | None = None
    """The runs that show the cause."""
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    """None if nothing is left to find out."""
