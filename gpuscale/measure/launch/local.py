"""The launcher for a single node, on which one process, the keeper, forks the ranks."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec.structs import replace

from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.errors import MachineError
from gpuscale.base.host import python_environment, text_of
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.launch import Launcher, terminations_raised
from gpuscale.measure.launch.collect import (
    collect_run,
    command_figures,
    command_software,
    left_by_ranks,
    probes_left,
)
from gpuscale.measure.launch.failures import failure_of
from gpuscale.measure.launch.orders import Keepers, Seats
from gpuscale.measure.launch.rendezvous import free_port
from gpuscale.measure.run_directory import RunDirectory, scratch_folder
from gpuscale.measure.waits import RUN_S
from gpuscale.records import Environment, Failure, Run, RunGpus, RunRequest, pci_addresses
from gpuscale.records.probe import NodeProbe, NodeProbeRequest
from gpuscale.records.trial_report import OverheadOutcome, OverheadPlan

_HERE = "here"
_START_S = 180.0
_DESCRIBE_S = 120.0
_TRIAL_S = 20.0
_TRIALS = 2
"""Maximum number of processes that check the shapes of batches at the same time."""


class LocalLauncher(Launcher):
    """Starts each run's ranks on this node, one run at a time."""

    def __init__(self, *, device: str, preloads: bool = True) -> None:
        self._device = device
        self._preloads = "preload" if preloads else "fresh"
        self._keeper: Keepers | None = None

    @cached_property
    def environment(self) -> Environment:
        """This machine as seen by ranks; determined on first use."""
        with self._directory() as directory:
            directory.hosts.write_text(_HERE)
            file = directory.environment(_HERE)
            # A process that may touch CUDA, as this one may not.
            outcome = self._keeper_with(None).perform(
                "describe", directory, {0: ((0, 0),)}, timeout_s=_DESCRIBE_S, device=self._device
            )
            if outcome.timed_out:
                raise MachineError(
                    f"the GPUs did not answer within {_DESCRIBE_S:.0f} s; "
                    "see whether 'nvidia-smi' or 'rocminfo' does"
                )
            if not file.path.exists():
                raise MachineError(
                    text_of(directory.refusal(_HERE))
                    or "the process that looks at the GPUs ended with exit code "
                    f"{outcome.exit_codes.get(0)}; see its message above, or measure with "
                    "--device cpu"
                )
            found = file.read()
        if (kind := GPU_KINDS.get(self._device)) and not found.gpus:
            raise MachineError(
                f"--device {self._device}: torch sees no GPU here; see '{kind.tool}' and "
                f"{kind.variable}, or measure CPU ranks with --device cpu"
            )
        return replace(found, launcher="local")

    def run(self, request: RunRequest) -> Run:
        """Make one run. If a rank fails, no error is raised; `Run.failure` says why."""
        keeper = self._keeper_with(STRATEGIES[request.configuration.strategy].package)
        with self._directory(request) as directory:
            self._list_gpus(directory, request)
            started_at_s, started = time.time(), time.monotonic()
            failure = _launch(keeper, request, directory, request.job)
            wall_s = time.monotonic() - started
            self.command_software = command_software(request, directory)
            self.command_figures = command_figures(request, directory)
            return collect_run(
                request, directory, failure, started_at_s=started_at_s, wall_s=wall_s
            )

    def misfits(self, requests: Sequence[RunRequest]) -> Sequence[str]:
        """Check without GPUs that models accept their batches; return messages for wrong shapes.

        Three kinds of request are not checked: commands, cases with real data, whose shapes are
        unknown, and models in blocks, which need no `forward`. Slow checks are abandoned.
        """
        if not (tried := _one_of_each(requests)):
            return ()
        with self._directory() as directory:
            parts = [RunDirectory(path=directory.path / str(n)) for n in range(len(tried))]
            for part, request in zip(parts, tried, strict=True):
                part.path.mkdir()
                part.request.write(request)
            processes = min(_TRIALS, len(parts))
            self._keeper_with(None).perform(
                "trial",
                directory,
                {0: tuple((rank, rank) for rank in range(processes))},
                timeout_s=_TRIAL_S,
            )
            left = [report for part in parts for report in part.failures()]
            return list(dict.fromkeys(report.failure.message for report in left))

    def compare_with_bare_loop(
        self, request: RunRequest, plan: OverheadPlan
    ) -> list[OverheadOutcome] | Failure:
        """Make one fp32 run that alternates between gpuscale's windows and a bare training loop."""
        with self._directory(request) as directory:
            directory.overhead_plan.write(plan)
            self._list_gpus(directory, request)
            failure = _launch(self._keeper_with(None), request, directory, "overhead")
            if isinstance(ranks := failure or left_by_ranks(request, directory.overheads), Failure):
                return ranks
            node_s = directory.node_evidence(socket.gethostname()).read().cost_s or 0.0
            return [replace(rank, evidence_s=rank.evidence_s + node_s) for rank in ranks]

    def probe(self, request: NodeProbeRequest) -> tuple[NodeProbe, ...]:
        """Measure how fast each device computes and copies, and all of them communicate."""
        ranks = request.ranks_per_node
        with self._directory() as directory, terminations_raised():
            directory.probe_request.write(request)
            outcome = self._keeper_with(None).perform(
                "probe",
                directory,
                {0: tuple((rank, rank) for rank in range(ranks))},
                timeout_s=request.timeout_s,
                variables=_variables(ranks),
            )
            hosts = (socket.gethostname(),)
            return probes_left(directory, hosts, ranks, timed_out=outcome.timed_out)

    def close(self) -> None:
        """End the keeper, the process that forks the ranks."""
        if self._keeper is not None:
            self._keeper.close()

    def _list_gpus(self, directory: RunDirectory, request: RunRequest) -> None:
        """Write a list of the GPUs of the run, for the keeper's question about other processes."""
        gpus = (gpu for gpu in self.environment.gpus if gpu.index in request.devices)
        if addresses := pci_addresses(gpus):
            here = {socket.gethostname(): addresses}
            directory.gpus.write(RunGpus(addresses=here, are_sampled=False))

    @contextlib.contextmanager
    def _directory(self, request: RunRequest | None = None) -> Iterator[RunDirectory]:
        """Provide a folder that contains the request, if there is one; remove it at the end."""
        with scratch_folder("gpuscale-run-") as folder:
            directory = RunDirectory(path=folder)
            if request is not None:
                directory.request.write(request)
                self.running = directory
            try:
                yield directory
            finally:
                self.running = None

    def _keeper_with(self, package: str | None) -> Keepers:
        """Return the process that forks ranks, once it has imported a package that they need."""
        if self._keeper is None or not self._keeper.is_usable:
            command = [sys.executable, "-P", "-m", "gpuscale.measure.launch.keeper"]
            command += ["local", "/", self._preloads]
            self._keeper = Keepers(command, 1, python_environment())
            self._keeper.have_started(_START_S)
        if package is not None:
            self._keeper.have_imported(package, _START_S)
        if not self._keeper.is_usable:
            raise MachineError(
                "the process that starts the ranks did not start; see its message above"
            )
        return self._keeper


def _launch(
    keeper: Keepers, request: RunRequest, directory: RunDirectory, job: str
) -> Failure | None:
    """Run the ranks or the command of a request; return the failure, or None on success."""
    seats: Seats = {0: ((0, 0),)}
    # The process that watches a command ends it by itself at the timeout.
    variables, timeout_s = {}, request.timeout_s + RUN_S
    if request.command is None:
        seats = {0: tuple((rank, rank) for rank in range(request.processes))}
        variables = _variables(request.processes)
        timeout_s = request.timeout_s
    with terminations_raised():
        outcome = keeper.perform(job, directory, seats, timeout_s=timeout_s, variables=variables)
    failure = failure_of(request, directory, outcome.exit_codes, timed_out=outcome.timed_out)
    if failure is None and len(outcome.exit_codes) < len(seats[0]):
        message = (
            "the process that forks the ranks ended, and the ranks with it; see the system's log, "
            "which says so if memory ran out"
        )
        failure = Failure(kind="launch", message=message)
    return failure


def _variables(processes: int) -> dict[str, str]:
    size = str(processes)
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    return {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, **place}


def _one_of_each(requests: Sequence[RunRequest]) -> list[RunRequest]:
    """Return one request for each combination of case, size and batch that can be checked."""
    found: dict[object, RunRequest] = {}
    for request in requests:
        asked = request.configuration
        if not (request.command or request.data_root or STRATEGIES[asked.strategy].in_blocks):
            of_batch = (request.batch_per_gpu, asked.accumulate)
            found.setdefault(
                (request.case_file, request.case_class, asked.size, *of_batch), request
            )
    return list(found.values())
