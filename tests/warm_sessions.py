"""Sessions from a process that has imported torch: each alone would take 1.5 s for it.

A session is a process of its own still, forked before it imports anything of gpuscale or the cases,
and so is the keeper of its ranks, which would take twice as long. What a test starts with
variables or signals of its own imports all that anew, as a user's session does.
"""

import atexit
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

_HEEDED_LATE = {
    *("CI", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"),
    *("SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_PROCID"),
}
"""Variables that nothing reads while it is imported."""
_KEEPER = "gpuscale.measure.launch.keeper"
_OUT_OF_THE_WAY = 500
"""No file of a session's has so high a number."""


def environment_of_sessions() -> dict[str, str]:
    """The variables of this process that sessions get."""
    # A worker of pytest-xdist tells pytest-benchmark by the first that another writes the files.
    # The last is set by torch, to its default, where a test imports what it compiles with.
    left_out = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    # Bytecode of a case is told by its size and second from that of another in its place.
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


_AT_FIRST = environment_of_sessions()


class _Request(NamedTuple):
    """A request to start a session of pytest, or of gpuscale, which starts one."""

    module: str
    folder: str
    arguments: list[str]
    variables: dict[str, str]
    output: str


def can_be_warm(variables: Mapping[str, str]) -> bool:
    """False where a test has set a variable that libraries may read when they are imported."""
    return environment_of_sessions() == _AT_FIRST and variables.keys() <= _HEEDED_LATE


def warm_session(
    module: str,
    folder: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    timeout_s: float,
) -> tuple[int, str]:
    """The exit code of `python -m MODULE` in a folder, and what it printed."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as own:
        # Like a pipe it ends when the last process of the session has closed it.
        output = Path(own) / "output"
        os.mkfifo(output)
        request = _Request(module, str(folder), [*arguments], dict(variables), str(output))
        late = threading.Timer(timeout_s, os.killpg, (server.pid, signal.SIGKILL))
        late.start()
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        said = output.read_text()
        answer = server.stdout.readline()
        late.cancel()
    if not answer:
        _server.cache_clear()
        raise TimeoutError(f"{module} {' '.join(arguments)}: not done after {timeout_s} s: {said}")
    return int(answer), said


@cache
def _server() -> "subprocess.Popen[str]":
    """The process that sessions are forked from; it ends with this one, which closes its input."""
    return subprocess.Popen(
        [sys.executable, __file__],
        env=_AT_FIRST,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _serve() -> _Request:
    """Answers each line with an exit code; in the process of a session, returns what it is for."""
    # For those that are forked.
    import pytest  # noqa: F401
    import torch.distributed  # noqa: F401
    import torchvision.transforms.v2  # noqa: F401

    # No collection in those touches, and so copies, what they share with this process.
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _Request(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 # the answer
    sys.exit()


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
    sys.argv[1:] = arguments
    # As `python -P` has it.
    del sys.path[0]
    try:
        runpy.run_module(_KEEPER, run_name="__main__", alter_sys=True)
    finally:
        _end(0)


def _end(code: int) -> NoReturn:
    """Exit without taking torch down, which takes a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    asked = _serve()
    _have_keeper_ready()
    os.chdir(asked.folder)
    os.environ.update(asked.variables)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(asked.output, os.O_WRONLY), number)
    # Those of the server may lead to what a pipe cannot do.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    # As `python -m` leaves them.
    sys.argv[1:], sys.path[0] = asked.arguments, str(Path.cwd())
    try:
        runpy.run_module(asked.module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        _end(int(ended.code or 0))
