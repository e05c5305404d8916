"""Find the sick nodes of a fleet, in which healthy nodes and GPUs differ persistently.

Each GPU is compared with all GPUs of its kind, and the GPUs of a node together with other nodes, by
logarithms of step times without the drift of the machine. Repeated jobs cannot average away that
healthy ones differ, so their robustly estimated spread decides, corrected for the number of nodes.
If there are earlier sweeps, each node is also compared with itself. A node is called sick only if
a second job shows the loss again, and the loss is estimated from that job alone, since the first
one was the worst of many (docs/evidence/rates.md has the error rates).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.analysis.statistics.distributions import t_quantile
from gpuscale.analysis.statistics.estimates import Term, difference, exponential, grouped_log_sample
from gpuscale.analysis.statistics.robust import EFFICIENCY, drift_levels, robust_deviation
from gpuscale.records.fleet import (
    Doubt,
    FleetRow,
    FleetVerdict,
    KindSpread,
    NodeState,
    NodeVerdict,
    NodeVisit,
    NotMeasured,
    Reference,
)

FEWEST_NODES = 4
"""Minimum number of nodes of one kind that is needed to judge any of them."""
SMALLEST_LOSS = math.log(1.015)
"""Nodes with a smaller loss (log step time) are never called sick."""
_NEVER_HEALTHY = math.log(1.5)
"""A node is at least unclear if any of its jobs shows a larger loss than this."""
_ERROR = 0.05
"""Probability that a sweep calls any healthy node sick."""
_SUSPICIOUS = 0.005
"""One-sided p-value, uncorrected, below which a node needs a second job."""
_CONFIRMATION_P = 0.001
"""One-sided p-value, uncorrected, that the later jobs alone must reach to confirm a loss."""
_STATES = list(NodeState)

_Key = tuple[str, FleetRow]
"""A node, and one of the rows that are measured on it."""
_Group = tuple[str, int, bool]
"""Rows that are judged together, identified by kind of node, number of GPUs, and True for rows that
use all GPUs of a node."""


class _Job(NamedTuple):
    """Log step time of a row in one job, without the drift of the machine."""

    deviation: float
    variance: float
    """Variance of `deviation` due to differences between runs."""


_Jobs = Mapping[_Key, Sequence[_Job]]
"""The jobs of each row of each node, in the order of measurement."""


class _Scale(NamedTuple):
    """Distribution of healthy nodes, or of the changes of healthy nodes since earlier sweeps."""

    centre: float
    between: float
    """Variance between healthy nodes, without the variance of runs."""
    centre_variance: float
    df: float

    @classmethod
    def of(cls, jobs: _Jobs) -> "_Scale":
        """Estimate the scale from the first job of each row; later jobs are made on suspicion."""
        first = [own[0] for own in jobs.values()]
        total = robust_deviation([job.deviation for job in first]) ** 2
        return cls(
            centre=statistics.median(job.deviation for job in first),
            between=max(0.0, total - statistics.median(job.variance for job in first)),
            centre_variance=math.pi / 2 * total / _count(jobs),
            df=EFFICIENCY * (len(first) - 1),
        )

    def loss(self, jobs: Sequence[_Job]) -> float:
        return statistics.fmean(job.deviation for job in jobs) - self.centre

    def count_large(self, jobs: Sequence[_Job]) -> int:
        """Return the number of jobs whose loss is too large to be called healthy."""
        return sum(self.loss([job]) > _NEVER_HEALTHY for job in jobs)

    def error(self, jobs: Sequence[_Job]) -> float:
        """Return the variance of the measured loss about the true loss of the row."""
        return math.fsum(job.variance for job in jobs) / len(jobs) ** 2 + self.centre_variance

    def ratio(self, jobs: Sequence[_Job], p_value: float) -> float:
        """Return the loss divided by that which healthy rows exceed with probability `p_value`."""
        deviation = math.sqrt(self.between + self.error(jobs))
        return self.loss(jobs) / max(SMALLEST_LOSS, t_quantile(1 - p_value, self.df) * deviation)


class _Finding(NamedTuple):
    """One row of one node, judged against one reference."""

    state: NodeState
    ratio: float
    """Loss over all jobs, relative to the largest loss that is expected of a healthy row."""
    row: FleetRow
    against: Reference
    past: float | None
    scale: _Scale
    jobs: Sequence[_Job]

    def verdict(self, node: str, kind: str) -> NodeVerdict:
        """Return the verdict on a node, based on this finding."""
        # The job that raised suspicion was the slowest of many, so that it overstates the loss.
        later = self.jobs[1:] or self.jobs
        doubt: Doubt = "not seen again" if self.jobs[1:] else "one job"
        if self.jobs[1:] and self.scale.count_large(self.jobs) == len(self.jobs):
            doubt = "nodes differ"
        error = Term(variance=self.scale.error(later), df=self.scale.df)
        return NodeVerdict(
            node=node,
            kind=kind,
            state=self.state,
            doubt=doubt if self.state is NodeState.UNCLEAR else None,
            speed=difference(-self.scale.loss(later), [error]).relative_change(),
            row=self.row,
            against=self.against,
            jobs=len(self.jobs),
            jobs_slow=sum(self.scale.ratio([job], _SUSPICIOUS) > 1 for job in self.jobs),
            past=None if self.past is None else exponential(-self.past) - 1,
        )


def to_repeat(
    visits: Sequence[NodeVisit], past: Sequence[Sequence[NodeVisit]] = ()
) -> tuple[str, ...]:
    """Return the nodes that need a second job before they can be judged, worst first."""
    return tuple(node.node for node in judge(visits, past).nodes if node.doubt == "one job")


def judge(
    visits: Sequence[NodeVisit],
    past: Sequence[Sequence[NodeVisit]] = (),
    not_measured: Mapping[str, NotMeasured] | None = None,
) -> FleetVerdict:
    """Judge each node of a sweep against its kind, and against itself in earlier sweeps.

    `not_measured` has the reason for each requested node without a visit.
    """
    measured, unmeasured = _measured(visits), NodeState.NOT_MEASURED
    findings, rows = _findings(measured, past), _rows(visits)
    verdicts = [
        NodeVerdict(node=node, kind=None, state=unmeasured, reason=reason)
        for node, reason in (not_measured or {}).items()
    ]
    most = dict(sorted((kind, len(own)) for (kind, _), own in rows.items()))
    for (kind, node), own in rows.items():
        verdict = NodeVerdict(node=node, kind=kind, state=unmeasured, reason="none alike")
        if node in findings:
            verdict = _finding_to_report(findings[node]).verdict(node, kind)
        if len(own) < most[kind] and verdict.state is not NodeState.SICK:
            verdict = replace(verdict, state=unmeasured, doubt=None, reason="row missing")
        verdicts.append(verdict)
    verdicts.sort(key=lambda v: (_STATES.index(v.state), v.speed.value if v.speed else 0, v.node))
    kinds = (_kind_spread(kind, gpus, jobs) for (kind, gpus, _), jobs in measured.items())
    return FleetVerdict(nodes=tuple(verdicts), kinds=tuple(kinds))


def _kind_spread(kind: str, gpus: int, jobs: _Jobs) -> KindSpread:
    scale = _Scale.of(jobs)
    step_time_s, spread = exponential(scale.centre), math.sqrt(scale.between)
    return KindSpread(
        kind=kind, gpus=gpus, nodes=_count(jobs), step_time_s=step_time_s, spread=spread
    )


def _finding_to_report(findings: Sequence[_Finding]) -> _Finding:
    """Return the finding to report for a node: a slow GPU, unless most of its GPUs are slow."""
    worst = min((finding.state for finding in findings), key=_STATES.index)
    found = [finding for finding in findings if finding.state is worst]
    alone = [finding for finding in found if finding.row.device is not None]
    slow, rows = ({finding.row for finding in some} for some in (alone, findings))
    return max(alone if alone and 2 * len(slow) < len(rows) else found, key=lambda one: one.ratio)


def _rows(visits: Iterable[NodeVisit]) -> dict[tuple[str, str], set[FleetRow]]:
    """Return the rows that were measured, keyed by kind and node."""
    rows: dict[tuple[str, str], set[FleetRow]] = {}
    for visit in visits:
        measured = (row for row, _ in visit.step_times_s)
        rows.setdefault((visit.kind, visit.node), set()).update(measured)
    return rows


def _findings(
    now: Mapping[_Group, _Jobs], past: Iterable[Sequence[NodeVisit]]
) -> dict[str, list[_Finding]]:
    """Judge every row against each reference; p-values are corrected for the number of tests.

    Return the findings by node.
    """
    levels: dict[_Key, list[float]] = {}
    for jobs in (jobs for sweep in past for jobs in _measured(sweep).values()):
        centre = statistics.median(own[0].deviation for own in jobs.values())
        for key, own in jobs.items():
            level = statistics.fmean(job.deviation for job in own) - centre
            levels.setdefault(key, []).append(level)
    usual = {key: statistics.median(values) for key, values in levels.items()}
    families: dict[tuple[bool, Reference], list[_Jobs]] = {}
    for (_, _, is_all), jobs in now.items():
        changes = {
            key: [job._replace(deviation=job.deviation - usual[key]) for job in own]
            for key, own in jobs.items()
            if key in usual
        }
        references: tuple[tuple[Reference, _Jobs], ...] = (("fleet", jobs), ("past", changes))
        for against, compared in references:
            if _count(compared) >= FEWEST_NODES:
                families.setdefault((is_all, against), []).append(compared)
    findings: dict[str, list[_Finding]] = {}
    for (_, against), groups in families.items():
        p_value = _ERROR / len(families) / sum(map(len, groups))
        for jobs in groups:
            scale = _Scale.of(jobs)
            for (node, row), own in jobs.items():
                state, ratio = _state(scale, own, p_value), scale.ratio(own, p_value)
                before = usual.get((node, row))
                is_news = against == "past" or before is None
                if state is NodeState.HEALTHY and is_news and scale.count_large(own):
                    state = NodeState.UNCLEAR
                finding = _Finding(state, ratio, row, against, before, scale, own)
                findings.setdefault(node, []).append(finding)
    return findings


def _state(scale: _Scale, jobs: Sequence[_Job], p_value: float) -> NodeState:
    """Return the state: sick only if all jobs show a loss and the later ones alone confirm it."""
    together, later = scale.ratio(jobs, p_value), jobs[1:]
    if together > 1 and later and scale.ratio(later, _CONFIRMATION_P) > 1:
        return NodeState.SICK
    # Without a second job, a suspicion is enough; with it, only a proof that is not confirmed.
    single = max(scale.ratio([job], p_value if later else _SUSPICIOUS) for job in jobs)
    return NodeState.UNCLEAR if max(together, single) > 1 else NodeState.HEALTHY


def _count(jobs: _Jobs) -> int:
    return len({node for node, _ in jobs})


def _measured(visits: Iterable[NodeVisit]) -> dict[_Group, _Jobs]:
    """Return the jobs of each group of rows, with the drift of the machine removed."""
    groups: dict[_Group, list[tuple[NodeVisit, dict[FleetRow, list[float]]]]] = {}
    for visit in sorted(visits, key=lambda visit: (visit.measured_at_s, visit.job)):
        of_visit: dict[_Group, dict[FleetRow, list[float]]] = {}
        for row, times_s in visit.step_times_s:
            group = visit.kind, row.gpus, row.device is None
            of_visit.setdefault(group, {})[row] = [math.log(time_s) for time_s in times_s]
        for group, rows in of_visit.items():
            groups.setdefault(group, []).append((visit, rows))
    measured: dict[_Group, _Jobs] = {}
    for group, made in groups.items():
        sample = grouped_log_sample(logs for _, rows in made for logs in rows.values())
        values = [statistics.median(map(statistics.fmean, rows.values())) for _, rows in made]
        levels = drift_levels([visit for visit, _ in made], values)
        typical, jobs = statistics.median(levels), dict[_Key, list[_Job]]()
        for (visit, rows), level in zip(made, levels, strict=True):
            for row, logs in rows.items():
                deviation = statistics.fmean(logs) - level + typical
                job = _Job(deviation, (sample.variance or 0.0) / len(logs))
                jobs.setdefault((visit.node, row), []).append(job)
        measured[group] = jobs
    return measured
