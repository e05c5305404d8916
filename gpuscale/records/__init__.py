"""Immutable records exchanged between packages, with validation and simple computations.

An unknown value is `None`, never 0. Field names include units. Nothing here reads or writes files.
"""

from gpuscale.records.baseline import Baseline, Hardware, PublishedFigure, Tolerances
from gpuscale.records.cause import Cause, CauseKind
from gpuscale.records.configuration import Configuration, EntryKey, FieldChange, differences
from gpuscale.records.environment import Environment, EnvironmentChange, GpuDevice, Node
from gpuscale.records.evidence import Failure, FailureKind, GpuSummary, HostLoad, NodeEvidence
from gpuscale.records.metrics import METRICS, METRICS_BY_NAME, Limits, MetricSpec
from gpuscale.records.probes import NodeProbe, Probe
from gpuscale.records.request import RunRequest, TimingPlan
from gpuscale.records.run import Results, Run, deduplicated, with_measured, without_windows
from gpuscale.records.scaling import Estimate, PointKey, Scaling, ScalingPoint
from gpuscale.records.verdict import (
    Comparison,
    EntryVerdict,
    Facts,
    Finding,
    MetricVerdict,
    Origin,
    QuantityName,
    Statement,
    Verdict,
)
