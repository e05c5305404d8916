"""The launcher, which starts ranks through keepers (processes that fork ranks on each node)."""

import contextlib
import math
import os
import socket
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.host import SITE
from gpuscale.base.process_ends import RUN_S
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.launch import process_starter, terminations_raised
from gpuscale.measure.launch.collect import collect_run, job_environment, probes_left
from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.keeper_orders import Keepers, Outcome
from gpuscale.measure.run_directory import RunDirectory, scratch_folder, write_atomically
from gpuscale.measure.schedulers.placement import Placement, place_run, rank_variables
from gpuscale.records import Environment, Node, NodeProbe, Run, RunRequest
from gpuscale.records.probes import NodeProbeRequest

_DESCRIBE_S = 180.0


class Launcher:
    """Starts the ranks of each run on as few nodes as possible, one run at a time.

    Under Slurm or MPI, the files of a run lie in the results folder, which all nodes must see, and
    each rank of a user's command is a new task, because the command may need the variables that a
    task gets. A command that starts its own ranks inherits this session's environment. With
    `fresh_tasks`, Slurm or MPI starts new tasks for the ranks of every run. With `preloads`, torch
    is imported before ranks are forked. `folder` is the results folder.
    """

    running: RunDirectory | None = None
    """The folder of the run in progress, for other threads too; None between runs."""
    last: RunDirectory
    """The folder of the last run, kept until the next run."""

    def __init__(
        self,
        name: str = "local",
        *,
        device: str,
        folder: Path,
        fresh_tasks: bool = False,
        preloads: bool = True,
    ) -> None:
        self._starter, self._device = process_starter(name), device
        self._is_across, self._folder = name != "local", folder
        self._fresh_tasks, self._preloads = fresh_tasks, preloads
        self._keepers: Keepers | None = None
        self._session, self._kept = contextlib.ExitStack(), contextlib.ExitStack()

    @cached_property
    def _each_host(self) -> Placement:
        """Placement of one process on each usable host."""
        hosts = self._starter.hosts()
        return Placement(hosts=hosts, ranks=len(hosts), ranks_per_host=1)

    @cached_property
    def environment(self) -> Environment:
        """Environment of this machine or of the job's nodes, reported by a process on each node."""
        hosts = self._each_host.hosts
        with self._scratch_folder("run-") as folder:
            directory = RunDirectory(path=folder)
            # Forked processes may touch CUDA, but this process must not.
            outcome = self._perform("describe", directory, self._each_host, _DESCRIBE_S)
            found = job_environment(hosts, directory, self._device, timed_out=outcome.timed_out)
        nodes = found.nodes if self._is_across else ()
        return replace(found, launcher=self._starter.name, nodes=nodes)

    def run(self, request: RunRequest) -> Run:
        """Execute a run; return it after all ranks have ended, with `failure` set if it failed."""
        self._kept.close()
        folder = self._kept.enter_context(self._scratch_folder("run-"))
        self.last = directory = RunDirectory(path=folder)
        placement = place_run(request, self.environment, self._each_host.hosts)
        directory.request.write(request)
        self._list_gpus(directory, request, placement)
        if not self._is_fresh(request):
            self._keepers_on(placement.hosts)
        job, patience_s = "rank", request.timeout_s
        if request.command is not None:
            # The command's watcher ends the command at the timeout, so wait a little longer.
            job, patience_s = "command", request.timeout_s + RUN_S
        started_at_s, started = time.time(), time.monotonic()
        self.running = directory
        try:
            with terminations_raised():
                outcome = self._perform(job, directory, placement, patience_s, request)
        finally:
            self.running = None
        wall_s = time.monotonic() - started
        failure = failure_of(request, directory, outcome, launcher=self._starter.name)
        return collect_run(request, directory, failure, started_at_s=started_at_s, wall_s=wall_s)

    def probe(self, request: NodeProbeRequest) -> tuple[NodeProbe, ...]:
        """Measure devices and links of all nodes; raise GpuscaleError if a node has no result."""
        hosts, each = self._each_host.hosts, request.ranks_per_node
        placement = Placement(hosts=hosts, ranks=len(hosts) * each, ranks_per_host=each)
        with self._scratch_folder("run-") as folder, terminations_raised():
            directory = RunDirectory(path=folder)
            directory.probe_request.write(request)
            outcome = self._perform("probe", directory, placement, request.timeout_s)
            return probes_left(directory, hosts, each, timed_out=outcome.timed_out)

    def close(self) -> None:
        """End the keepers (processes that fork ranks), and delete the files of the last run."""
        self._kept.close()
        self._session.close()

    def _scratch_folder(self, name: str) -> contextlib.AbstractContextManager[Path]:
        if not self._is_across:
            return scratch_folder(f"gpuscale-{name}")
        self._folder.mkdir(parents=True, exist_ok=True)
        return scratch_folder(f".{name}", within=self._folder)

    def _is_fresh(self, request: RunRequest | None) -> bool:
        """Return True if ranks need new Slurm or MPI tasks for the run `request` (None: no run)."""
        is_special = request and (request.command is not None or request.cpu_bind == SITE)
        return self._is_across and bool(self._fresh_tasks or is_special)

    def _list_gpus(
        self, directory: RunDirectory, request: RunRequest, placement: Placement
    ) -> None:
        """Write a file that tells the keepers which GPUs of each host to sample during the run."""
        here = Node(host=socket.gethostname(), gpus=self.environment.gpus)
        nodes = dict(zip(self._each_host.hosts, self.environment.nodes or (here,), strict=True))
        per_host = placement.ranks_per_host * math.ceil(request.gpus / request.processes)
        gpus = {}
        for position, name in enumerate(placement.hosts):
            node = nodes[name]
            used = request.devices[: min(per_host, request.gpus - per_host * position)]
            own = (gpu for gpu in node.gpus if gpu.index in used)
            if addresses := {gpu.uuid: gpu.pci_address for gpu in own if gpu.uuid}:
                gpus[node.host] = addresses
        directory.gpus.write(gpus)

    def _perform(
        self,
        job: str,
        directory: RunDirectory,
        placement: Placement,
        timeout_s: float,
        request: RunRequest | None = None,
    ) -> Outcome:
        """Have ranks do `job`; await their end and, if all succeeded, their files on this node."""
        is_fresh = self._is_fresh(request)
        if is_fresh:
            keepers = Keepers(self._starter, placement, directory.path, preloads=False)
        else:
            keepers = self._keepers_on(placement.hosts)
        is_bound = self._starter.limits_cores and not is_fresh and not placement.oversubscribed
        package, is_once = None, False
        if request is not None:
            package = STRATEGIES[request.configuration.strategy].package
            is_once = self._is_across and request.launch == "once"
        variables = rank_variables(placement.ranks, placement.hosts[0] if self._is_across else None)
        outcome = Outcome()
        try:
            assignment = keepers.assign_ranks(placement, is_fresh=is_fresh)
            if self._is_across or job == "describe":
                write_atomically(directory.hosts, "\n".join(placement.hosts))
                directory.launched.write(keepers.hosts_in(assignment))
            if keepers.is_usable:
                outcome = keepers.perform(
                    job,
                    directory,
                    assignment,
                    timeout_s=timeout_s,
                    variables={**os.environ, **variables} if is_once else variables,
                    is_whole_environment=is_once,
                    cores_per_rank=placement.cores_per_rank if is_bound else None,
                    package=package,
                    device=self._device,
                )
        finally:
            if is_fresh:
                keepers.close()
        if len(outcome.exit_codes) < placement.ranks:
            write_atomically(directory.launcher_log, keepers.output)
        elif self._is_across and not any(outcome.exit_codes.values()):
            directory.wait_for_results(job, placement.hosts, placement.ranks)
        return outcome

    def _keepers_on(self, hosts: Sequence[str]) -> Keepers:
        """Return the session's keepers, the processes that fork ranks; start them if necessary.

        Keepers start on all hosts of the job; if a keeper was lost, new ones start only on `hosts`.
        """
        known, needed = self._keepers, {*hosts}
        if known is None:
            needed = {*self._each_host.hosts}
        elif known.is_usable:
            needed |= {*known.placement.hosts}
            if needed == {*known.placement.hosts}:
                return known
        self._session.close()
        chosen = tuple(host for host in self._each_host.hosts if host in needed)
        everywhere = Placement(hosts=chosen, ranks=len(chosen), ranks_per_host=1)
        folder = self._session.enter_context(self._scratch_folder("keepers-"))
        self._keepers = Keepers(self._starter, everywhere, folder, preloads=self._preloads)
        self._session.callback(self._keepers.close)
        return self._keepers
