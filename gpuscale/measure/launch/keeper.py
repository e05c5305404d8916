"""`python -m gpuscale.measure.launch.keeper`: forks and watches the ranks on a node.

The keeper imports torch once and never touches CUDA, so that it can fork the ranks of every run. It
carries out the launcher's orders (keeper_orders.py), and during a run samples the node's GPUs and
collects evidence about the node. It ends when the process that started it ends.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select
from typing import NoReturn

import msgspec

from gpuscale.base.host import cpus_near, gpu_numa_node, text_of
from gpuscale.base.process_ends import COMMAND_S, RANK_S, adopt_orphans, end_descendants
from gpuscale.measure.evidence.node import NodeWatch
from gpuscale.measure.launch import PRELOADED, TERMINATIONS, do_in_rank, import_all, process_starter
from gpuscale.measure.launch.keeper_orders import CHUNK_BYTES, END, Answer, Order
from gpuscale.measure.launch.mpirun import connect
from gpuscale.measure.run_directory import RunDirectory, scratch_folder
from gpuscale.measure.schedulers.placement import gloo_variables

_LOOK_S = 0.5
_LONGEST_SOCKET_FOLDER = 90
_WITH_EVIDENCE = ("rank", "command")
_STACKS_S = 10.0
"""Seconds to wait for stacks after a timeout, since ranks' timers start after the launcher's."""


class Keeper:
    """Forks and watches the ranks of a node, or one rank if every rank has a keeper of its own.

    The launcher deletes `folder` when it ends. The keeper then ends too, even if the scheduler's
    daemon on this node has not ended it. `scratch` is a folder on this node that is deleted when
    the keeper ends.
    """

    def __init__(self, launcher: str, folder: Path, scratch: Path) -> None:
        starter = process_starter(launcher)
        self._places = starter.place_variables
        self._number = int(os.environ[self._places["RANK"]]) if self._places else 0
        self._node = os.environ.get(starter.node_variable, "")
        self._folder = folder
        self._parent = os.getppid()
        # Ranks must not read orders, and output of libraries must not mix with answers.
        self._orders, self._answers = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self._rest = b""
        self._order = Order(number=0, job=END)
        self._cores = set[int]()
        """Cores that the ranks on this node share; empty if ranks may use all cores."""
        self._ranks: dict[int, int] = {}
        """Ranks that are still running, keyed by process id."""
        self._kept = RunDirectory(path=scratch / "run")
        """Logs and stacks of ranks on this node, copied into the run's folder if a rank fails."""
        self._watch, self._watched = NodeWatch(scratch), ExitStack()
        self._variables: dict[str, str] = {}
        """Environment variables that ranks get so that the node's evidence can be collected."""
        self._is_ending = self._ends_ranks = self._timed_out = False
        self._kill_at_s = 0.0
        self._woken, self._wakes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *TERMINATIONS):
            # Python writes a signal to the wakeup pipe only if the signal has a handler.
            signal.signal(number, lambda *_: None)
        adopt_orphans()

    def serve(self, *, preloads: bool) -> None:
        """Carry out orders until the launcher ends; with `preloads`, first import torch."""
        host = socket.gethostname()
        try:
            self._orders = connect(self._folder, self._number) or self._orders
        except OSError as error:
            self._answer("ready", refusal=f"{host}: {error}")
            return
        if preloads:
            import_all(PRELOADED)
            # Garbage collection in a rank must not touch, and thus copy, memory shared with it.
            gc.freeze()
        self._answer("ready", node=self._node, host=host)
        while self._ranks or not self._is_ending:
            streams = [self._woken] if self._is_ending else [self._woken, self._orders]
            readable, _, _ = select(streams, [], [], _LOOK_S)
            # Before orders to end ranks, find ranks that have ended by themselves.
            self._take_signals()
            if self._orders in readable:
                self._take_orders()
            if self._is_abandoned():
                self._end()
            if self._ends_ranks:
                self._kill_if_due()

    def _answer(self, kind: str, **fields: object) -> None:
        answer = msgspec.convert({"keeper": self._number, "kind": kind, **fields}, Answer)
        # The launcher may have ended.
        with suppress(OSError):
            os.write(self._answers, msgspec.json.encode(answer) + b"\n")

    def _take_signals(self) -> None:
        with suppress(BlockingIOError):
            for number in os.read(self._woken, CHUNK_BYTES):
                if number in TERMINATIONS:
                    self._end(number)
        for process, rank in [*self._ranks.items()]:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._ranks[process]
                code = os.waitstatus_to_exitcode(status)
                is_ordered = self._ends_ranks and not self._is_ending
                if code and (self._timed_out or not is_ordered):
                    self._copy_rank_files(rank)
                if not self._ranks:
                    # Write the evidence, stop sampling, and end what the ranks left behind.
                    self._watched.close()
                    end_descendants(COMMAND_S, spared=self._watch.driver.number)
                    shutil.rmtree(self._kept.path, ignore_errors=True)
                code = 0 if is_ordered else code
                self._answer("ended", order=self._order.number, rank=rank, code=code)

    def _take_orders(self) -> None:
        if not (chunk := os.read(self._orders, CHUNK_BYTES)):
            self._end()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=Order)
            if order.job == END:
                self._timed_out = order.timed_out
                self._end_ranks()
            else:
                self._start(order)

    def _start(self, order: Order) -> None:
        self._order, self._ends_ranks, self._timed_out = order, False, False
        self._variables = {}
        own_ranks = order.assignment.get(self._number, ())
        directory = RunDirectory(path=Path(order.folder))
        # If each rank has a keeper, the keeper of a node's first rank acts for the node.
        is_first = any(local_rank == 0 for _, local_rank in own_ranks)
        host, gpus = socket.gethostname(), directory.gpus.read_if_left() if is_first else None
        addresses = (gpus or {}).get(host, {})
        if is_first and order.job in _WITH_EVIDENCE:
            watched = self._watch.watched(
                directory,
                host,
                addresses,
                is_everywhere=order.is_whole_environment,
                is_command=order.job == "command",
            )
            self._variables = self._watched.enter_context(watched)
        if order.package is not None and own_ranks:
            import_all([order.package])
        self._cores = set()
        if order.cores_per_rank is not None:
            places = [gpu_numa_node(address or "") for address in addresses.values()]
            count = order.cores_per_rank * len(own_ranks)
            self._cores = cpus_near(places, os.sched_getaffinity(0), count)
        self._kept.path.mkdir(exist_ok=True)
        for rank, local_rank in own_ranks:
            self._ranks[self._forked(directory, rank, local_rank)] = rank

    def _forked(self, directory: RunDirectory, rank: int, local_rank: int) -> int:
        signals = {signal.SIGCHLD, *TERMINATIONS}
        # A signal to the child must not be written into this process's pipe.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        child = os.fork()
        if child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return child
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in signals:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for descriptor in (self._orders, self._answers, self._woken, self._wakes):
                os.close(descriptor)
            self._run_rank(directory, rank, local_rank)
            code = 0
        except SystemExit as end:
            # A command's watcher exits this way after it has written its report.
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # Exit handlers of the keeper must not run in a rank.
            os._exit(code)

    def _run_rank(self, directory: RunDirectory, rank: int, local_rank: int) -> None:
        order = self._order
        # Errors of the job `describe` go to the keeper's own output.
        if order.job != "describe":
            log = os.open(self._kept.output(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for stream in (1, 2):
                os.dup2(log, stream)
        hosts = directory.host_names() if self._places else ()
        variables = {**order.variables, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        if order.is_whole_environment:
            os.environ.clear()
        else:
            variables |= {own: variables[name] for name, own in self._places.items()}
        os.environ.update(variables | gloo_variables(os.environ, hosts) | self._variables)
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        more = {"describe": (order.device,), "rank": (str(self._kept.stacks(rank)),)}
        do_in_rank(order.job, order.folder, *more.get(order.job, ()))

    def _copy_rank_files(self, rank: int) -> None:
        for path in self._kept.path.glob(f"rank-{rank}.*"):
            # The run's folder is gone if the launcher has ended.
            with suppress(OSError):
                if path.stat().st_size:
                    shutil.copyfile(path, Path(self._order.folder) / path.name)

    def _is_abandoned(self) -> bool:
        """Return True if the launcher, or the daemon that started this process, has ended.

        The keeper polls instead of asking Linux for a signal when its parent dies: that signal
        comes when the parent's forking thread ends, and schedulers' daemons fork from threads.
        """
        is_orphan = os.getppid() != self._parent or not self._folder.is_dir()
        return is_orphan and not self._is_ending

    def _end(self, number: int | None = None) -> None:
        """End ranks by signal `number` (None: SIGTERM for commands, else SIGKILL); stop serving."""
        self._is_ending = True
        self._end_ranks(number)

    def _end_ranks(self, number: int | None = None) -> None:
        self._ends_ranks = True
        if self._timed_out and self._order.job == "rank" and not self._is_ending:
            self._kill_at_s = time.monotonic() + _STACKS_S
            return
        if number is None:
            # SIGTERM lets a command's watcher end the processes that it started. A rank that is
            # stopped, or blocked in the GPU driver, reacts only to SIGKILL.
            number = signal.SIGTERM if self._order.job == "command" else signal.SIGKILL
        self._kill_at_s = time.monotonic() + RANK_S
        self._signal_ranks(number)

    def _kill_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s > self._kill_at_s:
            self._signal_ranks(signal.SIGKILL)
        elif self._timed_out and all(text_of(self._kept.stacks(n)) for n in self._ranks.values()):
            # Kill at the next poll: a stack trace may still be incomplete.
            self._kill_at_s = min(self._kill_at_s, now_s + _LOOK_S)

    def _signal_ranks(self, number: int) -> None:
        for process in self._ranks:
            os.kill(process, number)


def main(launcher: str, folder: str, preloads: str) -> NoReturn:
    """Run a keeper (with torch if `preloads` is 'preload') until the launcher ends, then exit."""
    code = 1
    try:
        with scratch_folder("gpuscale-keeper-") as scratch:
            if len(str(scratch)) < _LONGEST_SOCKET_FOLDER:
                # Data loaders of the ranks create their sockets here rather than in /tmp.
                config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
                config["tempdir"] = str(scratch)
            Keeper(launcher, Path(folder), scratch).serve(preloads=preloads == "preload")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        # Skip exit handlers: torch would take a second to shut down.
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
