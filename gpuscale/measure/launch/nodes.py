"""Ranks on the nodes of a job, started by its scheduler: one process for each of them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

import gpuscale.base.host
from gpuscale.measure.launch import Launcher, process_starter, terminations_raised
from gpuscale.measure.launch.collect import collect_run, job_environment, probes_left
from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.placement import Placement, place, without_excluded
from gpuscale.measure.run_directory import (
    NodeSamples,
    RunDirectory,
    scratch_folder,
    write_atomically,
)
from gpuscale.records import Environment, NodeProbe, Run, RunRequest, SampledDevices
from gpuscale.records.request import NodeProbeRequest

_RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Where the first rank may wait for the others: below what systems hand out by themselves."""
_DESCRIBE_S = 180.0
_STACKS_S = 10.0
"""How long after the timeout ranks may take to leave their stacks: they started later."""
_LOOK_S = 0.05
_LOOK_AT_EXITS_S = 2.0
_END_S = 20.0
_END_AFTER_FAILURE_S = 5.0
_FILES_S = 30.0
"""How long files that another node has written may take to be seen on this one."""


class NodesLauncher(Launcher):
    """Starts each run's ranks on the smallest number of the job's nodes, one run at a time.

    The folder of a run lies beside the results, since all nodes must see it.
    """

    def __init__(self, name: str, *, device: str, folder: Path) -> None:
        self._starter = process_starter(name)
        self._device = device
        self._folder = folder
        self._kept = contextlib.ExitStack()
        self._samples: list[NodeSamples] = []

    @cached_property
    def _each_host(self) -> Placement:
        """One process on each host of the job that may be used."""
        hosts = without_excluded(self._starter.hosts(), os.environ)
        return Placement(hosts=hosts, ranks=len(hosts), ranks_per_host=1)

    @cached_property
    def environment(self) -> Environment:
        """The nodes of the job as the ranks see them; found out at the first use."""
        placement = replace(self._each_host, independent=True)
        with self._run_folder() as directory:
            code, timed_out = self._start(directory, "describe", placement, _DESCRIBE_S)
            found = job_environment(
                placement.hosts, directory, self._device, exit_code=code, timed_out=timed_out
            )
        return replace(found, launcher=self._starter.name)

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised."""
        self._kept.close()
        directory = self._kept.enter_context(self._run_folder())
        placement = self._placement(request)
        directory.request.write(request)
        self._ask_for_samples(directory, request, placement)
        self.running = directory
        started_at_s, started = time.time(), time.monotonic()
        try:
            # What watches a command ends it by itself when its time is up.
            patience_s = request.timeout_s + (0 if request.command is None else _END_S)
            code, timed_out = self._start(directory, request.job, placement, patience_s)
        finally:
            self.running = None
        wall_s = time.monotonic() - started
        codes = _failed(directory, request.processes)
        failed = self._starter.name if code else None
        failure = failure_of(request, directory, codes, timed_out=timed_out, launcher=failed)
        return collect_run(request, directory, failure, started_at_s=started_at_s, wall_s=wall_s)

    def probe(self, request: NodeProbeRequest) -> tuple[NodeProbe, ...]:
        """The times in which each node computes and each pair communicates."""
        placement = self._each_host
        with self._run_folder() as directory:
            directory.probe_request.write(request)
            _, timed_out = self._start(directory, "probe", placement, request.timeout_s)
            return probes_left(directory, placement.hosts, timed_out=timed_out)

    def samples(self) -> Sequence[NodeSamples]:
        """The files that samplers on the nodes left in the last run, until the next run."""
        return self._samples

    def close(self) -> None:
        """Delete what the last run left."""
        self._kept.close()

    @contextlib.contextmanager
    def _run_folder(self) -> Iterator[RunDirectory]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with scratch_folder(".run-", within=self._folder) as folder:
            yield RunDirectory(path=folder)

    def _placement(self, request: RunRequest) -> Placement:
        cores, gpus = self.environment.cores_per_node, self.environment.gpus_per_node
        cores_per_rank = request.configuration.threads_per_rank or 1
        slots = max(1, cores // cores_per_rank)
        if request.configuration.device == "cuda":
            devices_per_rank = request.gpus // request.processes
            cores_per_rank = max(1, cores // gpus) * devices_per_rank
            slots = max(1, gpus // devices_per_rank)
        hosts = self._each_host.hosts
        placement = place(request.processes, hosts, slots=slots, first=request.index - 1)
        oversubscribed = placement.ranks_per_host * cores_per_rank > cores
        return replace(
            placement,
            cores_per_rank=1 if oversubscribed else cores_per_rank,
            oversubscribed=oversubscribed,
        )

    def _ask_for_samples(
        self, directory: RunDirectory, request: RunRequest, placement: Placement
    ) -> None:
        """Leave the UUIDs of the run's GPUs, by host, for the tasks that sample them."""
        nodes = dict(zip(self._each_host.hosts, self.environment.nodes, strict=True))
        devices_per_rank = max(1, request.gpus // request.processes)
        self._samples = []
        for position, name in enumerate(placement.hosts):
            node, path = nodes[name], directory.samples(nodes[name].host)
            used = request.devices[: placement.ranks_on(position) * devices_per_rank]
            if uuids := tuple(gpu.uuid for gpu in node.gpus if gpu.index in used and gpu.uuid):
                self._samples.append(NodeSamples(host=node.host, path=path, uuids=uuids))
        if self._samples:
            sampled = {left.host: left.uuids for left in self._samples}
            directory.sampled.write(SampledDevices(uuids=sampled))

    def _start(
        self, directory: RunDirectory, job: str, placement: Placement, timeout_s: float
    ) -> tuple[int, bool]:
        """The exit code of the command that starts tasks, and True if time ran out.

        Where all goes well, the files that the tasks leave can be read here.
        """
        write_atomically(directory.hosts, "\n".join(placement.hosts))
        # A new one for each run: the last one's may not be free again yet.
        write_atomically(directory.port, str(random.choice(_RENDEZVOUS_PORTS)))
        program = [sys.executable, "-P", "-m", "gpuscale.measure.launch.task", self._starter.name]
        program += [job, str(directory.path), self._device]
        keeper = [sys.executable, "-I", "-S", gpuscale.base.host.__file__, str(os.getpid())]
        given = gpuscale.base.host.python_environment()
        with terminations_raised(), directory.launcher_log.open("wb") as log:
            process = subprocess.Popen(
                [*keeper, *self._starter.arguments(program, placement)],
                env={name: v for name, v in given.items() if self._starter.reaches(name)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for pytest, which ends the step; srun would first ask for another.
                start_new_session=True,
            )
            try:
                timed_out = not _ended_in_time(process, directory, placement.ranks, timeout_s)
                if timed_out:
                    stacks = [directory.stacks(rank) for rank in range(placement.ranks)]
                    _wait_for(stacks, _STACKS_S)
            finally:
                if process.poll() is None:
                    # Both srun and mpirun then kill what they started.
                    process.terminate()
                    if not _ended_within(process, _END_S):
                        process.kill()
                        process.wait()
        if process.returncode == 0:
            ranks = range(placement.ranks)
            left = {
                "describe": [directory.environment(host).path for host in placement.hosts],
                "rank": [directory.outcome(rank).path for rank in ranks],
                # One of them has told enough for all.
                "command": [directory.enough],
                "probe": [directory.probe(rank).path for rank in ranks],
            }
            _wait_for(left[job], _FILES_S)
        return process.returncode, timed_out


def _wait_for(paths: Sequence[Path], patience_s: float) -> None:
    """Wait until files written on other nodes are there and not empty, or the patience ends."""
    deadline = time.monotonic() + patience_s
    for path in paths:
        while time.monotonic() < deadline:
            # To list the folder makes a network file system look again.
            if path in path.parent.iterdir() and path.stat().st_size > 0:
                break
            time.sleep(_LOOK_S)


def _ended_in_time(
    process: "subprocess.Popen[bytes]", directory: RunDirectory, ranks: int, seconds: float
) -> bool:
    """Wait for the command; False where its time is up.

    A command whose node has died does not end by itself when another rank fails of it.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _ended_within(process, min(_LOOK_AT_EXITS_S, seconds)):
            return True
        if _failed(directory, ranks):
            _ended_within(process, _END_AFTER_FAILURE_S)
            return True
    return False


def _ended_within(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _failed(directory: RunDirectory, ranks: int) -> dict[int, int]:
    """The exit codes of ranks that failed, the first one first, as far as their tasks could tell.

    When one has failed, the scheduler kills the others, which then count for nothing.
    """
    left = ((file.path, file.read_if_left()) for file in map(directory.exit, range(ranks)))
    in_order = sorted(
        (path.stat().st_mtime_ns, exited.rank, exited.code)
        for path, exited in left
        if exited is not None and exited.code
    )
    return {
        rank: code
        for position, (_, rank, code) in enumerate(in_order)
        if position == 0 or code != -signal.SIGKILL
    }
