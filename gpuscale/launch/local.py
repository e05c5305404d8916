"""Ranks on this node, started by torch.distributed's own engine from a preloaded fork server."""

import contextlib
import logging
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from gpuscale.encoding import to_json
from gpuscale.launch.collect import collect_overhead, collect_run
from gpuscale.launch.forkserver import describe_machine_in_child, fork_server
from gpuscale.launch.supervision import Supervisor
from gpuscale.launch.termination import RunTerminated
from gpuscale.launch.trampoline import enter_overhead_rank, enter_rank
from gpuscale.records import Environment, OverheadPlan, OverheadRun, Run, RunRequest
from gpuscale.run_directory import NodeSamples, RunDirectory, read_progress, write_atomically
from gpuscale.scratch import scratch_folder

_LOGGERS = (
    "torch.distributed.elastic",
    "torch.multiprocessing.spawn",
    "torchelastic-events-null",
)
_SHUTDOWN_S = 5
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class LocalLauncher:
    """Starts each run's ranks on this node, one at a time."""

    def __init__(self, *, device: str) -> None:
        self._device = device
        self._environment: Environment | None = None
        self._running: RunDirectory | None = None

    @property
    def environment(self) -> Environment:
        """The machine as the ranks see it; found out at the first use."""
        if self._environment is None:
            found = describe_machine_in_child(self._device)
            self._environment = replace(found, launcher="local")
        return self._environment

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised."""
        with self._directory(request) as directory:
            started_at_s = time.time()
            started = time.monotonic()
            with Supervisor(directory, request) as supervisor:
                exit_codes = _launch(request, directory, enter_rank)
            return collect_run(
                request,
                directory,
                exit_codes=exit_codes,
                timed_out=supervisor.timed_out,
                started_at_s=started_at_s,
                wall_s=time.monotonic() - started,
            )

    def compare_with_bare_loop(self, request: RunRequest, plan: OverheadPlan) -> OverheadRun:
        """Make one run in which gpuscale's windows alternate with a bare loop's, in fp32."""
        with self._directory(request) as directory:
            write_atomically(directory.overhead_plan, to_json(plan))
            with Supervisor(directory, request) as supervisor:
                exit_codes = _launch(request, directory, enter_overhead_rank)
            return collect_overhead(
                request, directory, exit_codes=exit_codes, timed_out=supervisor.timed_out
            )

    @contextlib.contextmanager
    def _directory(self, request: RunRequest) -> Iterator[RunDirectory]:
        """The folder of a run, with its request in it, for as long as the context lasts."""
        with scratch_folder("gpuscale-run-") as folder:
            self._running = directory = RunDirectory(path=folder)
            write_atomically(directory.request, to_json(request))
            try:
                yield directory
            finally:
                self._running = None

    def progress(self) -> tuple[str, int, int] | None:
        """How far the run under way is: stage, done, total; None where nothing is known.

        May be asked from another thread than that of `run`.
        """
        directory = self._running
        return None if directory is None else read_progress(directory)

    def samples(self) -> Sequence[NodeSamples]:
        """Nothing: on one node the session samples by itself."""
        return ()

    def close(self) -> None:
        """Do nothing: a run's folder is gone when the run has ended."""


def _launch(
    request: RunRequest, directory: RunDirectory, enter: Callable[[str], None]
) -> dict[int, int]:
    """Start the ranks and wait for them; the exit codes of those that failed, by rank."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    fork_server()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=request.processes,
        run_id=f"gpuscale-{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_timeout=60,
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(directory.path), redirects=Std.ALL),
    )
    # torch binds ranks to NUMA nodes only where they are as many as the GPUs: T(n) would get
    # a help that T(1) does not.
    config.numa_options = None
    # Ranks end at once when they are asked to; one that cannot, since it is stopped, is killed.
    config.shutdown_timeout = _SHUTDOWN_S
    with _signals_and_logging_restored():
        try:
            elastic_launch(config, enter)(str(directory.path))
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in sorted(error.failures.items())}
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise RunTerminated(error.sigval) from None
    return {}


@contextlib.contextmanager
def _signals_and_logging_restored() -> Iterator[None]:
    """Undo what torch's launcher leaves behind: its signal handlers and its log of failures."""
    handlers: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in _HANDLED_SIGNALS}
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    # A failed rank is reported once, by us, with its own traceback.
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
