"""Find sick nodes in a fleet whose healthy nodes and GPUs also differ persistently.

Log step times are corrected for the drift of the cluster. Each GPU is compared with all GPUs of its
kind, and each node (all its GPUs together) with the other nodes. How far a healthy one may deviate
depends on the number of nodes and on a robust estimate of the spread between them. More jobs are
run while the verdict is open (error rates: docs/evidence/rates.md).
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from gpuscale.analysis.estimates import Term, difference, exponential, grouped_log_sample
from gpuscale.analysis.fleet_drift import EFFICIENCY, drift_levels, robust_deviation
from gpuscale.analysis.probabilities import t_quantile
from gpuscale.records import cause
from gpuscale.records.cause import FleetRow, NodeState, NodeVerdict, NodeVisit, Reference

FEWEST_NODES = 4
"""Minimum number of nodes of one kind that is needed to judge any of them."""
SMALLEST_LOSS = math.log(1.015)
"""Smallest loss (log step time) of a node that may be called sick."""
_NEVER_HEALTHY = math.log(1.5)
"""Loss (log step time) in a single job above which a node is never called healthy."""
_ERROR = 0.05
"""Probability that a sweep calls any healthy node sick."""
_SUSPICIOUS = 0.005
"""One-sided p-value, uncorrected, below which a node needs a second job."""
_MOST_JOBS = 4
"""Maximum number of jobs that a sweep runs on one node while the node's verdict is open."""
_OPEN_ERRORS = 2.0
"""Distance of a loss from the limit, in standard errors, below which the verdict is open."""
_CONFIRMATION_P = 0.001
"""One-sided p-value, uncorrected, that the later jobs alone must reach to confirm a loss."""
_STATES = list(NodeState)

_Key = tuple[str, FleetRow]
"""A node, and one of the rows that are measured on it."""
_Group = tuple[str, int, bool]
"""Rows judged together: kind of node, number of GPUs, and True if rows use all GPUs of a node."""


class _Job(NamedTuple):
    """The logarithm of a row's step time in one job, corrected for the cluster's drift."""

    deviation: float
    variance: float
    """Variance of `deviation` due to differences between runs."""


_Jobs = Mapping[_Key, Sequence[_Job]]
"""The jobs of each row of each node, in the order of measurement."""


class _Scale(NamedTuple):
    """Distribution of healthy nodes' log step times, or of their changes since earlier sweeps."""

    centre: float
    between: float
    """Variance between healthy nodes, without the variance of runs."""
    centre_variance: float
    df: float

    @classmethod
    def of(cls, jobs: _Jobs) -> "_Scale":
        """Base the estimate on each row's first job, because only suspect nodes get more jobs."""
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

    def error(self, jobs: Sequence[_Job]) -> float:
        """Return the squared standard error of the log slowdown measured in these jobs."""
        return math.fsum(job.variance for job in jobs) / len(jobs) ** 2 + self.centre_variance

    def limit(self, jobs: Sequence[_Job], p_value: float) -> float:
        """Return the log slowdown that a healthy row exceeds with probability `p_value` or less."""
        deviation = math.sqrt(self.between + self.error(jobs))
        return max(SMALLEST_LOSS, t_quantile(1 - p_value, self.df) * deviation)

    def ratio(self, jobs: Sequence[_Job], p_value: float) -> float:
        return self.loss(jobs) / self.limit(jobs, p_value)

    def is_slow(self, job: _Job, p_value: float = _SUSPICIOUS) -> bool:
        return self.ratio([job], p_value) > 1 or self.loss([job]) > _NEVER_HEALTHY

    def is_open(self, jobs: Sequence[_Job], p_value: float) -> bool:
        """True if one more job may decide whether the row measured in these jobs is slow."""
        if len(jobs) == 1:
            return self.is_slow(jobs[0]) or self.ratio(jobs, p_value) > 1
        error = math.sqrt(self.error(jobs) - self.centre_variance)
        apart = abs(self.loss(jobs) - self.limit(jobs, p_value))
        return len(jobs) < _MOST_JOBS and apart < _OPEN_ERRORS * error


_Finding = tuple[float, NodeVerdict]
"""Ratio of a row's loss to the largest loss expected of a healthy row, and the row's verdict."""


def judge(
    visits: Sequence[NodeVisit],
    past: Sequence[Sequence[NodeVisit]] = (),
    not_measured: Mapping[str, tuple[cause.NotMeasured, str]] | None = None,
) -> tuple[NodeVerdict, ...]:
    """Judge each node of a sweep against nodes of its kind, and against itself in earlier sweeps.

    Return sick nodes first and, within each state, the slowest node first. `not_measured` maps each
    node that was requested but not visited to the reason and its details.
    """
    found, rows = _findings(_measured(visits), past), dict[tuple[str, str], set[FleetRow]]()
    for visit in visits:
        own = rows.setdefault((visit.kind, visit.node), set())
        own.update(row for row, _ in visit.step_times_s)
    most = dict(sorted((kind, len(own)) for (kind, _), own in rows.items()))
    unmeasured = NodeState.NOT_MEASURED
    verdicts = [
        NodeVerdict(node=node, state=unmeasured, reason=reason, detail=detail)
        for node, (reason, detail) in (not_measured or {}).items()
    ]
    for (kind, node), own in rows.items():
        verdict = NodeVerdict(node=node, state=unmeasured, reason="none alike")
        if node in found:
            verdict = _finding_to_report(found[node])
        if len(own) < most[kind] and verdict.state is not NodeState.SICK:
            verdict = replace(verdict, state=unmeasured, needs_job=False, reason="row missing")
        verdicts.append(verdict)
    verdicts.sort(key=lambda v: (_STATES.index(v.state), v.speed.value if v.speed else 0, v.node))
    return tuple(verdicts)


def _finding_to_report(findings: Sequence[_Finding]) -> NodeVerdict:
    """Return a node's worst finding.

    Prefer findings in the worst state, then those that need another job, then those on single GPUs
    (if under half of the node's rows have one), then the largest slowdown relative to its limit.
    """
    worst = min((found.state for _, found in findings), key=_STATES.index)
    likely = [each for each in findings if each[1].state is worst]
    likely = [each for each in likely if each[1].needs_job] or likely
    alone = [each for each in likely if each[1].row and each[1].row.device is not None]
    slow, rows = ({found.row for _, found in some} for some in (alone, findings))
    return max(alone if alone and 2 * len(slow) < len(rows) else likely, key=itemgetter(0))[1]


def _findings(
    now: Mapping[_Group, _Jobs], past: Iterable[Sequence[NodeVisit]]
) -> dict[str, list[_Finding]]:
    """Judge every row against the fleet and its own past; return the findings of each node."""
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
        for scale, jobs in ((_Scale.of(jobs), jobs) for jobs in groups):
            for key, own in jobs.items():
                before, ratio = usual.get(key), scale.ratio(own, p_value)
                finding = ratio, _verdict(key, own, scale, p_value, against, before)
                findings.setdefault(key[0], []).append(finding)
    return findings


def _verdict(
    key: _Key,
    jobs: Sequence[_Job],
    scale: _Scale,
    p_value: float,
    against: Reference,
    before: float | None,
) -> NodeVerdict:
    """Judge a node's row against the fleet or its own past; `before` is its past level, if known.

    A node is sick only if all jobs together show a slowdown that the jobs after the first confirm.
    The slowdown is estimated from these later jobs, because the first was selected for being slow.
    """
    node, row = key
    later = jobs[1:] or jobs
    is_open, is_large = scale.is_open(jobs, p_value), scale.ratio(jobs, p_value) > 1
    is_confirmed = len(jobs) > 1 and scale.ratio(later, _CONFIRMATION_P) > 1
    single = any(scale.is_slow(job, p_value) for job in jobs)
    state = NodeState.UNCLEAR if is_open or is_large or single else NodeState.HEALTHY
    if is_large and is_confirmed and not is_open:
        state = NodeState.SICK
    error = Term(variance=scale.error(later), df=scale.df)
    return NodeVerdict(
        node=node,
        state=state,
        needs_job=is_open,
        speed=difference(-scale.loss(later), [error]).relative_change(),
        row=row,
        against=against,
        jobs=len(jobs),
        jobs_slow=sum(scale.is_slow(job) for job in jobs),
        past=None if before is None else exponential(-before) - 1,
    )


def _count(jobs: _Jobs) -> int:
    return len({node for node, _ in jobs})


def _measured(visits: Iterable[NodeVisit]) -> dict[_Group, _Jobs]:
    """Return the jobs of each group of rows, corrected for the drift of the cluster."""
    groups: dict[_Group, dict[NodeVisit, dict[FleetRow, list[float]]]] = {}
    for visit in sorted(visits, key=lambda visit: (visit.measured_at_s, visit.job)):
        for row, times_s in visit.step_times_s:
            of_group = groups.setdefault((visit.kind, row.gpus, row.device is None), {})
            of_group.setdefault(visit, {})[row] = [math.log(time_s) for time_s in times_s]
    measured: dict[_Group, _Jobs] = {}
    for group, made in groups.items():
        sample = grouped_log_sample(logs for rows in made.values() for logs in rows.values())
        values = [statistics.median(map(statistics.fmean, rows.values())) for rows in made.values()]
        levels = drift_levels([*made], values)
        typical, jobs = statistics.median(levels), dict[_Key, list[_Job]]()
        for (visit, rows), level in zip(made.items(), levels, strict=True):
            for row, logs in rows.items():
                deviation = statistics.fmean(logs) - level + typical
                job = _Job(deviation, (sample.variance or 0.0) / len(logs))
                jobs.setdefault((visit.node, row), []).append(job)
        measured[group] = jobs
    return measured
