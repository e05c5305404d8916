"""The launcher's side of the pipes to the keepers: send orders and read answers.

A keeper (keeper.py) is a process on each node that forks the ranks of successive runs. An order is
a line of JSON that all keepers read from standard input, or from a socket (mpirun.py). An answer
is a line of JSON that one keeper writes to standard output. Keepers end when their input ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import BinaryIO, Literal, cast
from weakref import finalize

import msgspec

from gpuscale.base import process_ends
from gpuscale.base.host import python_environment, text_of
from gpuscale.base.process_ends import KEEPERS_S, RUN_S, STEP_S
from gpuscale.measure.launch.mpirun import OrderSocket
from gpuscale.measure.run_directory import LAUNCHER_LOG, RunDirectory
from gpuscale.measure.schedulers.placement import Placement, ProcessStarter

END = "end"
"""The order to end all ranks; every other order is a job for the ranks."""
_CORRUPTION_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals that suggest memory corruption, perhaps inherited from the keeper when it forked."""
_START_S = 180.0
CHUNK_BYTES = 65536

Assignment = Mapping[int, tuple[tuple[int, int], ...]]
"""Maps the number of a keeper to the (rank, local rank) of every process that it has to fork."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order from the launcher to the keepers, the processes that fork ranks."""

    number: int
    job: str
    """A job for `do_in_rank`, or `END`."""
    folder: str = ""
    package: str | None = None
    """A package that ranks need; the keeper imports it before forking, since the import is slow."""
    assignment: Assignment = {}
    variables: Mapping[str, str] = {}
    """Environment variables with the same value for all ranks."""
    is_whole_environment: bool = False
    """True if ranks get only `variables` and the variables of their rank, and inherit no others."""
    cores_per_rank: int | None = None
    """Number of cores per rank; None if ranks may use all cores of their parent process."""
    timed_out: bool = False
    """True in an `END` order if the run took too long, so that all logs and stacks are needed."""
    device: str = "auto"
    """The type of device that the job `describe` looks for: `auto`, or one of `DEVICES`."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A keeper's message to the launcher: the keeper is ready for orders, or a rank has ended."""

    keeper: int
    kind: Literal["ready", "ended"]
    node: str = ""
    """The scheduler's name for the keeper's node; empty if unknown."""
    host: str = ""
    refusal: str = ""
    """Reason why the keeper ends instead of being ready; empty if it is ready."""
    order: int = 0
    rank: int = 0
    code: int = 0
    """The rank's exit code or negated signal number; 0 if the keeper ended the rank as ordered."""


@dataclass(slots=True)
class Outcome:
    """Exit codes of the ranks that carried out an order, and whether the order timed out."""

    exit_codes: dict[int, int] = field(default_factory=dict)
    """Exit code of each rank that is known to have ended, in the order of ending: a negated signal
    number if a signal killed the rank, 0 if the keeper ended the rank as ordered."""
    timed_out: bool = False


class Keepers:
    """The processes that fork the ranks of a session or a run, and the command that starts them."""

    def __init__(
        self, starter: ProcessStarter, placement: Placement, folder: Path, *, preloads: bool
    ) -> None:
        """Start keepers for `placement`, with torch if `preloads`; wait until all are ready."""
        self.placement, self._log = placement, folder / LAUNCHER_LOG
        self._socket, self._streams = None, list[BinaryIO]()
        """Socket to which keepers connect, if any, and the streams that carry their orders."""
        if not starter.passes_input:
            self._socket = OrderSocket(folder, list(map(placement.host_of, range(placement.ranks))))
        program = [sys.executable, "-P", "-m", "gpuscale.measure.launch.keeper"]
        program += [starter.name, str(folder), "preload" if preloads else "fresh"]
        guard = [sys.executable, "-I", "-S", process_ends.__file__, str(os.getpid())]
        given = python_environment().items()
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*guard, *starter.arguments(program, placement)],
                env={name: value for name, value in given if starter.reaches(name)},
                stdin=subprocess.PIPE if starter.passes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C must reach only pytest, which ends the ranks; srun would ask to repeat it.
                start_new_session=True,
            )
        if stdin := self._process.stdin:
            self._streams.append(cast("BinaryIO", stdin))
        self.ready: dict[int, Answer] = {}
        """The first answer of each keeper that can carry out orders."""
        self.output = ""
        """Reason why the keepers cannot start ranks: their errors or log; empty if they can."""
        self.is_usable = True
        """False if a keeper did not start, is lost or may be broken; a run then needs new ones."""
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._orders = 0
        self.close = finalize(self, _close, self._process, self._streams)
        """Ends the keepers; also called when this object is deleted or this process ends."""
        self.wait_until_ready()

    def assign_ranks(self, placement: Placement, *, is_fresh: bool) -> Assignment:
        """Assign rank n to ready keeper n if `is_fresh`, else to the ready keeper of its node."""
        assignment: dict[int, tuple[tuple[int, int], ...]] = {}
        taken = Counter[str]()
        for number, answer in sorted(self.ready.items()):
            node = answer.node or self.placement.host_of(number)
            if is_fresh:
                assignment[number] = ((number, taken[node]),)
                taken[node] += 1
            elif node in placement.hosts:
                position = placement.hosts.index(node)
                first = position * placement.ranks_per_host
                here = range(placement.ranks_on(position))
                assignment[number] = tuple((first + local, local) for local in here)
        return assignment

    def hosts_in(self, assignment: Assignment) -> list[tuple[int, str]]:
        """Return each rank with the host on which it starts, in the order of ranks."""
        pairs = ((rank, number) for number, ranks in assignment.items() for rank, _ in ranks)
        return [(rank, self.ready[number].host) for rank, number in sorted(pairs)]

    def wait_until_ready(self) -> None:
        """Wait until all keepers are ready for orders; end them if one is not ready in time."""
        refusals: list[str] = []
        for answer in self._answers(time.monotonic() + _START_S):
            if answer.refusal:
                refusals.append(answer.refusal)
            elif answer.kind == "ready":
                self.ready[answer.keeper] = answer
            if len(self.ready) + len(refusals) == self.placement.ranks:
                break
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if len(self.ready) < self.placement.ranks:
            self.is_usable = False
            # Read the log now: later it also reports the end of the other keepers.
            self.output = "\n".join(refusals) or text_of(self._log)
            self.close()

    def perform(
        self,
        job: str,
        directory: RunDirectory,
        assignment: Assignment,
        *,
        timeout_s: float,
        **details: object,
    ) -> Outcome:
        """Start ranks, wait until all have ended or one has failed, and end the remaining ranks.

        If `job` is `describe`, a failure does not end other ranks. At the timeout all ranks are
        ended; if `job` is `rank`, they dump stacks first. `details` are further fields of `Order`.
        """
        ranks, outcome = {rank for pairs in assignment.values() for rank, _ in pairs}, Outcome()
        number = self.send(job=job, folder=str(directory.path), assignment=assignment, **details)

        def has_ended(within_s: float, *, at_failure: bool) -> bool:
            for answer in self._answers(time.monotonic() + within_s):
                if answer.kind == "ended" and answer.order == number:
                    outcome.exit_codes[answer.rank] = answer.code
                    if len(outcome.exit_codes) == len(ranks) or (at_failure and answer.code):
                        return True
            return not self.is_usable

        try:
            outcome.timed_out = not has_ended(timeout_s, at_failure=job != "describe")
        finally:
            if len(outcome.exit_codes) < len(ranks):
                self.send(job=END, timed_out=outcome.timed_out)
                has_ended(RUN_S, at_failure=False)
            signals = {-code for code in outcome.exit_codes.values()}
            if len(outcome.exit_codes) < len(ranks) or signals & {*_CORRUPTION_SIGNALS}:
                self.is_usable = False
            if not self.is_usable:
                self.close()
                self.output = text_of(self._log)
        return outcome

    def send(self, **fields: object) -> int:
        """Send an order without waiting for answers, and return its number."""
        self._orders += 1
        text = msgspec.json.encode(msgspec.convert({"number": self._orders, **fields}, Order))
        try:
            for stream in self._streams:
                stream.write(text + b"\n")
                stream.flush()
        except (OSError, ValueError):
            self.is_usable = False
        return self._orders

    def _answers(self, deadline_s: float) -> Iterator[Answer]:
        """Yield answers until the deadline, or until all keepers have ended."""
        assert self._process.stdout is not None
        while True:
            while self._lines:
                # Other lines may have been printed before the keeper took over standard output.
                with suppress(msgspec.DecodeError):
                    yield msgspec.json.decode(self._lines.popleft(), type=Answer)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self.is_usable:
                return
            sources = [self._process.stdout, *([self._socket] if self._socket else ())]
            if not (ready := select(sources, [], [], left_s)[0]):
                return
            if self._socket is not None and self._socket in ready:
                self._streams += filter(None, [self._socket.accept()])
                continue
            if not (chunk := os.read(self._process.stdout.fileno(), CHUNK_BYTES)):
                self.is_usable = False
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(lines)


def _close(process: "subprocess.Popen[bytes]", streams: Iterable[BinaryIO]) -> None:
    assert process.stdout is not None
    for stream in streams:
        with suppress(OSError):
            stream.close()
    for end, patience_s in ((None, KEEPERS_S), (process.terminate, STEP_S), (process.kill, None)):
        if end is not None:
            end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            break
    process.stdout.close()
