"""Ranks on this node, started by torch.distributed's own engine from a preloaded fork server."""

import contextlib
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuscale.base.errors import MachineError
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.launch import Launcher, RunTerminated, do_in_rank, terminations_raised
from gpuscale.measure.launch.collect import collect_run, left_by_ranks
from gpuscale.measure.launch.failures import failure_of, text_of
from gpuscale.measure.run_directory import RunDirectory, scratch_folder
from gpuscale.records import Environment, Failure, Run, RunRequest
from gpuscale.records.trial_report import OverheadOutcome, OverheadPlan

_PRELOAD = ["gpuscale.measure.worker.preload"]
_PRELOADED = "GPUSCALE_PRELOAD"
"""The variable by which the fork server is told a package to import as well."""
_DESCRIBE_TIMEOUT_S = 120.0
_TRIAL_S = 20.0
_TRIALS = 2
"""Processes that try cases at the same time."""
_LOOK_S = 1.0
_LONGEST_SOCKET_FOLDER = 90
_STACKS_S = 10.0
"""How long after the timeout ranks may take to leave their stacks: they started later."""
_LOGGERS = ("torch.distributed.elastic", "torch.multiprocessing.spawn", "torchelastic-events-null")
_SHUTDOWN_S = 5
_END_OF_COMMAND_S = 20.0
"""How long what watches a command may take to end it."""
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class LocalLauncher(Launcher):
    """Starts each run's ranks on this node, one run at a time."""

    def __init__(self, *, device: str) -> None:
        self._device = device

    @cached_property
    def environment(self) -> Environment:
        """The machine as the ranks see it; found out at the first use."""
        with scratch_folder("gpuscale-machine-") as folder:
            directory = RunDirectory(path=folder)
            file = directory.environment("here")
            # A process that may touch CUDA, as this one may not.
            asked = ("describe", str(file.path), self._device)
            process = _fork_server().Process(target=do_in_rank, args=asked)
            process.start()
            process.join(_DESCRIBE_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
                raise MachineError(
                    f"the GPUs did not answer within {_DESCRIBE_TIMEOUT_S:.0f} s; "
                    "see whether 'nvidia-smi' does"
                )
            if not file.path.exists():
                raise MachineError(
                    text_of(directory.refusal("here"))
                    or f"the process that looks at the GPUs ended with exit code {process.exitcode}"
                    "; see its message above, or measure with --device cpu"
                )
            found = file.read()
        if self._device == "cuda" and not found.gpus:
            raise MachineError(
                "--device cuda: torch sees no GPU here; see 'nvidia-smi' and CUDA_VISIBLE_DEVICES, "
                "or measure CPU ranks with --device cpu"
            )
        return replace(found, launcher="local")

    def run(self, request: RunRequest) -> Run:
        """Make one run; what goes wrong in a rank is told in `Run.failure`, not raised."""
        with self._directory(request) as directory:
            started_at_s, started = time.time(), time.monotonic()
            if request.command is None:
                failure = _launch(request, directory, "rank")
            else:
                failure = _launch_command(request, directory)
            wall_s = time.monotonic() - started
            return collect_run(
                request, directory, failure, started_at_s=started_at_s, wall_s=wall_s
            )

    def misfits(self, requests: Sequence[RunRequest]) -> Sequence[str]:
        """How the cases fail whose batches surely do not fit their models, tried without GPUs.

        What takes too long is left to the run. So are commands, data of a case's own, whose shapes
        it may not tell, and blocks, which need no `forward`.
        """
        with scratch_folder("gpuscale-trial-") as folder:
            directories = []
            for number, request in enumerate(_one_of_each(requests)):
                directories.append(directory := RunDirectory(path=folder / str(number)))
                directory.path.mkdir()
                directory.request.write(request)
            if not directories:
                return ()
            paths = [str(directory.path) for directory in directories]
            context, latest = _fork_server(), time.monotonic() + _TRIAL_S
            tried = [("trial", *paths[n::_TRIALS]) for n in range(min(_TRIALS, len(paths)))]
            processes = [context.Process(target=do_in_rank, args=asked) for asked in tried]
            try:
                for process in processes:
                    process.start()
                for process in processes:
                    process.join(max(0.0, latest - time.monotonic()))
            finally:
                for process in processes:
                    if process.pid is not None:
                        process.kill()
                        process.join()
            left = [each for directory in directories for each in directory.failures()]
            return list(dict.fromkeys(each.failure.message for each in left))

    def compare_with_bare_loop(
        self, request: RunRequest, plan: OverheadPlan
    ) -> list[OverheadOutcome] | Failure:
        """Make one run in which gpuscale's windows alternate with a bare loop's, in fp32."""
        with self._directory(request) as directory:
            directory.overhead_plan.write(plan)
            failure = _launch(request, directory, "overhead")
            return failure or left_by_ranks(request, directory.overhead)

    @contextlib.contextmanager
    def _directory(self, request: RunRequest) -> Iterator[RunDirectory]:
        """The folder of a run, with its request in it, for as long as the context lasts."""
        with scratch_folder("gpuscale-run-") as folder:
            self.running = directory = RunDirectory(path=folder)
            directory.request.write(request)
            try:
                yield directory
            finally:
                self.running = None


def _one_of_each(requests: Sequence[RunRequest]) -> list[RunRequest]:
    """A request for each case, size and batch that a trial can tell something of."""
    found: dict[object, RunRequest] = {}
    for request in requests:
        asked = request.configuration
        if not (request.command or request.data_root or STRATEGIES[asked.strategy].in_blocks):
            of_batch = (request.batch_per_gpu, asked.accumulate)
            found.setdefault(
                (request.case_file, request.case_class, asked.size, *of_batch), request
            )
    return list(found.values())


@contextlib.contextmanager
def _killed_at_timeout(request: RunRequest, directory: RunDirectory) -> Iterator[threading.Event]:
    """Kill ranks that outlive their timeout, after they have written their stacks.

    SIGKILL and not SIGTERM: a stopped process, or one in a driver call, never sees the latter.
    """
    ended, timed_out = threading.Event(), threading.Event()

    def watch() -> None:
        if ended.wait(request.timeout_s):
            return
        latest = time.monotonic() + _STACKS_S
        stacks = [directory.stacks(rank) for rank in range(request.processes)]
        # Again and again: a rank may have been too slow to leave its process id the first time.
        while not ended.wait(_LOOK_S):
            if time.monotonic() < latest and not all(map(text_of, stacks)):
                continue
            timed_out.set()
            for rank in range(request.processes):
                # A rank that has not started or has ended needs no killing.
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int(directory.pid(rank).read_text()), signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield timed_out
    finally:
        ended.set()
        thread.join()


def _launch(request: RunRequest, directory: RunDirectory, job: str) -> Failure | None:
    """Start the ranks, wait for them, and end them when their time is up; why they failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _fork_server(STRATEGIES[request.configuration.strategy].package)
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
    exit_codes: dict[int, int] = {}
    with (
        _killed_at_timeout(request, directory) as timed_out,
        _signals_and_logging_restored(),
        _temporary_files_in(directory.path),
    ):
        try:
            elastic_launch(config, do_in_rank)(job, str(directory.path))
        except ChildFailedError as error:
            failures = sorted(error.failures.items())
            exit_codes = {rank: failure.exitcode for rank, failure in failures}
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise RunTerminated(error.sigval) from None
    return failure_of(request, directory, exit_codes, timed_out=timed_out.is_set())


def _launch_command(request: RunRequest, directory: RunDirectory) -> Failure | None:
    """Have the command started and ended; why it gave no windows."""
    process = _fork_server().Process(target=do_in_rank, args=("command", str(directory.path)))
    process.start()
    try:
        with terminations_raised():
            process.join(request.timeout_s + _END_OF_COMMAND_S)
    finally:
        if process.is_alive():
            process.terminate()
            process.join(_END_OF_COMMAND_S)
            process.kill()
            process.join()
    return failure_of(request, directory, {0: process.exitcode} if process.exitcode else {})


@contextlib.contextmanager
def _signals_and_logging_restored() -> Iterator[None]:
    """Undo what torch's launcher leaves behind: its signal handlers and its log of failures."""
    handlers: dict[signal.Signals, Any] = {s: signal.getsignal(s) for s in _HANDLED_SIGNALS}
    levels = {logger: logger.level for logger in map(logging.getLogger, _LOGGERS)}
    # A failed rank is reported once, by us, with its own traceback.
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have this process make its temporary files there; torch leaves one for each failed rank."""
    earlier, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = earlier


@cache
def _socket_folder() -> None:
    """Have the fork server's socket lie where a later session removes it if this one is killed.

    Its own place is used if the path would be too long for a socket.
    """
    held = contextlib.ExitStack()
    folder = str(held.enter_context(scratch_folder("gpuscale-fork-")))
    if len(folder) < _LONGEST_SOCKET_FOLDER:
        multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
        util.Finalize(None, held.close, exitpriority=-100)
    else:
        held.close()


def _fork_server(package: str | None = None) -> ForkServerContext:
    """The context whose processes are forked from the preloaded server; it never touches CUDA.

    With a package, whose import takes seconds, a server that lacks it makes way for one that has
    it; sessions that need none are not kept waiting for it.
    """
    context = multiprocessing.get_context("forkserver")
    starts_anew = package is not None and os.environ.get(_PRELOADED) != package
    if package is not None and starts_anew:
        os.environ[_PRELOADED] = package
        # Between runs, when it has no ranks. Nothing public ends a fork server.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
    context.set_forkserver_preload(_PRELOAD)
    _socket_folder()
    # The server inherits the mask: Ctrl-C is for this process, and would otherwise end a server
    # that is still importing, with a traceback. Ranks lift the mask for themselves. The tracker
    # goes first, since its start lifts the mask here.
    resource_tracker.ensure_running()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    if starts_anew:
        # Until it has imported all of it, or the first run's time would begin before its ranks.
        first = context.Process(target=int)
        first.start()
        first.join()
    return context
