"""Run a sweep over nodes of a cluster: choose nodes, submit jobs, and record their outcomes.

Every job is recorded before it is submitted, so that a sweep can be stopped and resumed.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuscale.base.errors import FileError, SchedulerError, UsageError
from gpuscale.base.text import counted
from gpuscale.judge.fleet import FEWEST_NODES, judge
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import MOST_UNKNOWN, UNKNOWN, Ending, JobState, answer_of
from gpuscale.measure.schedulers.slurm import (
    ClusterNode,
    QueuedJob,
    cluster_nodes,
    expanded,
    folded,
    queued_jobs,
)
from gpuscale.records.record import to_json
from gpuscale.store.campaign_folders import (
    SWEEP_JSON,
    SweepJob,
    SweepRecord,
    past_visits,
    visit_of,
    visits_of,
)
from gpuscale.store.files import write_report
from gpuscale.store.results import read_results

_POLL_S = 2.0
_PATIENCE_S = 3600.0
"""Seconds that a job may wait for its node; after that time, the node counts as busy."""
_MOST_REFUSALS = 3
_CONTROLS, _BETWEEN_CONTROLS = 4, 8
"""Number of nodes used as controls, and usual number of jobs between two jobs on a control."""


def nodes_to_sweep(partition: str | None, asked: str) -> tuple[str, tuple[str, ...]]:
    """Return the partition and names of the nodes in `asked`, which is `all` or a Slurm node list.

    If `partition` is None, search all partitions. Raise if nodes are unknown or not comparable.
    """
    if (nodes := cluster_nodes(partition)) is None:
        raise UsageError("sinfo does not answer; start the sweep on a login node of the cluster")
    wanted = expanded(asked)
    swept = [node for node in nodes if node.name in wanted or asked == "all"]
    missing = wanted - {node.name for node in swept} - {"all"}
    partitions = sorted({node.partition for node in swept})
    kinds = {*(node.kind for node in swept)}
    problem = None
    if missing or not nodes:
        has = folded(node.name for node in nodes) or "none"
        problem = f"there is no {folded(missing) or 'node'}; sinfo lists {has}"
    elif len(partitions) > 1:
        problem = f"the nodes are in partitions {', '.join(partitions)}; name one by --partition"
    elif len(kinds) > 1:
        each = ((folded(n.name for n in swept if n.kind == kind), kind) for kind in sorted(kinds))
        listed = "; ".join(f"{names} has {kind}" for names, kind in each)
        problem = f"only nodes of one kind can be compared: {listed}; sweep each kind separately"
    elif len(swept) < FEWEST_NODES:
        problem = f"{counted(len(swept), 'node')} cannot be compared; name {FEWEST_NODES} or more"
    if problem is not None:
        raise UsageError(f"--nodes: {problem}")
    return partitions[0], tuple(node.name for node in swept)


class Sweep:
    """An ongoing sweep over cluster nodes; its current state is always saved in its folder."""

    def __init__(
        self,
        folder: Path,
        record: SweepRecord,
        submit: Callable[[SweepJob, str], str],
        say: Callable[[str], None],
        most_queued: int,
    ) -> None:
        """`submit` submits a job under a name and returns its Slurm ID; `say` prints a message."""
        self._folder, self.record, self._submit, self._say = folder, record, submit, say
        self._most_queued = most_queued
        self._given_up: set[str] = set()
        """Nodes that get no further jobs, because a job failed to measure them."""
        self._unknown: Counter[str] = Counter()
        self._refusals = 0
        self._visits, self._past = visits_of(folder, record), past_visits(folder, record)
        self._suspects: Sequence[str] | None = None
        """Nodes that need another job, worst first; None until the newest results are judged."""

    def run(self) -> None:
        """Submit and follow jobs until every available node has been measured or given up."""
        gone, was_silent = ClusterNode("", "", "down (unknown to Slurm)", ""), False
        while True:
            nodes, queue = cluster_nodes(self.record.partition), queued_jobs()
            if nodes is not None and queue is not None:
                here = {node.name: node for node in nodes}
                known = {name: here.get(name, gone) for name in self.record.nodes}
                for job in self._open():
                    self._follow(job, queue.get(self._name_of(job)), known[job.node])
                if not self._fill(known):
                    break
            elif not was_silent:
                self._say("Slurm's controller does not answer; waiting for it")
            was_silent = nodes is None or queue is None
            time.sleep(_POLL_S)
        states = {name: node.state for name, node in known.items() if node.stage == "out"}
        self._keep(replace(self.record, states=states))

    def _name_of(self, job: SweepJob) -> str:
        """Return the name of a job in Slurm's queue; it includes the creation time of the sweep."""
        moment = re.sub(r"\D", "", self.record.created_at)[:14]
        return f"gpuscale-fleet-{moment}-{job.node}-{job.number}"

    def _open(self) -> list[SweepJob]:
        return [job for job in self.record.jobs if job.outcome is None]

    def _follow(self, job: SweepJob, queued: QueuedJob | None, node: ClusterNode) -> None:
        """Record a job that has ended; cancel one waiting too long or for a node that is down."""
        if queued is not None:
            if job.job != queued.number:
                # The sweep was stopped after submitting the job, before recording the job's number.
                job = self._note(job, job=queued.number)
            is_late = time.time() - job.submitted_at_s > _PATIENCE_S
            if queued.waits and (is_late or node.stage == "out"):
                answer_of(["scancel", queued.number])
                self._end(job, "down" if node.stage == "out" else "busy", node.state)
            return
        if job.job is None and not (self._folder / job.results_name).exists():
            # The sweep was stopped before it submitted the job.
            jobs = tuple(each for each in self.record.jobs if each is not job)
            self._keep(replace(self.record, jobs=jobs))
            return
        state = UNKNOWN if job.job is None else SCHEDULERS["slurm"].state_of(job.job)
        polls = self._unknown[job.results_name] + 1 if state.stage == "unknown" else 0
        self._unknown[job.results_name] = polls
        if state.stage == "ended" or polls > MOST_UNKNOWN:
            self._end_by_results(job, state)

    def _end_by_results(self, job: SweepJob, state: JobState) -> None:
        """Record whether an ended job has measured its node, and the reason if it has not."""
        job = self._note(job, ended_at_s=time.time())
        problem = f"job ended as {state.word}" if state.stage == "ended" else "job lost"
        try:
            results = read_results(self._folder / job.results_name)
        except FileError:
            is_down = state.ending is Ending.RESOURCES_LOST
            self._end(job, "down" if is_down else "failed", f"{problem}, without results")
            return
        failed = [run.failure for run in results.runs if run.failure is not None]
        failed.sort(key=lambda failure: failure.kind == "unsteady")
        valid = {run.gpus for run in results.runs if run.is_valid}
        # Unsteady runs are ignored if each row has a valid run.
        if valid >= {*self.record.gpus} and (not failed or failed[0].kind == "unsteady"):
            self._visits.append(visit_of(job, results, self.record.partition))
            self._suspects = None
            self._end(job, "measured", "")
        else:
            self._end(job, "failed", (failed[0].message if failed else problem).splitlines()[0])

    def _end(self, job: SweepJob, outcome: str, detail: str) -> None:
        self._note(job, outcome=outcome, detail=detail)
        if outcome != "measured":
            self._given_up.add(job.node)
            outcome = f"not measured: {outcome}, {detail}"
        done = len({visit.node for visit in self._visits})
        self._say(f"{job.node} {outcome}; {done} of {len(self.record.nodes)} nodes measured")

    def _fill(self, known: Mapping[str, ClusterNode]) -> bool:
        """Queue up to `_most_queued` jobs; return False if no job is left to track or to submit."""
        while len(self._open()) < self._most_queued:
            if (following := next(self._next(known), None)) is None:
                break
            if not self._start(*following):
                return True
        return bool(self._open())

    def _next(self, known: Mapping[str, ClusterNode]) -> Iterator[tuple[str, bool]]:
        """Yield nodes in the order to measure them, each with True if it only acts as a control."""
        taken = self._given_up | {job.node for job in self._open()}
        able = {name: node.stage for name, node in known.items() if name not in taken}
        able = {name: stage for name, stage in able.items() if stage != "out"}
        done = {visit.node for visit in self._visits}
        fresh = [name for name in able if name not in done]
        idle, again = [name for name in fresh if able[name] == "idle"], list[str]()
        if not idle:
            # Judging a large fleet takes a while, so the result is kept.
            if self._suspects is None:
                verdicts = judge(self._visits, self._past)
                self._suspects = [verdict.node for verdict in verdicts if verdict.needs_job]
            again = [name for name in self._suspects if name in able]
        jobs, between = self.record.jobs, max(_BETWEEN_CONTROLS, self._most_queued)
        is_time = len(jobs) >= between and not any(job.is_control for job in jobs[-between:])
        if again:
            # Second jobs are few, so first measure all controls, then one for every two jobs.
            late = [job.is_control for job in takewhile(lambda job: job.number > 1, jobs[::-1])]
            is_time = late.count(True) < _CONTROLS + late.count(False) // 2
        if is_time and (fresh or again):
            visited = Counter(visit.node for visit in self._visits)
            controls = sorted([*visited][:_CONTROLS], key=visited.__getitem__)
            yield from ((name, True) for name in controls if able.get(name) == "idle")
        # Nodes that other users' jobs occupy come last.
        yield from ((name, False) for name in (*idle, *again, *fresh))

    def _start(self, node: str, is_control: bool) -> bool:
        """Submit a job on `node`; return False if Slurm refuses, or raise if it refuses often."""
        number = 1 + max((job.number for job in self.record.jobs if job.node == node), default=0)
        job = SweepJob(node=node, number=number, is_control=is_control, submitted_at_s=time.time())
        self._keep(replace(self.record, jobs=(*self.record.jobs, job)))
        try:
            self._note(job, job=self._submit(job, self._name_of(job)))
        except SchedulerError:
            # A controller that is just starting may refuse a job, or report failure but accept it.
            self._refusals += 1
            if self._refusals > _MOST_REFUSALS:
                raise
            return False
        self._refusals = 0
        return True

    def _note(self, job: SweepJob, /, **fields: Any) -> SweepJob:
        new = replace(job, **fields)
        jobs = tuple(new if each is job else each for each in self.record.jobs)
        self._keep(replace(self.record, jobs=jobs))
        return new

    def _keep(self, record: SweepRecord) -> None:
        self.record = record
        write_report(self._folder / SWEEP_JSON, f"{to_json(record)}\n")
