"""Records in the folders of nightly runs and of sweeps over the nodes of a cluster."""

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from gpuscale import __version__
from gpuscale.base.errors import FileError, UsageError
from gpuscale.base.grouping import by_key
from gpuscale.base.text import clean, visible
from gpuscale.records import Results, Run
from gpuscale.records.cause import FleetRow, NodeVisit, NotMeasured
from gpuscale.records.record import (
    Gpus,
    Line,
    Moment,
    Name,
    PositiveCount,
    Record,
    UnixTime,
    from_json,
    to_json,
)
from gpuscale.store.files import file_errors, read_with
from gpuscale.store.results import read_results

NIGHT_JSON, NIGHT_TEXT = "night.json", "night.txt"
SWEEPS = Path(".gpuscale") / "fleet"
SWEEP_JSON = "sweep.json"
_CLOCKS_DIFFER_S = 60.0
"""Largest clock error, in seconds, that is ignored, since it changes no verdict."""
_MOST_PAST = 5
"""Maximum number of earlier sweeps with which a node is compared."""


class NightRecord(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Record of how a nightly run ended; a field is None if unknown."""

    format: Literal["gpuscale-night"] = "gpuscale-night"
    version: Literal[1] = 1
    night: Line
    """Outcome of the nightly run, in words."""
    unjudged: Line | None = None
    """Advice for a complete night that was not judged; None for other nights."""
    exit: int | None = None
    pytest_exit: int | None = None
    compare_exit: int | None = None
    """Exit code of the comparison; None if nothing was compared."""
    all_measured: bool = False
    infrastructure: tuple[Line, ...] = ()
    """Faults of nodes, the network, a file system or the scheduler, in any attempt."""
    left_out: tuple[Line, ...] = ()
    """Reasons why some pytest items measured nothing without failing."""
    not_collected: tuple[Line, ...] = ()
    attempts: int = 1
    started: Line | None = None
    finished: Line | None = None
    host: Line | None = None
    nodes: tuple[Line, ...] = ()
    job: Line | None = None
    """The scheduler's job, or the word that was given instead."""
    revision: Line | None = None
    """Git revision of the repository with the cases."""
    gpuscale: Line | None = None
    """Version of gpuscale, and a digest of its modules, which tells builds of a version apart."""
    baseline: Line | None = None
    on_verdict: Line | None = None
    """Outcome of the site's verdict command: `told` if it succeeded, else a description of the
    problem; None if no such command is configured."""

    @staticmethod
    def own_build() -> str:
        """Return the version of gpuscale and a digest of its modules, such as `0.1.0 (3f2a9c…)`."""
        room = Path(__file__).parents[1]
        paths = sorted(path.relative_to(room) for path in room.rglob("*.py"))
        modules = (room / path for path in paths if path.parts[0] != "shipped")
        digest = sha256(b"".join(path.read_bytes() for path in modules)).hexdigest()
        return f"{__version__} ({digest[:12]})"


def record_files(record: NightRecord) -> dict[str, str]:
    """Return the contents of a nightly run's record files, JSON and plain text, by file name."""
    shown = {
        **msgspec.structs.asdict(record),
        **dict.fromkeys(("format", "version")),
        "all_measured": "yes" if record.all_measured else "no",
        "nodes": " ".join(record.nodes) or None,
    }
    lines = (
        f"{name.replace('_', ' ')}: {clean(str(fact))}\n"
        for name, value in shown.items()
        for fact in (value if isinstance(value, tuple) else (value,))
        if fact is not None
    )
    document = msgspec.json.format(to_json(record), indent=2)
    return {NIGHT_JSON: f"{document}\n", NIGHT_TEXT: "".join(lines)}


def read_night(folder: Path) -> NightRecord | None:
    """Read the record of a nightly run from its folder; return None if that fails."""
    with suppress(FileError):
        return read_with(folder / NIGHT_JSON, lambda text: from_json(NightRecord, text))
    return None


class _Comparison(msgspec.Struct):
    brief: str


def read_brief(folder: Path) -> str:
    """Return the one-line verdict of a night's comparison; empty if it cannot be read."""
    with suppress(FileError):
        file = folder / "comparison.json"
        return read_with(file, lambda text: from_json(_Comparison, text)).brief
    return ""


def nights_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for the nightly runs of all machines: GPUSCALE_NIGHTLY_DIR or a default."""
    return Path(environment.get("GPUSCALE_NIGHTLY_DIR") or ".gpuscale/nightly")


def new_night(folder: Path, *, name: str, job: str, day: date) -> Path:
    """Create `folder/name/DATE_job`; raise FileError if it exists, UsageError for bad names."""
    for what, text in (("NAME", name), ("JOB", job)):
        if not text or "/" in text or text.startswith("."):
            raise UsageError(f"{what}: '{visible(text)}' is no folder name; use a single word")
    path = folder / name / f"{day.isoformat()}_{job}"
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    return path


class SweepJob(Record, frozen=True, kw_only=True):
    """A job of a sweep; each job measures one node once."""

    node: Name
    number: PositiveCount
    """Number of the job among the jobs of its node, from 1."""
    is_control: bool = False
    """True if the node is measured repeatedly to observe the machine's drift, not on suspicion."""
    job: Line | None = None
    """The scheduler's job number; None until the scheduler has reported it."""
    submitted_at_s: UnixTime
    ended_at_s: UnixTime | None = None
    """Time at which the sweep noticed the job's end, by the same clock as `submitted_at_s`."""
    outcome: NotMeasured | Literal["measured"] | None = None
    """`measured`, or the reason why the job measured nothing; None if it has not ended."""
    detail: Line = ""
    """Details of the outcome, from the scheduler or from the first failed run."""

    @property
    def results_name(self) -> str:
        """Name of the job's results file in the folder of the sweep."""
        return f"{self.node}-{self.number}.jsonl"

    def clock_error_s(self, results: Results) -> float:
        """Return by how much the node's clock is certainly off (> 0 s: ahead); 0 if negligible."""
        middle_s = _middle_s(results)
        error_s = middle_s - min(max(middle_s, self.submitted_at_s), self.ended_at_s or math.inf)
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
    """GPU counts on which the case is measured on each node, such as 1 and 8."""
    created_at: Moment
    on_verdict: Line | None = None
    jobs: tuple[SweepJob, ...] = ()
    states: Mapping[Name, Line] = {}
    """State of each node that was out of service when the sweep last ended."""

    @property
    def plan(self) -> object:
        """Comparison key: sweeps with equal plans can be compared with each other."""
        return self.cluster, self.partition, self.case, self.gpus

    def not_measured(self) -> dict[str, tuple[NotMeasured, str]]:
        """Return (reason, details) for each node that was not measured, keyed by node."""
        found: dict[str, tuple[NotMeasured, str]] = dict.fromkeys(self.nodes, ("not reached", ""))
        found |= {name: ("down", state) for name, state in self.states.items()}
        for job in self.jobs:
            if job.outcome != "measured":
                found[job.node] = job.outcome or "stopped", job.detail
        done = {job.node for job in self.jobs if job.outcome == "measured"}
        return {name: why for name, why in found.items() if name not in done}


def read_sweep(folder: Path) -> SweepRecord:
    """Read the record of a sweep; raise a UsageError if the folder does not contain one."""
    if not (folder / SWEEP_JSON).is_file():
        problem = f"{folder} is not the folder of a sweep (it has no {SWEEP_JSON})"
        raise UsageError(f"{problem}; name one in {SWEEPS}, or begin one with 'gpuscale fleet run'")
    return read_with(folder / SWEEP_JSON, lambda text: from_json(SweepRecord, text))


def results_of_sweep(folder: Path, record: SweepRecord) -> Iterator[tuple[SweepJob, Results]]:
    """Yield the jobs of a sweep that measured their nodes, each with its results; skip others."""
    for job in record.jobs:
        if job.outcome == "measured":
            path = folder / job.results_name
            where = (results := read_results(path)).environment
            if None not in (job.job, where.job_id) and job.job != where.job_id:
                problem = f"was written by job {where.job_id} on {where.host}, not by {job.job}"
                raise FileError(path, f"{problem}; put back the file of that job")
            yield job, results


def visits_of(folder: Path, record: SweepRecord) -> list[NodeVisit]:
    """Return the measurements of a sweep: a NodeVisit for each job that measured its node."""
    read = results_of_sweep(folder, record)
    return [visit_of(job, results, record.partition) for job, results in read]


def past_visits(folder: Path, record: SweepRecord) -> list[list[NodeVisit]]:
    """Return measurements of up to 5 earlier sweeps with the plan of `record`, oldest first."""
    paths = folder.absolute().parent.glob(f"*/{SWEEP_JSON}")
    sweeps = ((read_sweep(path.parent), path.parent) for path in paths)
    alike = [(sweep, place) for sweep, place in sweeps if sweep.plan == record.plan]
    earlier = [each for each in alike if each[0].created_at < record.created_at]
    earlier.sort(key=lambda each: each[0].created_at)
    return [visits_of(place, sweep) for sweep, place in earlier[-_MOST_PAST:]]


def visit_of(job: SweepJob, results: Results, partition: str) -> NodeVisit:
    """Convert the results of one job to a NodeVisit, with the step times of each row."""
    where, runs = results.environment, [run for run in results.runs if run.is_valid]
    model = " + ".join(where.gpu_names) or where.cpu_model or where.device
    times_s = by_key((row_of(run), run.step_time_s) for run in runs)
    measured_at_s = _middle_s(results)
    if job.clock_error_s(results):
        # The node's clock is wrong, and the end of the job is the closest known time.
        measured_at_s = job.ended_at_s or job.submitted_at_s
    return NodeVisit(
        node=job.node,
        kind=f"{partition}, {model}",
        job=job.number - 1,
        measured_at_s=measured_at_s,
        step_times_s=tuple((row, tuple(times)) for row, times in times_s.items()),
        is_control=job.is_control,
    )


def row_of(run: Run) -> FleetRow:
    """Return the row of a run: its number of GPUs and, for a single GPU, the device if known."""
    devices = run.ranks[0].devices if run.gpus == 1 and run.ranks else ()
    return FleetRow(gpus=run.gpus, device=devices[0] if devices else None)


def _middle_s(results: Results) -> float:
    """Return the median start time of the valid runs as Unix time, by the node's clock."""
    return statistics.median(run.started_at_s or 0.0 for run in results.runs if run.is_valid)
