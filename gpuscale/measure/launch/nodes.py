"""The launcher across nodes: on each node the scheduler starts a keeper, which forks the ranks."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

import gpuscale.base.host
from gpuscale.base.cpus import SITE, is_map
from gpuscale.base.devices import is_gpu
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.launch import Launcher, process_starter, terminations_raised
from gpuscale.measure.launch.collect import (
    collect_run,
    command_figures,
    command_software,
    job_environment,
    probes_left,
)
from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.order_socket import OrderSocket
from gpuscale.measure.launch.orders import Keepers, Outcome, Seats, wait_for
from gpuscale.measure.launch.rendezvous import rank_variables
from gpuscale.measure.run_directory import (
    LAUNCHER_LOG,
    NodeSamples,
    RunDirectory,
    scratch_folder,
    write_atomically,
)
from gpuscale.measure.schedulers.placement import Placement, place, without_excluded
from gpuscale.measure.waits import RUN_S
from gpuscale.records import Environment, NodeProbe, Run, RunGpus, RunRequest, pci_addresses
from gpuscale.records.probe import NodeProbeRequest
from gpuscale.records.run_evidence import RankReport

_START_S = _DESCRIBE_S = 180.0
_FILES_S = 30.0
"""Seconds that a file written on another node may take to become visible on this node."""


class NodesLauncher(Launcher):
    """Starts the ranks of each run on as few of the job's nodes as possible, one run at a time.

    The folder of a run lies next to the results, because all nodes must see it. The ranks
    of a user's command are always new tasks, because they may read variables of Slurm or MPI. A
    command that starts such tasks by itself gets the variables of this session instead.

    Args:
        name: The name of a launcher across nodes.
        device: `auto`, `cuda` or `cpu`.
        folder: The folder of the results.
        fresh_tasks: Start a new task for each rank of each run, instead of a fork of the keeper.
    """

    def __init__(self, name: str, *, device: str, folder: Path, fresh_tasks: bool = False) -> None:
        starter = process_starter(name)
        assert starter is not None, "a launcher across nodes has one"
        self._starter, self._device, self._folder = starter, device, folder
        self._fresh_tasks = fresh_tasks
        self._keepers: Keepers | None = None
        self._hosts: tuple[str, ...] = ()
        """The hosts of the keepers, as named by the scheduler."""
        self._session, self._kept = contextlib.ExitStack(), contextlib.ExitStack()
        self._samples: list[NodeSamples] = []

    @cached_property
    def _each_host(self) -> Placement:
        """Placement of one process on each usable host of the job."""
        hosts = without_excluded(self._starter.hosts(), os.environ)
        return Placement(hosts=hosts, ranks=len(hosts), ranks_per_host=1)

    @cached_property
    def environment(self) -> Environment:
        """The nodes of the job as seen by ranks; determined on first use."""
        placement = self._each_host
        with self._run_folder() as directory:
            keepers, outcome = self._perform(
                "describe", directory, placement, _DESCRIBE_S, device=self._device
            )
            found = job_environment(
                placement.hosts,
                directory,
                self._device,
                reached=[placement.hosts[number] for number in keepers.started],
                timed_out=outcome.timed_out,
            )
        return replace(found, launcher=self._starter.name)

    def run(self, request: RunRequest) -> Run:
        """Make one run. If a rank fails, no error is raised; `Run.failure` says why."""
        self._kept.close()
        directory = self._kept.enter_context(self._run_folder())
        placement = self._placement(request)
        directory.request.write(request)
        self._list_gpus(directory, request, placement)
        # Only a task for each rank is bound as the site binds tasks.
        is_fresh = self._fresh_tasks or request.command is not None or request.cpu_bind == SITE
        if not is_fresh:
            package = STRATEGIES[request.configuration.strategy].package
            self._keepers_on(placement.hosts, package)
        # The process that watches a command ends it by itself at the timeout.
        patience_s = request.timeout_s + (0 if request.command is None else RUN_S)
        self.running = directory
        started_at_s, started = time.time(), time.monotonic()
        try:
            is_once = request.launch == "once"
            _, outcome = self._perform(
                request.job, directory, placement, patience_s, is_fresh=is_fresh, as_here=is_once
            )
        finally:
            self.running = None
        wall_s = time.monotonic() - started
        self.command_software = command_software(request, directory)
        self.command_figures = command_figures(request, directory)
        has_lost = len(outcome.exit_codes) < request.processes
        failure = failure_of(
            request,
            directory,
            outcome.exit_codes,
            timed_out=outcome.timed_out,
            launcher=self._starter.name if has_lost else None,
        )
        return collect_run(request, directory, failure, started_at_s=started_at_s, wall_s=wall_s)

    def probe(self, request: NodeProbeRequest) -> tuple[NodeProbe, ...]:
        """Measure how fast each node's devices compute and copy, and each pair communicates."""
        hosts, each = self._each_host.hosts, request.ranks_per_node
        placement = Placement(hosts=hosts, ranks=len(hosts) * each, ranks_per_host=each)
        with self._run_folder() as directory:
            directory.probe_request.write(request)
            _, outcome = self._perform("probe", directory, placement, request.timeout_s)
            return probes_left(directory, hosts, each, timed_out=outcome.timed_out)

    def samples(self) -> Sequence[NodeSamples]:
        """Return the GPU samples files of all nodes for the last run, kept until the next run."""
        return self._samples

    def close(self) -> None:
        """End the processes that fork ranks (keepers), and delete the files of the last run."""
        self._kept.close()
        self._session.close()

    @contextlib.contextmanager
    def _run_folder(self) -> Iterator[RunDirectory]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".run-", within=self._folder) as folder:
            yield RunDirectory(path=folder)

    def _placement(self, request: RunRequest) -> Placement:
        cores, gpus = self.environment.cores_per_node, self.environment.gpus_per_node
        gpus_per_process = math.ceil(request.gpus / request.processes)
        cores_per_rank = (request.configuration.threads_per_rank or 1) * gpus_per_process
        slots = max(1, cores // cores_per_rank)
        if is_gpu(request.configuration.device):
            cores_per_rank = max(1, cores // gpus) * gpus_per_process
            slots = max(1, gpus // gpus_per_process)
        hosts, first = self._each_host.hosts, 0 if request.launch == "once" else request.index - 1
        placement = place(request.processes, hosts, slots=slots, first=first)
        if request.launch == "once" or is_map(request.cpu_bind):
            # All cores, which processes of the command may share, and a map chooses from.
            return placement
        oversubscribed = placement.ranks_per_host * cores_per_rank > cores
        return replace(
            placement,
            is_bound_by_site=request.cpu_bind == SITE,
            cores_per_rank=1 if oversubscribed else cores_per_rank,
            oversubscribed=oversubscribed,
        )

    def _list_gpus(
        self, directory: RunDirectory, request: RunRequest, placement: Placement
    ) -> None:
        """Write a list of the GPUs of the run on each host, for the keepers to sample."""
        nodes = dict(zip(self._each_host.hosts, self.environment.nodes, strict=True))
        gpus_per_process = math.ceil(request.gpus / request.processes)
        per_host = placement.ranks_per_host * gpus_per_process
        self._samples = []
        for position, name in enumerate(placement.hosts):
            node, path = nodes[name], directory.samples(nodes[name].host)
            used = request.devices[: min(per_host, request.gpus - per_host * position)]
            if addresses := pci_addresses(gpu for gpu in node.gpus if gpu.index in used):
                self._samples.append(NodeSamples(host=node.host, path=path, addresses=addresses))
        if self._samples:
            on_hosts = {left.host: left.addresses for left in self._samples}
            directory.gpus.write(RunGpus(addresses=on_hosts, are_sampled=True))

    def _perform(
        self,
        job: str,
        directory: RunDirectory,
        placement: Placement,
        timeout_s: float,
        *,
        is_fresh: bool | None = None,
        as_here: bool = False,
        **details: object,
    ) -> tuple[Keepers, Outcome]:
        """Run a job on all ranks; on success, wait until their files are visible on this node."""
        write_atomically(directory.hosts, "\n".join(placement.hosts))
        is_fresh = self._fresh_tasks if is_fresh is None else is_fresh
        with terminations_raised():
            if is_fresh:
                keepers = self._started(placement, directory.path, preloads=False)
            else:
                keepers = self._keepers_on(placement.hosts)
            try:
                seats = self._seats(keepers, placement, directory, is_fresh=is_fresh)
                outcome = Outcome()
                variables = {**os.environ} if as_here else {}
                variables |= rank_variables(placement.ranks, placement.hosts[0])
                if keepers.is_usable:
                    outcome = keepers.perform(
                        job,
                        directory,
                        seats,
                        timeout_s=timeout_s,
                        variables=variables,
                        is_whole_environment=as_here,
                        cores_per_rank=None if is_fresh else self._cores_per_rank(placement),
                        **details,
                    )
            finally:
                if is_fresh:
                    keepers.close()
        if len(outcome.exit_codes) < placement.ranks:
            write_atomically(directory.launcher_log, keepers.output)
        elif not any(outcome.exit_codes.values()):
            wait_for(_left_by(job, directory, placement), _FILES_S)
        return keepers, outcome

    def _seats(
        self, keepers: Keepers, placement: Placement, directory: RunDirectory, *, is_fresh: bool
    ) -> Seats:
        """Assign ranks to the keepers that have started, and list these ranks in a file."""
        hosts = placement.hosts if is_fresh else self._hosts
        per_host = placement.ranks_per_host if is_fresh else 1
        seats: dict[int, tuple[tuple[int, int], ...]] = {}
        taken = dict.fromkeys(placement.hosts, 0)
        started = []
        for number, answer in sorted(keepers.started.items()):
            node = answer.node or hosts[number // per_host]
            if is_fresh:
                seats[number] = ((number, taken.get(node, 0)),)
                taken[node] = taken.get(node, 0) + 1
            elif node in taken:
                position = placement.hosts.index(node)
                first = position * placement.ranks_per_host
                here = range(placement.ranks_on(position))
                seats[number] = tuple((first + local, local) for local in here)
            for rank, local_rank in seats.get(number, ()):
                started.append(RankReport(rank=rank, host=answer.host, local_rank=local_rank))
        directory.launched.write(sorted(started, key=lambda report: report.rank))
        return seats

    def _keepers_on(self, hosts: Sequence[str], package: str | None = None) -> Keepers:
        """Return the processes that fork ranks (keepers), after ensuring that each host has one.

        At first, keepers start on all hosts; once a keeper is lost, only on the hosts needed.
        """
        known = self._keepers
        if known is None or not known.is_usable or not {*hosts} <= {*self._hosts}:
            needed = {*hosts, *(self._hosts if known and known.is_usable else ())}
            if known is None:
                needed = {*self._each_host.hosts}
            self._session.close()
            self._hosts = tuple(host for host in self._each_host.hosts if host in needed)
            everywhere = Placement(hosts=self._hosts, ranks=len(self._hosts), ranks_per_host=1)
            folder = scratch_folder(".keepers-", within=self._folder)
            known = self._started(everywhere, self._session.enter_context(folder), preloads=True)
            self._session.callback(known.close)
            self._keepers = known
        if package is not None and known.is_usable:
            known.have_imported(package, _START_S)
        return known

    def _started(self, placement: Placement, folder: Path, *, preloads: bool) -> Keepers:
        """Start a keeper for each rank of a placement, and wait until all are ready."""
        program = [sys.executable, "-P", "-m", "gpuscale.measure.launch.keeper"]
        program += [self._starter.name, str(folder), "preload" if preloads else "fresh"]
        guard = [sys.executable, "-I", "-S", gpuscale.base.host.__file__, str(os.getpid())]
        given = gpuscale.base.host.python_environment()
        order_socket = None
        if not self._starter.passes_input:
            of_ranks = (rank // placement.ranks_per_host for rank in range(placement.ranks))
            order_socket = OrderSocket(folder, [placement.hosts[host] for host in of_ranks])
        keepers = Keepers(
            [*guard, *self._starter.arguments(program, placement)],
            placement.ranks,
            {name: value for name, value in given.items() if self._starter.reaches(name)},
            log=folder / LAUNCHER_LOG,
            order_socket=order_socket,
        )
        keepers.have_started(_START_S)
        return keepers

    def _cores_per_rank(self, placement: Placement) -> int | None:
        is_bound = self._starter.limits_cores and not placement.oversubscribed
        return placement.cores_per_rank if is_bound else None


def _left_by(job: str, directory: RunDirectory, placement: Placement) -> list[Path]:
    """Return the paths of the files that a job writes if it succeeds."""
    ranks = range(placement.ranks)
    if job == "describe":
        return [directory.environment(host).path for host in placement.hosts]
    if job == "probe":
        return [directory.probe(rank).path for rank in ranks]
    hosts = {*directory.host_of_ranks().values()}
    nodes = [directory.node_evidence(host).path for host in hosts]
    if job == "rank":
        return [*nodes, directory.outcomes.path]
    # One rank of a command has reported for all.
    return [*nodes, directory.enough]
