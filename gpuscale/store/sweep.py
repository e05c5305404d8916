"""The folder of a sweep over the nodes of a cluster: its plan and jobs, and what they measured."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gpuscale.base.errors import UsageError
from gpuscale.records import Results
from gpuscale.records.fleet import FleetRow, NodeVisit, NotMeasured
from gpuscale.records.json_text import from_json
from gpuscale.records.record import Gpus, Line, Moment, Name, PositiveCount, Record, Seconds
from gpuscale.store.files import read_with
from gpuscale.store.results import read_results

SWEEPS = Path(".gpuscale") / "fleet"
RECORD = "sweep.json"


class SweepJob(Record, frozen=True, kw_only=True):
    """A job that measures one node once."""

    node: Name
    number: PositiveCount
    """Number of the job among those of its node, from 1."""
    is_control: bool = False
    """True if the node is measured again to see the machine drift, not on suspicion."""
    job: Line | None = None
    """Number of the scheduler's job; None until the scheduler has said it."""
    submitted_at: Moment
    outcome: NotMeasured | Literal["measured"] | None = None
    """Why the job measured nothing, or `measured`; None if it has not ended."""
    detail: Line = ""
    """The outcome in words of the scheduler, or of the first run that failed."""

    @property
    def results_name(self) -> str:
        """Name of the results file in the folder of the sweep."""
        return f"{self.node}-{self.number}.jsonl"


class SweepRecord(Record, frozen=True, kw_only=True):
    """The plan of a sweep, and its jobs so far; the contents of `sweep.json`."""

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
    """Estimated time of a job."""
    created_at: Moment
    on_verdict: Line | None = None
    jobs: tuple[SweepJob, ...] = ()
    states: Mapping[Name, Line] = {}
    """State of each node that was out of service when the sweep last ended."""

    def precedes(self, later: "SweepRecord") -> bool:
        """True if this sweep was begun before another one, and measured the same there."""
        mine, others = (
            (each.cluster, each.partition, each.case, each.gpus) for each in (self, later)
        )
        return mine == others and self.created_at < later.created_at

    def not_measured(self) -> dict[str, tuple[NotMeasured, str]]:
        """Return why nodes were not measured, in a word and in detail, by node."""
        found: dict[str, tuple[NotMeasured, str]] = dict.fromkeys(self.nodes, ("not reached", ""))
        found |= {name: ("down", state) for name, state in self.states.items()}
        for job in self.jobs:
            if job.outcome != "measured":
                found[job.node] = job.outcome or "stopped", job.detail
        done = {job.node for job in self.jobs if job.outcome == "measured"}
        return {name: why for name, why in found.items() if name not in done}


def read_sweep(folder: Path) -> SweepRecord:
    """Read the record of a sweep; raise a UsageError if the folder is none of a sweep."""
    if not (folder / RECORD).is_file():
        problem = f"{folder} is no folder of a sweep (it has no {RECORD})"
        raise UsageError(f"{problem}; name one in {SWEEPS}, or begin one with 'gpuscale fleet run'")
    return read_with(folder / RECORD, lambda text: from_json(SweepRecord, text))


def results_of_sweep(folder: Path, record: SweepRecord) -> list[tuple[SweepJob, Results]]:
    """Return all jobs of a sweep that measured their nodes, each with its results."""
    measured = (job for job in record.jobs if job.outcome == "measured")
    return [(job, read_results(folder / job.results_name)) for job in measured]


def visit_of(job: SweepJob, results: Results, partition: str) -> NodeVisit:
    """Return what a job measured on its node, for the judgement."""
    where, runs = results.environment, [run for run in results.runs if run.is_valid]
    model = " + ".join(where.gpu_names) or where.cpu_model or where.device
    times_s: dict[FleetRow, list[float]] = {}
    for run in runs:
        devices = run.ranks[0].devices if run.gpus == 1 and run.ranks else ()
        row = FleetRow(gpus=run.gpus, device=devices[0] if devices else None)
        times_s.setdefault(row, []).append(run.step_time_s)
    return NodeVisit(
        node=job.node,
        kind=f"{partition}, {model}",
        job=job.number - 1,
        measured_at_s=statistics.median(run.started_at_s or 0.0 for run in runs),
        step_times_s=tuple((row, tuple(times)) for row, times in times_s.items()),
        is_control=job.is_control,
    )
