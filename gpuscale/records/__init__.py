"""Immutable records that all other packages exchange; they only validate and compute.

An unknown value is `None`, never 0. Units are in the field names. Nothing here reads files.
"""

from gpuscale.records.baseline import Baseline, BaselineChange, Hardware, PublishedFigure, Source
from gpuscale.records.cause import Cause, CauseKind
from gpuscale.records.configuration import Configuration, EntryKey, FieldChange, differences
from gpuscale.records.environment import (
    Environment,
    EnvironmentChange,
    GpuDevice,
    Node,
    pci_addresses,
)
from gpuscale.records.metrics import METRICS, METRICS_BY_NAME, Limits, MetricSpec
from gpuscale.records.node_evidence import HostLoad, NodeEvidence
from gpuscale.records.point import Estimate, PointKey, Rate, Scaling, ScalingPoint
from gpuscale.records.probe import NodeProbe, Probe
from gpuscale.records.request import RunGpus, RunRequest, TimingPlan
from gpuscale.records.run import Results, Run, deduplicated, with_measured, without_windows
from gpuscale.records.run_evidence import (
    Failure,
    FailureKind,
    GpuSummary,
    GpuWindow,
    Phases,
    RankReport,
    Window,
)
from gpuscale.records.tolerances import ToleranceOverride, Tolerances
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
