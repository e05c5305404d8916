"""Sessions of pytest from a process that has imported torch: each alone would take 1.5 s for it.

A session is a process of its own still, forked before it imports anything of gpuscale or the cases.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path


def environment_of_sessions() -> dict[str, str]:
    """The variables of this process that sessions get."""
    # A worker of pytest-xdist tells pytest-benchmark by the first that another writes the files.
    left_out = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    return {name: value for name, value in os.environ.items() if name not in left_out}


_AT_FIRST = environment_of_sessions()


def can_be_warm() -> bool:
    """False where a test has set a variable: libraries read some when they are imported."""
    return environment_of_sessions() == _AT_FIRST


def warm_session(folder: Path, arguments: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """The exit code of `python -m pytest` in a folder, and what it printed."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as own:
        # Like a pipe it ends when the last process of the session has closed it.
        output = Path(own) / "output"
        os.mkfifo(output)
        request = {"folder": str(folder), "arguments": [*arguments], "output": str(output)}
        late = threading.Timer(timeout_s, os.killpg, (server.pid, signal.SIGKILL))
        late.start()
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        said = output.read_text()
        answer = server.stdout.readline()
        late.cancel()
    if not answer:
        _server.cache_clear()
        raise TimeoutError(f"pytest {' '.join(arguments)}: not done after {timeout_s} s: {said}")
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


def _serve() -> dict[str, str | list[str]]:
    """Answers each line with an exit code; in the process of a session, returns what it is for."""
    import torch  # noqa: F401 # for those that are forked
    import torchvision  # noqa: F401 # likewise

    for line in sys.stdin:
        child = os.fork()
        if not child:
            found: dict[str, str | list[str]] = json.loads(line)
            return found
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 # the answer
    sys.exit()


if __name__ == "__main__":
    asked = _serve()
    os.chdir(str(asked["folder"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(str(asked["output"]), os.O_WRONLY), number)
    # Those of the server may lead to what a pipe cannot do.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    # As `python -m pytest` leaves them.
    sys.argv[1:], sys.path[0] = asked["arguments"], str(Path.cwd())
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
