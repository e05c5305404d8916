"""The result of a comparison, as codes and numbers that every report format renders."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from gpuscale.base.errors import ExitCode
from gpuscale.base.text import visible
from gpuscale.records.cause import Cause
from gpuscale.records.configuration import Configuration, EntryKey, FieldChange
from gpuscale.records.environment import EnvironmentChange
from gpuscale.records.evidence import HostLoad
from gpuscale.records.metrics import MetricSpec
from gpuscale.records.scaling import Estimate, Scaling


class QuantityName(StrEnum):
    """The quantity by which a row is judged; the values appear in the JSON report."""

    THROUGHPUT_ON_1 = "throughput(1)"
    THROUGHPUT = "throughput(n)"
    EFFICIENCY = "E(n)"


class Finding(StrEnum):
    """Kinds of changes that explain a row's verdict."""

    SINGLE_GPU_SLOWDOWN = "single-GPU slowdown"
    SCALING_LOSS = "scaling loss"
    SLOWER_TRAINING = "slower training"
    REFERENCE_FASTER = "only the single-GPU reference got faster"
    FASTER = "faster"


SLOWDOWNS = (Finding.SLOWER_TRAINING, Finding.SINGLE_GPU_SLOWDOWN)
"""Findings that the training got slower, on all GPUs alike or not."""


class Facts(TypedDict, total=False):
    """Values inserted into the text of a reason or note; each name implies a type and format."""

    # Fractions of the throughput or the step time, relative changes, and durations.
    allowed: float
    as_runs: float
    beside: float
    bound: float
    deviation: float
    difference: float
    efficiency: float
    factor: float
    loss: float
    margin: float
    ok_bound: float
    p: float | None
    reference: float
    significance: float
    span_s: float
    looked: float | None
    throughput: float
    tonight: float
    tolerance: float
    up_to: float
    value: float
    # Counts.
    all_made: int
    busy: int
    failed: int
    failures: Mapping[str, int]
    in_all: int
    made: int
    needed: int | None
    of_both: int
    of_both_sessions: int
    other_runs: int
    others: int
    packages: int
    ranks: int
    run: int
    runs: int
    sessions: int
    too_few: int
    valid: int
    is_open_on_1: bool
    on_1: bool
    # Names and texts.
    before: object
    cases: Sequence[str]
    conditions: Sequence[str]
    failure: str | None
    label: str
    metric: str
    name: str
    names: Sequence[str]
    nights: Sequence[str]
    now: object
    on: str
    one: str
    other: str
    places: Mapping[str, str]
    since: str
    then: str
    # Records.
    change: Estimate
    changed: Sequence[EnvironmentChange]
    changes: Sequence[EnvironmentChange]
    differences: "Sequence[FieldChange | Statement | str]"
    load: HostLoad
    otherwise: "Statement"
    published: QuantityName
    quantity: str
    remedy: "Statement | None"
    row: EntryKey
    rows: Sequence[EntryKey]
    why: "Statement"


class Statement(msgspec.Struct, frozen=True):
    """A reason or note: a code and the facts from which `reports.reason_words` makes its text."""

    code: str
    facts: Facts

    @classmethod
    def of(cls, code: str, /, **facts: Unpack[Facts]) -> "Statement":
        """Create a statement from a code and its facts, given as keyword arguments."""
        return cls(code, facts)


class Verdict(StrEnum):
    """One-word verdict on a row; docs/judging.md explains each verdict."""

    OK = "ok"
    CONSISTENT = "consistent"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONSISTENT = "inconsistent"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"
    MISSING = "missing"

    @property
    def is_pass(self) -> bool:
        """True if the row passes: `ok`, `consistent` or `improved`."""
        return self in (Verdict.OK, Verdict.CONSISTENT, Verdict.IMPROVED)

    @property
    def is_loss(self) -> bool:
        """True if the row is worse than its reference: `regressed` or `inconsistent`."""
        return self in (Verdict.REGRESSED, Verdict.INCONSISTENT)

    @property
    def weight(self) -> int:
        """Sort key, worst first: 0 if worse than the reference, 2 for a pass, otherwise 1."""
        return 0 if self.is_loss else 2 if self.is_pass else 1

    @property
    def is_judged(self) -> bool:
        """True if a current value of the row was compared with a baseline value."""
        return self not in (Verdict.INCOMPARABLE, Verdict.MISSING)


class MetricVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one metric of one row."""

    metric: MetricSpec
    verdict: Verdict
    baseline: Estimate
    current: Estimate
    change: Estimate
    """Relative change with its 95% interval; relative to the step time if `metric.in_points`."""
    loss_bound: float | None = None
    """Upper bound of the loss, relative like `change`; None if the spread of runs is unknown."""


class EntryVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one row: a case, a strategy and a number of GPUs."""

    key: EntryKey
    verdict: Verdict
    baseline: Scaling
    current: Scaling
    reason: Statement
    finding: Finding | MetricSpec | None = None
    """The change that explains the verdict, or the metric that got worse."""
    change: Estimate | None = None
    """Relative change of the judged quantity, with its 95% interval; negative is worse."""
    changed_quantity: QuantityName | None = None
    minimum_detectable_loss: float | None = None
    further_runs: int | None = None
    """Estimated number of runs still needed to settle the verdict; None if not estimated."""
    metrics: tuple[MetricVerdict, ...] = ()
    """Verdicts on the metrics that were measured on both sides of the comparison."""
    configuration: Configuration | None = None
    """Configuration of the current runs or else of the baseline's; None if there are no runs."""
    causes: tuple[Cause, ...] = ()
    """Causes, largest share of the loss first; empty if no cause was found."""
    since: str | None = None
    """Date (and time if ambiguous) of the nightly run with which a loss began; None if unknown."""

    @property
    def device(self) -> str:
        """Type of device that the row was measured on; empty if unknown."""
        return "" if self.configuration is None else self.configuration.device

    @property
    def label(self) -> str:
        """Name of the row in messages, such as `mnist_cnn/ddp on 4 GPUs`."""
        return self.key.label_on(self.device)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Files, hosts, jobs, times and software of one side of a comparison; None or () if unknown."""

    files: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    """Identifiers of the scheduler's jobs, in the order in which the jobs started."""
    began_at: str | None = None
    """Start of the first run, in ISO 8601 with UTC offset."""
    last_at: str | None = None
    """Start of the last run, in the same format as `began_at`."""
    fewest_runs: int | None = None
    """Smallest number of valid runs of any row, ignoring rows without valid runs."""
    most_runs: int | None = None
    torch: tuple[str, ...] = ()
    driver: tuple[str, ...] = ()


BaselineKind = Literal["baseline", "results", "nights"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts on all rows of a comparison, and the exit code that follows from them."""

    cluster: str
    """Cluster of the baseline, or host of the earlier results used as the reference."""
    baseline_name: str
    baseline_machine: str
    current_machine: str
    baseline_kind: BaselineKind = "baseline"
    """Kind of reference: a baseline file, a results file, or nightly runs (`--history`)."""
    entries: tuple[EntryVerdict, ...]
    notes: tuple[Statement, ...] = ()
    before: Origin = Origin()
    after: Origin = Origin()

    def of_files(
        self, kind: BaselineKind, before: Iterable[object], after: Iterable[object]
    ) -> "Comparison":
        """Return a copy that records the kind of baseline and the file names of both sides."""
        then, now = (tuple(visible(str(path)) for path in paths) for paths in (before, after))
        sides = replace(self.before, files=then), replace(self.after, files=now)
        return replace(self, baseline_kind=kind, before=sides[0], after=sides[1])

    @property
    def exit_code(self) -> ExitCode:
        """The first exit code that applies: regressed, nothing comparable, inconclusive or ok."""
        verdicts = [entry.verdict for entry in self.entries]
        if any(verdict.is_loss for verdict in verdicts):
            return ExitCode.REGRESSED
        if not any(verdict.is_judged for verdict in verdicts):
            return ExitCode.NOTHING_COMPARABLE
        if not all(verdict.is_pass for verdict in verdicts):
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK
