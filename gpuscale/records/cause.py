"""Data types for causes of performance changes, verdicts on nodes, and bisection results."""

from enum import StrEnum, auto
from typing import Literal

import msgspec

from gpuscale.records.environment import EnvironmentChange
from gpuscale.records.metrics import MetricSpec
from gpuscale.records.probes import Probe
from gpuscale.records.scaling import Estimate


class CauseKind(StrEnum):
    """Kinds of causes that more than one diagnosis can find; the JSON report has these values."""

    DATA = "data"
    COMMUNICATION = "communication"
    SLOW_RANK = "slow rank"
    COMPUTE = "compute"
    CLOCKS = "clocks"
    PCIE = "PCIe link"
    NVLINK = "NVLink"
    XGMI = "XGMI"
    FABRIC = "fabric"
    MEMORY_ERRORS = "memory errors"
    ENVIRONMENT = "environment"
    NOT_ESTABLISHED = "cause not established"


LINKS = (CauseKind.NVLINK, CauseKind.XGMI, CauseKind.PCIE)
"""Kinds of causes that are faults in a GPU's links, fastest link first."""


class ComparedWith(StrEnum):
    """The reference that a device's counter or probe is compared with."""

    BASELINE = auto()
    OTHER_GPUS = auto()
    MOST = auto()
    """Maximum that the hardware allows, such as the full width of a link."""


class PhaseChange(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step that a phase or other part of a step took before and after a change."""

    name: str
    before_s: float
    after_s: float


class DeviceSymptom(msgspec.Struct, frozen=True, kw_only=True):
    """An abnormal counter or event of one device."""

    kind: CauseKind
    uuid: str
    host: str | None
    counter: str
    """Name of a hardware counter, or of a value derived from several counters."""
    now: float
    usual: float | None = None
    """Reference value for `now`; None for an event, which has no usual value."""
    beside: ComparedWith = ComparedWith.BASELINE
    reason: str | None = None
    """Reason for a clock event, such as `sw_power_cap`; None for other symptoms."""
    temperature_max_c: float | None = None


class PortSymptom(msgspec.Struct, frozen=True, kw_only=True):
    """A network port that is down or slow, or has a counter that grows more than usual."""

    host: str
    port: str
    fact: str
    """Name of a field of `Port` or of a counter; for a counter, `now` is its growth in a run."""
    now: float | str | None
    usual: float | str | None
    is_floor: bool = False
    """True if the counter may have grown by more than `now`."""


class ProbeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's rate relative to a reference; a significant drop confirms a suspected cause."""

    probe: Probe
    change: Estimate
    is_slower: bool
    """True if the rate is significantly lower, which confirms the cause."""
    beside: ComparedWith
    """`BASELINE` if compared with the same device in the baseline, otherwise `OTHER_GPUS`."""


Evidence = ProbeChange | PhaseChange | DeviceSymptom | PortSymptom | EnvironmentChange | MetricSpec
"""A fact that supports a cause; a metric is one that got worse although the step time did not."""


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """GPU counts on which a part of the step got longer, and counts on which it grew far less."""

    lost_on: tuple[int, ...]
    spared_on: tuple[int, ...]
    nodes: int
    """Number of nodes used by the smallest affected run."""
    spared_nodes: int | None
    """Largest node count of any unaffected run on fewer GPUs; None if there is no such run."""


class Remedy(msgspec.Struct, frozen=True):
    """Suggested next step: a command to run or something to check."""

    code: str
    """Key of the suggestion's wording in `reports.cause_words`."""
    hosts: tuple[str, ...] = ()
    runs: int | None = None
    scripts: tuple[str, ...] = ()
    """Files of the case or command whose content changed, which are to be looked at first."""
    is_idle: bool = False
    """True if no other process was busy on any host, so there is no point in looking for one."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a slowdown or of a worse metric, with evidence and a suggested next step."""

    kind: str
    """A `CauseKind`, or a kind that only one diagnosis uses; appears in the JSON report."""
    code: str
    """Key of the cause's wording in `reports.cause_words`."""
    share: float | None = None
    """Share of the lost time that the cause explains, 1.0 for all of it; None if unknown."""
    gained_s: float = 0.0
    """Seconds per step by which other parts of the step got shorter."""
    lost_s: float | None = None
    """Seconds lost per step, net of what shorter communication saved; None if unknown.
    `before_s` and `after_s` are also per step."""
    before_s: float | None = None
    after_s: float | None = None
    onset: Onset | None = None
    """GPU counts with and without the loss; None if only one GPU count can be compared."""
    includes: str | None = None
    """Communication that the lost time includes, such as `all-reduce`; None if there is none."""
    phase: str | None = None
    """Compute phase with most of the loss; None if several phases share the loss, or if unknown."""
    ranks: tuple[int, ...] = ()
    """Affected ranks; empty if all ranks are affected, or if the affected ranks are unknown."""
    hosts: tuple[str, ...] = ()
    device_uuids: tuple[str, ...] = ()
    is_whole_host: bool = False
    """True if all ranks of one host, and no ranks of other hosts, are affected."""
    is_own_lag: bool = False
    """True if `before_s` is the named rank's lag; False if it is that of the slowest rank."""
    seen_in: tuple[int, int] | None = None
    """Number of runs that show the cause, and number of all runs."""
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    """Suggested next step; None if no further step is needed to explain the finding."""


NotMeasured = Literal[
    "down", "busy", "failed", "stopped", "not reached", "none alike", "row missing"
]
"""Reasons why a node is not judged: it is down or drained, its job never started, its job or all
its runs failed, the sweep was stopped, its turn never came, too few nodes are of its kind, or only
some rows were measured."""
Reference = Literal["fleet", "past"]


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement made on every node, either of one GPU alone or of all GPUs of the node."""

    gpus: int
    """Number of GPUs, or of CPU ranks."""
    device: int | None = None
    """Number of the GPU that is measured alone; None if all GPUs of the node are measured."""


class NodeVisit(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one job on one node."""

    node: str
    kind: str
    """Partition and GPU or CPU model, such as `gpu, NVIDIA A100`; kinds are judged separately."""
    job: int = 0
    """Number of the job among the node's jobs in this sweep, from 0."""
    measured_at_s: float
    """Unix time at the middle of the job's runs."""
    step_times_s: tuple[tuple[FleetRow, tuple[float, ...]], ...]
    """Step time of each valid run of each row; a row without valid runs is left out."""
    is_control: bool = False
    """True if the node is remeasured to track the cluster's drift, not because it is suspect."""


class NodeState(StrEnum):
    """The possible verdicts on a node; `NodeVerdict` adds the evidence."""

    SICK = "sick"
    UNCLEAR = "unclear"
    HEALTHY = "healthy"
    NOT_MEASURED = "not measured"


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one node; a speed of −0.05 means 5 % slower than the reference."""

    node: str
    state: NodeState
    reason: NotMeasured | None = None
    """Reason why the node is not judged; None if it is judged."""
    detail: str = ""
    """Details of `reason`, from the scheduler or from the first failed run."""
    needs_job: bool = False
    """True if one more job could settle whether the node is sick."""
    speed: Estimate | None = None
    """Speed of `row` relative to `against`, measured by the jobs after the first one if there are
    any; None if the node was not measured."""
    row: FleetRow | None = None
    """The row that shows the loss, or the slowest row of a healthy node."""
    against: Reference | None = None
    """Reference for `speed`: the other nodes (`fleet`), or the node in earlier sweeps (`past`)."""
    jobs: int = 0
    jobs_slow: int = 0
    past: float | None = None
    """Speed on `row` in earlier sweeps, relative to other nodes of the kind; None if unknown."""


class BisectionFinding(StrEnum):
    """The possible outcomes of a bisection; `Bisection` adds the culprits and their effect."""

    FOUND = "found"
    """The culprits are confirmed: they alone cause the loss, and undoing them removes it."""
    SUSPECTED = "suspected"
    UNDECIDED = "undecided"
    SAME = "same"
    """The bad environment is now as fast as the good one on this machine."""
    REVERSED = "reversed"
    """The bad environment is the faster one."""


Reason = Literal["noise", "trials", "time", "cannot be tried", "not explained"]


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search for changes that slowed training; a speed of −0.12 means 12 % slower."""

    finding: BisectionFinding
    loss: Estimate | None
    """Relative change of speed from the good to the bad environment; None if not estimated."""
    culprits: tuple[tuple[int, ...], ...] = ()
    """Indices of the culprit changes; changes that cannot be tried separately form one group."""
    alone: Estimate | None = None
    """Speed of the good environment with only the culprits applied, relative to the good one; for
    commits, the speed at the culprit with the smallest loss, relative to the commit before it."""
    taken_back: Estimate | None = None
    """Speed of the bad environment without the culprits, relative to the good one; for commits,
    the change over the stretch of other commits that loses the most speed."""
    trials: int
    reason: Reason | None = None
    """Reason why no culprit is confirmed; None if one is confirmed or there is no loss."""
