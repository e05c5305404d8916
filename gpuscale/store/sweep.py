"""The folder of a sweep over the nodes of a cluster: its plan, its jobs and their results."""

import math
import statistics
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from gpuscale.base.errors import FieldError, FileError, UsageError
from gpuscale.records import Results
from gpuscale.records.fleet import FleetRow, NodeVisit, NotMeasured
from gpuscale.records.json_text import from_json
from gpuscale.records.record import Gpus, Line, Moment, Name, PositiveCount, Record, Seconds
from gpuscale.store.files import read_with
from gpuscale.store.results import read_results

SWEEPS = Path(".gpuscale") / "fleet"
RECORD = "sweep.json"
_CLOCKS_DIFFER_S = 60.0
"""Clock differences up to this are ignored, since they change no verdict."""
_MOST_PAST = 5
"""Maximum number of earlier sweeps with which a node is compared."""


class SweepJob(Record, frozen=True, kw_only=True):
    """A job that measures one node once."""

    node: Name
    number: PositiveCount
    """Number of the job among the jobs of its node, from 1."""
    is_control: bool = False
    """True if the node is measured repeatedly to observe the machine's drift, not on suspicion."""
    job: Line | None = None
    """The scheduler's job number; None until the scheduler has reported it."""
    submitted_at: Moment
    ended_at: Moment | None = None
    """Time at which the sweep noticed the end of the job, by the same clock as `submitted_at`."""
    outcome: NotMeasured | Literal["measured"] | None = None
    """`measured`, or the reason why the job measured nothing; None if it has not ended."""
    detail: Line = ""
    """Details of the outcome, from the scheduler or from the first failed run."""

    def __post_init__(self) -> None:
        for name in ("submitted_at", "ended_at"):
            try:
                datetime.fromisoformat(getattr(self, name) or "2026-11-21")
            except ValueError:
                raise FieldError(name, "expected a date and time that exist") from None

    @property
    def results_name(self) -> str:
        """Name of the results file in the folder of the sweep."""
        return f"{self.node}-{self.number}.jsonl"

    def clock_error_s(self, results: Results) -> float:
        """Return the least clock error of the node that explains its times; negative if behind."""
        begun, ended = (
            math.inf if moment is None else datetime.fromisoformat(moment).timestamp()
            for moment in (self.submitted_at, self.ended_at)
        )
        middle_s = _middle_s(results)
        error_s = middle_s - min(max(middle_s, begun), ended)
        return error_s if abs(error_s) > _CLOCKS_DIFFER_S else 0.0


class SweepRecord(Record, frozen=True, kw_only=True):
    """The plan of a sweep and its jobs so far, as stored in `sweep.json`."""

    format: Literal["gpuscale-sweep"] = "gpuscale-sweep"
    version: Literal[1] = 1
    cluster: Name
    """Name of the cluster profile."""
    partition: Line
    nodes: tuple[Name, ...]
    case: Line
    gpus: tuple[Gpus, ...]
    """Numbers of GPUs on which each node is measured."""
    job_s: Seconds
    """Estimated duration of a job."""
    created_at: Moment
    on_verdict: Line | None = None
    jobs: tuple[SweepJob, ...] = ()
    states: Mapping[Name, Line] = {}
    """State of each node that was out of service when the sweep last ended."""

    def precedes(self, later: "SweepRecord") -> bool:
        """True if this sweep began before another one and has the same plan."""
        mine, others = (
            (each.cluster, each.partition, each.case, each.gpus) for each in (self, later)
        )
        return mine == others and self.created_at < later.created_at

    def not_measured(self) -> dict[str, tuple[NotMeasured, str]]:
        """Return the reason why each node was not measured, as a keyword and in detail, by node."""
        found: dict[str, tuple[NotMeasured, str]] = dict.fromkeys(self.nodes, ("not reached", ""))
        found |= {name: ("down", state) for name, state in self.states.items()}
        for job in self.jobs:
            if job.outcome != "measured":
                found[job.node] = job.outcome or "stopped", job.detail
        done = {job.node for job in self.jobs if job.outcome == "measured"}
        return {name: why for name, why in found.items() if name not in done}


def read_sweep(folder: Path) -> SweepRecord:
    """Read the record of a sweep; raise a UsageError if the folder does not contain one."""
    if not (folder / RECORD).is_file():
        problem = f"{folder} is no folder of a sweep (it has no {RECORD})"
        raise UsageError(f"{problem}; name one in {SWEEPS}, or begin one with 'gpuscale fleet run'")
    return read_with(folder / RECORD, lambda text: from_json(SweepRecord, text))


def results_of_sweep(folder: Path, record: SweepRecord) -> list[tuple[SweepJob, Results]]:
    """Return all jobs of a sweep that measured their nodes, each with its results.

    Raises FileError for results of another job, such as of another machine.
    """
    found = []
    for job in record.jobs:
        if job.outcome == "measured":
            path = folder / job.results_name
            where = (results := read_results(path)).environment
            if None not in (job.job, where.job_id) and job.job != where.job_id:
                here = f"job {job.job} of {record.cluster}"
                problem = f"is of job {where.job_id} on {where.host}, and not of {here}"
                raise FileError(path, f"{problem}; put back what that job wrote")
            found.append((job, results))
    return found


def visits_of(folder: Path, record: SweepRecord) -> list[NodeVisit]:
    """Return the visits of all jobs that measured their nodes."""
    read = results_of_sweep(folder, record)
    return [visit_of(job, results, record.partition) for job, results in read]


def past_visits(folder: Path, record: SweepRecord) -> list[list[NodeVisit]]:
    """Return the visits of the latest earlier sweeps with the same plan, beside this sweep."""
    beside = (path.parent for path in folder.absolute().parent.glob(f"*/{RECORD}"))
    found = [(read_sweep(place), place) for place in beside]
    earlier = [each for each in found if each[0].precedes(record)]
    earlier.sort(key=lambda each: each[0].created_at)
    return [visits_of(place, before) for before, place in earlier[-_MOST_PAST:]]


def visit_of(job: SweepJob, results: Results, partition: str) -> NodeVisit:
    """Return the visit that a job made to its node."""
    where, runs = results.environment, [run for run in results.runs if run.is_valid]
    model = " + ".join(where.gpu_names) or where.cpu_model or where.device
    times_s: dict[FleetRow, list[float]] = {}
    for run in runs:
        devices = run.ranks[0].devices if run.gpus == 1 and run.ranks else ()
        row = FleetRow(gpus=run.gpus, device=devices[0] if devices else None)
        times_s.setdefault(row, []).append(run.step_time_s)
    measured_at_s = _middle_s(results)
    if job.clock_error_s(results):
        # The end of the job is the nearest moment known.
        measured_at_s = datetime.fromisoformat(job.ended_at or job.submitted_at).timestamp()
    return NodeVisit(
        node=job.node,
        kind=f"{partition}, {model}",
        job=job.number - 1,
        measured_at_s=measured_at_s,
        step_times_s=tuple((row, tuple(times)) for row, times in times_s.items()),
        is_control=job.is_control,
    )


def _middle_s(results: Results) -> float:
    """Return the median start time of the valid runs, by the clock of the node."""
    return statistics.median(run.started_at_s or 0.0 for run in results.runs if run.is_valid)
