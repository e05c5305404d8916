"""The values that everything else passes around: frozen, without behaviour beyond arithmetic.

Unknown is `None`, never 0. Units are in the names. Nothing here measures or reads a file.
"""

from gpuscale.records.baseline import (
    Baseline,
    Hardware,
    MeasuredEntry,
    MeasuredRun,
    PublishedFigure,
    Source,
    Tolerances,
)
from gpuscale.records.cause import Cause, CauseKind
from gpuscale.records.configuration import Configuration, EntryKey, differences
from gpuscale.records.environment import Environment, GpuDevice
from gpuscale.records.estimate import Estimate
from gpuscale.records.evidence import RankEvidence, RunEvidence
from gpuscale.records.gpu import GpuSummary, GpuWindow, PcieLink
from gpuscale.records.phases import Phases
from gpuscale.records.request import Pacing, RankOutcome, RankWindow, RunRequest
from gpuscale.records.results import Results
from gpuscale.records.run import Failure, FailureKind, RankReport, Run, Window
from gpuscale.records.verdict import (
    Comparison,
    EntryVerdict,
    Finding,
    Metric,
    MetricVerdict,
    SpeedupPair,
    Verdict,
)

__all__ = [
    "Baseline",
    "Cause",
    "CauseKind",
    "Comparison",
    "Configuration",
    "EntryKey",
    "EntryVerdict",
    "Environment",
    "Estimate",
    "Failure",
    "FailureKind",
    "Finding",
    "GpuDevice",
    "GpuSummary",
    "GpuWindow",
    "Hardware",
    "MeasuredEntry",
    "MeasuredRun",
    "Metric",
    "MetricVerdict",
    "Pacing",
    "PcieLink",
    "Phases",
    "PublishedFigure",
    "RankEvidence",
    "RankOutcome",
    "RankReport",
    "RankWindow",
    "Results",
    "Run",
    "RunEvidence",
    "RunRequest",
    "Source",
    "SpeedupPair",
    "Tolerances",
    "Verdict",
    "Window",
    "differences",
]
