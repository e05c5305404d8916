"""Sessions forked from a process that has imported torch and gpuscale, which takes 2 s of CPU time.

A session is still a process of its own, and so is the keeper of its ranks. Tests that start pytest
or gpuscale by `subprocess` import everything anew, as a user's session does. All workers of
pytest-xdist share that process: each has a server of sessions, forked from it, to itself.
"""

import atexit
import fcntl
import gc
import hashlib
import json
import math
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any, NamedTuple, NoReturn

_HEEDED_LATE = {
    *("CI", "COLUMNS", "NO_COLOR", "TERM", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "OMP_NUM_THREADS"),
    *("SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_PROCID"),
    *("EMULATED_CUDA_MEMORY", "EMULATED_CUDA_LOST", "STEADINESS_MATTERS"),
}
"""Variables that nothing of a session reads while it is imported; others need their own server."""
_PRELOADED = ("gpuscale.plugin.session", "gpuscale.measure.worker.command")
TIMEOUT_S = 240
_KEEPER = "gpuscale.measure.launch.keeper"
_OUT_OF_THE_WAY = 500
"""No file of a session's has so high a number."""


def environment_of_sessions() -> dict[str, str]:
    # A worker of pytest-xdist tells pytest-benchmark by the first that another writes the files.
    # The last is set by torch, to its default, where a test imports what it compiles with.
    left_out = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    # Bytecode of a case is told by its size and second from that of another in its place.
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


AT_FIRST = environment_of_sessions()
_Variables = frozenset[tuple[str, str]]


class _Server:
    """A process that sessions with some variables are forked from; it ends with this one."""

    def __init__(self, variables: _Variables) -> None:
        asked, self._requests = os.pipe()
        self._answers, answered = os.pipe()
        # It may end just when it is found.
        while not (pid := self._asked_for(variables, asked, answered)):
            pass
        for each in (asked, answered):
            os.close(each)
        self.pid = int(pid)
        self._told = os.fdopen(self._answers)

    def _asked_for(self, variables: _Variables, *pipes: int) -> bytes:
        # Kept, since the importing process ends with the last connection to it.
        self._connection = _importing_process(variables)
        try:
            socket.send_fds(self._connection, [b"."], pipes)
            return self._connection.recv(20)
        except ConnectionError:
            return b""

    def ask(self, request: object) -> str:
        os.write(self._requests, f"{json.dumps(request)}\n".encode())
        return self._told.readline()

    def end(self) -> None:
        os.close(self._requests)
        self._told.read()
        self._told.close()
        self._connection.close()


_SERVERS: dict[_Variables, _Server] = {}
"""Servers by their environment: the usual one, and the newest other one."""
_STARTED: list[subprocess.Popen[bytes]] = []
"""The importing processes that this one has started, none of which it waits for."""


class _Request(NamedTuple):
    folder: str
    words: list[str]
    variables: dict[str, str]
    output: str


class WarmProcess:
    """A process that has imported torch and gpuscale already.

    `words` are a module and its arguments, as for `python -m`, the file of a script and its own, or
    `MODULE:FUNCTION` and those of the function; both streams go to `output`, a file or a named
    pipe.
    """

    def __init__(
        self, folder: Path, words: Sequence[str], variables: Mapping[str, str], output: Path
    ) -> None:
        # A function and a script read their variables when they run.
        is_late = ":" in words[0] or words[0].endswith(".py")
        self._server = _server(AT_FIRST if is_late else variables)
        self._words = words
        request = _Request(str(folder), [*words], {**variables}, str(output))
        self.pid = self._asked(request)
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] != "Z":
                return None
        return self.wait()

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        if self._code is None:
            with self.limited_to(timeout):
                self._code = self._asked(self.pid)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        if self._code is None:
            os.kill(self.pid, number)

    @contextmanager
    def limited_to(self, timeout_s: float) -> Iterator[None]:
        """Kill all processes of the server if what is done in the context takes longer."""
        late = threading.Timer(timeout_s, os.killpg, (self._server.pid, signal.SIGKILL))
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def _asked(self, request: object) -> int:
        answer = self._server.ask(request)
        if not answer:
            _SERVERS.clear()
            raise TimeoutError(f"{' '.join(self._words)}: not done in time")
        return int(answer)


def warm_session(
    folder: Path, words: Sequence[str], variables: Mapping[str, str]
) -> tuple[int, str]:
    """The exit code of `python -m WORDS` in a folder, and what it printed."""
    with tempfile.TemporaryDirectory() as own:
        # Like a pipe it ends when the last process of the session has closed it.
        output = Path(own) / "output"
        os.mkfifo(output)
        session = WarmProcess(folder, words, variables, output)
        with session.limited_to(TIMEOUT_S):
            said = output.read_text()
            try:
                return session.wait(), said
            except TimeoutError as error:
                error.add_note(said)
                raise


def _server(environment: Mapping[str, str]) -> _Server:
    key, usual = _early(environment), _early(AT_FIRST)
    if key not in _SERVERS:
        # No more than two have torch in memory.
        for other in {*_SERVERS} - {usual} if key != usual else ():
            _SERVERS.pop(other).end()
        _SERVERS[key] = _Server(key)
    return _SERVERS[key]


def _importing_process(variables: _Variables) -> socket.socket:
    """Connect to the process that imports with these variables; start it if nobody has yet."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    digest = hashlib.sha256(repr((run, sorted(variables))).encode()).hexdigest()
    # Of the kernel's own names, which no file is left of.
    name = f"\0gpuscale-tests-{digest}"
    connection = socket.socket(socket.AF_UNIX)
    while True:
        with socket.socket(socket.AF_UNIX) as listening:
            try:
                listening.bind(name)
            except OSError:
                # Another worker has it.
                pass
            else:
                listening.listen()
                number = listening.fileno()
                started = subprocess.Popen(
                    [sys.executable, __file__, str(number)],
                    env=dict(variables),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[number],
                    start_new_session=True,
                )
                _STARTED.append(started)
        with suppress(ConnectionRefusedError):
            connection.connect(name)
            return connection
        time.sleep(0.01)


def _early(environment: Mapping[str, str]) -> _Variables:
    """The variables that may be read while modules are imported."""
    return frozenset(each for each in environment.items() if each[0] not in _HEEDED_LATE)


def _serve(listening: socket.socket) -> _Request:
    """Give each worker a server until none is connected; in a process of its, return a request."""
    # For those that are forked.
    from gpuscale.measure.launch import PRELOADED, import_all

    import_all((*PRELOADED, *_PRELOADED))
    # No collection in those touches, and so copies, what they share with this process.
    gc.freeze()
    # Nobody waits for a server.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    workers: list[socket.socket] = []
    # Whoever has started this process may have been killed.
    listening.settimeout(TIMEOUT_S)
    while True:
        for ready in select([listening, *workers], [], [])[0] if workers else [listening]:
            if ready is listening:
                workers += filter(_is_of_this_user, [listening.accept()[0]])
                continue
            pipes: list[int] = []
            # A worker may have been killed.
            with suppress(ConnectionError):
                _, pipes, _, _ = socket.recv_fds(ready, 1, 2)
            if not pipes:
                workers.remove(ready)
                ready.close()
                continue
            if not (server := os.fork()):
                for each in (listening, *workers):
                    each.close()
                return _answered(*pipes)
            for number in pipes:
                os.close(number)
            with suppress(ConnectionError):
                ready.sendall(str(server).encode())
        if not workers:
            # Torch would take a second to shut down.
            os._exit(0)


def _is_of_this_user(worker: socket.socket) -> bool:
    who = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", who)
    return bool(user == os.getuid())


def _answered(asked: int, answered: int) -> _Request:
    """Answer requests for processes by their numbers, and to numbers by their exit codes.

    In a process that is asked for, its own request is returned.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, each in enumerate((asked, answered)):
        os.dup2(each, number)
        os.close(each)
    for line in os.fdopen(0, closefd=False):
        request = json.loads(line)
        if isinstance(request, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        elif not (answer := os.fork()):
            return _Request(*request)
        os.write(1, f"{answer}\n".encode())
    os._exit(0)


def _have_keeper_ready() -> None:
    """Let the first keeper of this session be a process that is forked now."""
    here, there = socket.socketpair()
    ready = os.fork()
    if not ready:
        here.close()
        _wait_to_be_keeper(there)
    there.close()
    anew = subprocess._fork_exec  # type: ignore[attr-defined]
    is_taken = False

    def started(words: Sequence[bytes | str], *rest: Any) -> int:
        nonlocal is_taken
        if is_taken or _KEEPER not in words:
            return int(anew(words, *rest))
        is_taken = True
        # As CPython's subprocess hands them over: those of the child for the pipes to it, from it
        # and for its errors.
        reading, writing, errors = rest[5], rest[8], rest[10]
        handed = [reading, writing, 2 if errors == -1 else errors]
        told = json.dumps([words[words.index(_KEEPER) + 1 :], str(Path.cwd()), dict(os.environ)])
        with here:
            socket.send_fds(here, [b"."], handed)
            here.sendall(told.encode())
        return ready

    subprocess._fork_exec = started  # type: ignore[attr-defined]


def _wait_to_be_keeper(session: socket.socket) -> NoReturn:
    """Do as the module that a session starts, once it asks for it."""
    # What the server of the sessions reads and writes is not for this process.
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.chdir("/")
    _, received, _, _ = socket.recv_fds(session, 1, 3)
    told = session.makefile().read()
    if not told:
        # The session has ended without ranks.
        os._exit(0)
    arguments, folder, variables = json.loads(told)
    # First out of the way of the numbers that they are to have.
    aside = [fcntl.fcntl(each, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for each in received]
    os.closerange(3, _OUT_OF_THE_WAY)
    for number, each in enumerate(aside):
        os.dup2(each, number, inheritable=True)
        os.close(each)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    # As `python -P` has it.
    del sys.path[0]
    try:
        runpy.run_module(_KEEPER, run_name="__main__", alter_sys=True)
    finally:
        _end(0)


def _accept_unsteady_runs() -> None:
    """Have runs judged as if all their windows were too short for it, since machines are busy."""
    from gpuscale.measure.launch import collect

    vars(collect)["SHORTEST_JUDGED_S"] = math.inf


def _end(code: int) -> NoReturn:
    """Exit without taking torch down, which takes a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    target, *arguments = asked.words
    is_session = ":" not in target
    if is_session:
        _have_keeper_ready()
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.variables)
    if "STEADINESS_MATTERS" not in asked.variables:
        _accept_unsteady_runs()
    # A shell may have started the tests in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # TMPDIR may be another now.
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(asked.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # Those of the server may lead to what a pipe cannot do.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    is_script = target.endswith(".py")
    # As Python leaves them.
    sys.argv[1:], sys.path[0] = arguments, str(Path(target).parent if is_script else Path.cwd())
    try:
        if is_script:
            runpy.run_path(target, run_name="__main__")
        elif is_session:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            pkgutil.resolve_name(target)(*arguments)
    except SystemExit as ended:
        _end(int(ended.code or 0))
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)
