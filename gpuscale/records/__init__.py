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
from gpuscale.records.configuration import Configuration, EntryKey, differences
from gpuscale.records.environment import Environment, GpuDevice
from gpuscale.records.estimate import Estimate
from gpuscale.records.gpu import GpuSummary, GpuWindow, PcieLink
from gpuscale.records.phases import Phases
from gpuscale.records.request import Pacing, RankOutcome, RankWindow, RunRequest
from gpuscale.records.results import Results
from gpuscale.records.run import Failure, FailureKind, RankReport, Run, Window
from gpuscale.records.verdict import Comparison, EntryVerdict, Finding, SpeedupPair, Verdict

__all__ = [
    "Baseline",
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
    "Pacing",
    "PcieLink",
    "Phases",
    "PublishedFigure",
    "RankOutcome",
    "RankReport",
    "RankWindow",
    "Results",
    "Run",
    "RunRequest",
    "Source",
    "SpeedupPair",
    "Tolerances",
    "Verdict",
    "Window",
    "differences",
]
