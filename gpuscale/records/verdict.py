"""A comparison as values, which every report format renders."""

from dataclasses import dataclass
from enum import StrEnum

from gpuscale.errors import ExitCode
from gpuscale.records.cause import Cause
from gpuscale.records.configuration import Configuration, EntryKey
from gpuscale.records.estimate import Estimate
from gpuscale.records.metrics import MetricSpec
from gpuscale.records.reason import Finding, QuantityName, Statement


class Verdict(StrEnum):
    """One word for one row (docs/judging.md)."""

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
        """True of what a night with only such rows may end green with."""
        return self in (Verdict.OK, Verdict.CONSISTENT, Verdict.IMPROVED)

    @property
    def is_loss(self) -> bool:
        """True where something got worse."""
        return self in (Verdict.REGRESSED, Verdict.INCONSISTENT)

    @property
    def is_judged(self) -> bool:
        """True where two numbers were compared at all."""
        return self not in (Verdict.INCOMPARABLE, Verdict.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupPair:
    """Speedup and efficiency over one GPU; None where there is no run on one GPU."""

    speedup: Estimate | None
    efficiency: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricVerdict:
    """The verdict on one metric of one row."""

    metric: MetricSpec
    verdict: Verdict
    baseline: Estimate
    current: Estimate
    change: Estimate
    """Relative change with its 95% interval, of a metric in points as a part of the step time;
    positive is worse."""
    rise_bound: float | None = None
    """The rise that the truth does not exceed, with the confidence of a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryVerdict:
    """The verdict on one (case, strategy, gpus)."""

    key: EntryKey
    verdict: Verdict
    baseline: SpeedupPair
    current: SpeedupPair
    reason: Statement
    finding: Finding | MetricSpec | None = None
    """The change behind the verdict; a metric is one of which there is more."""
    change: Estimate | None = None
    """Relative change of the judged quantity, with its 95% interval; negative is worse."""
    changed_quantity: QuantityName | None = None
    minimum_detectable_loss: float | None = None
    further_runs: int | None = None
    """For an inconclusive row: how many further runs would settle it, where runs can."""
    metrics: tuple[MetricVerdict, ...] = ()
    """Of the metrics that both sides measured."""
    configuration: Configuration | None = None
    """How the row was measured now, else then; None for published figures that nothing meets."""
    causes: tuple[Cause, ...] = ()
    """The heaviest first; empty where nothing was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows of one comparison, and the single exit code that follows from them."""

    baseline_name: str
    baseline_machine: str
    current_machine: str
    entries: tuple[EntryVerdict, ...]
    notes: tuple[Statement, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Worst first: a regression, nothing comparable, anything not shown to be fine, ok."""
        verdicts = [entry.verdict for entry in self.entries]
        if any(verdict.is_loss for verdict in verdicts):
            return ExitCode.REGRESSED
        if not any(verdict.is_judged for verdict in verdicts):
            return ExitCode.NOTHING_COMPARABLE
        if not all(verdict.is_pass for verdict in verdicts):
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK
