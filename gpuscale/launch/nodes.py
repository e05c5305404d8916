"""Ranks on the nodes of a job, started by its scheduler: one process for each of them."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

import gpuscale
from gpuscale.encoding import to_json
from gpuscale.launch import tied
from gpuscale.launch.collect import collect_run
from gpuscale.launch.description import job_environment, probes_left
from gpuscale.launch.placement import Placement, place, without_excluded
from gpuscale.launch.rank_variables import RENDEZVOUS_PORTS
from gpuscale.launch.scheduler import Demand, Scheduler
from gpuscale.launch.step import end, ended_in_time, exits_left, own_failures, wait_for
from gpuscale.launch.termination import terminations_raised
from gpuscale.records import (
    Environment,
    NodeProbe,
    NodeProbeRequest,
    Run,
    RunRequest,
)
from gpuscale.run_directory import NodeSamples, RunDirectory, read_progress, write_atomically
from gpuscale.scratch import scratch_folder

_DESCRIBE_TIMEOUT_S = 180.0
_STACKS_S = 10.0
"""How long after the timeout ranks may take to leave their stacks: they started later."""


class NodesLauncher:
    """Starts each run's ranks on the smallest number of the job's nodes, one run at a time.

    The folder of a run lies beside the results, since all nodes must see it.
    """

    def __init__(self, scheduler: Scheduler, *, device: str, folder: Path) -> None:
        self._scheduler = scheduler
        self._device = device
        self._folder = folder
        self._environment: Environment | None = None
        self._hosts: tuple[str, ...] = ()
        self._running: RunDirectory | None = None
        self._kept = contextlib.ExitStack()
        self._samples: tuple[NodeSamples, ...] = ()

    @property
    def environment(self) -> Environment:
        """The nodes of the job as the ranks see them; found out at the first use."""
        if self._environment is None:
            self._hosts = without_excluded(self._scheduler.hosts(), os.environ)
            with self._run_folder() as directory:
                self._environment = replace(
                    self._describe(directory), launcher=self._scheduler.name
                )
        return self._environment

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised."""
        self._kept.close()
        directory = self._kept.enter_context(self._run_folder())
        placement, demand = self._plan(request)
        write_atomically(directory.request, to_json(request))
        self._prepare(directory, request, placement)
        self._running = directory
        started_at_s = time.time()
        started = time.monotonic()
        try:
            code, timed_out = self._start(
                directory, "rank", placement, demand, timeout_s=request.timeout_s
            )
        finally:
            self._running = None
        if code == 0:
            wait_for(directory.outcome(rank) for rank in range(request.processes))
        return collect_run(
            request,
            directory,
            exit_codes=own_failures(exits_left(directory, request.processes)),
            timed_out=timed_out,
            started_at_s=started_at_s,
            wall_s=time.monotonic() - started,
            failed_launcher=self._scheduler.name if code else None,
        )

    def probe(self, request: NodeProbeRequest) -> tuple[NodeProbe, ...]:
        """Look at how each node computes and each pair communicates.

        Raises:
            GpuscaleError: a node left no answer.
        """
        device = self.environment.device
        placement = Placement(hosts=self._hosts, ranks=len(self._hosts), ranks_per_host=1)
        demand = Demand(cores_per_rank=None)
        with self._run_folder() as directory:
            write_atomically(directory.request, to_json(request))
            self._leave_addresses(directory, self._hosts)
            code, timed_out = self._start(
                directory, "probe", placement, demand, timeout_s=request.timeout_s, device=device
            )
            if code == 0:
                wait_for(directory.outcome(rank) for rank in range(placement.ranks))
            return probes_left(directory, self._hosts, timed_out=timed_out)

    def progress(self) -> tuple[str, int, int] | None:
        """How far the run under way is: stage, done, total; None where nothing is known.

        May be asked from another thread than that of `run`.
        """
        directory = self._running
        return None if directory is None else read_progress(directory)

    def samples(self) -> Sequence[NodeSamples]:
        """What the samplers on the nodes left in the last run, until the next run."""
        return self._samples

    def close(self) -> None:
        """Delete what the last run left."""
        self._kept.close()

    @contextlib.contextmanager
    def _run_folder(self) -> Iterator[RunDirectory]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".run-", within=self._folder) as folder:
            yield RunDirectory(path=folder)

    def _plan(self, request: RunRequest) -> tuple[Placement, Demand]:
        cores = self.environment.cores_per_node
        if request.configuration.device == "cuda":
            slots = self.environment.gpus_per_node
            each = max(1, cores // slots)
            # The one process of `dp` drives all its devices.
            cores_per_rank = each * request.gpus // request.processes
            slots = slots if request.processes > 1 else 1
        else:
            cores_per_rank = request.configuration.threads_per_rank or 1
            slots = max(1, cores // cores_per_rank)
        placement = place(request.processes, self._hosts, slots=slots, first=request.index - 1)
        crowded = placement.ranks_per_host * cores_per_rank > cores
        return placement, Demand(cores_per_rank=1 if crowded else cores_per_rank, crowded=crowded)

    def _prepare(self, directory: RunDirectory, request: RunRequest, placement: Placement) -> None:
        """Leave what the tasks on the nodes need beside the request."""
        self._leave_addresses(directory, placement.hosts)
        sampled = self._sampled(request, placement)
        self._samples = tuple(
            NodeSamples(host=host, path=directory.samples(host), uuids=tuple(uuids))
            for host, uuids in sampled.items()
        )
        if sampled:
            write_atomically(directory.sampled, json.dumps(sampled))

    def _leave_addresses(self, directory: RunDirectory, hosts: Sequence[str]) -> None:
        write_atomically(directory.hosts, "\n".join(hosts))
        # A new one for each run: the last one's may not be free again yet.
        write_atomically(directory.port, str(random.choice(RENDEZVOUS_PORTS)))

    def _sampled(self, request: RunRequest, placement: Placement) -> dict[str, list[str]]:
        """The UUIDs of the run's GPUs, by host."""
        nodes = dict(zip(self._hosts, self.environment.nodes, strict=True))
        sampled = {}
        for position, name in enumerate(placement.hosts):
            node = nodes[name]
            used = request.devices
            if request.processes > 1:
                used = used[: placement.ranks_on(position)]
            uuids = [gpu.uuid for gpu in node.gpus if gpu.index in used and gpu.uuid]
            if uuids:
                sampled[node.host] = uuids
        return sampled

    def _describe(self, directory: RunDirectory) -> Environment:
        placement = Placement(hosts=self._hosts, ranks=len(self._hosts), ranks_per_host=1)
        demand = Demand(cores_per_rank=None, independent=True)
        write_atomically(directory.hosts, "\n".join(self._hosts))
        code, timed_out = self._start(
            directory, "describe", placement, demand, timeout_s=_DESCRIBE_TIMEOUT_S
        )
        if code == 0:
            wait_for(directory.environment(host) for host in self._hosts)
        return job_environment(
            self._hosts, directory, self._device, exit_code=code, timed_out=timed_out
        )

    def _start(
        self,
        directory: RunDirectory,
        job: str,
        placement: Placement,
        demand: Demand,
        *,
        timeout_s: float,
        device: str | None = None,
    ) -> tuple[int, bool]:
        """Start tasks and wait for them; the command's exit code and whether time ran out."""
        program = [sys.executable, "-P", "-m", "gpuscale.launch.task", self._scheduler.name]
        program += [job, str(directory.path), device or self._device]
        command = self._scheduler.arguments(program, placement, demand)
        keeper = [sys.executable, "-I", "-S", str(tied.__file__), str(os.getpid())]
        with terminations_raised(), directory.launcher_log.open("wb") as log:
            process = subprocess.Popen(
                [*keeper, *command],
                env=self._scheduler.environment(_environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for pytest, which ends the step; srun would first ask for another.
                start_new_session=True,
            )
            try:
                timed_out = not ended_in_time(process, directory, placement.ranks, timeout_s)
                if timed_out:
                    wait_for(
                        (directory.stacks(rank) for rank in range(placement.ranks)),
                        patience_s=_STACKS_S,
                    )
            finally:
                end(process)
            return process.returncode, timed_out


def _environment() -> dict[str, str]:
    """This process's environment, in which gpuscale can be imported even if not installed."""
    package_parent = str(Path(gpuscale.__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    path = f"{inherited}{os.pathsep}{package_parent}" if inherited else package_parent
    return {**os.environ, "PYTHONPATH": path}
