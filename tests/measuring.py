"""Starting pytest as a user would, in a process and a folder of its own."""

import fcntl
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from select import select

from warm_sessions import TIMEOUT_S, WarmProcess, environment_of_sessions, warm_session

from gpuscale.records import Results
from gpuscale.store.results import read_results

REPOSITORY = Path(__file__).parent.parent
BENCH_CASES = REPOSITORY / "bench_cases"

TINY_CASE = """
import pytest
import torch
from gpuscale import TrainingCase


class Tiny(TrainingCase):
    sample_shape = (16,)
    batch = 8

    def model(self):
        return torch.nn.Linear(16, 10)

    def loss(self, output, target):
        return torch.nn.functional.cross_entropy(output, target)

    def optimizer(self, model, gpus):
        return torch.optim.SGD(model.parameters(), lr=0.1)
"""
"""A case that trains in microseconds; tests add what is special about theirs."""
SHORT_WARM_UP = """
import math
import os

from msgspec.structs import replace
from gpuscale.measure.launch import collect
from gpuscale.records.request import TIMING_PLANS

for device, plan in TIMING_PLANS.items():
    TIMING_PLANS[device] = replace(plan, warmup_steps=2, warmup_s=0.05)
if "STEADINESS_MATTERS" not in os.environ:
    collect.SHORTEST_JUDGED_S = math.inf
"""
"""A tiny case is warm after some steps; each rank of each run would compute for 0.3 s. What else a
busy machine does makes the steps of a run differ, which is no failure but where a test asks."""


@dataclass(frozen=True)
class Session:
    exit_code: int
    output: str
    folder: Path

    def ended(self, exit_code: int = 0) -> "Session":
        assert self.exit_code == exit_code, self.output
        return self

    @property
    def results_path(self) -> Path:
        (path,) = (self.folder / ".gpuscale" / "results").glob("*.jsonl")
        return path

    @property
    def results(self) -> Results:
        return read_results(self.results_path)


# Hypothesis would be imported to say its name above the session.
PYTEST = ("pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *PYTEST, *arguments]


def run_pytest(folder: Path, *arguments: str, **variables: str) -> Session:
    return _run(folder, *PYTEST, *arguments, **variables)


def run_gpuscale(folder: Path, *arguments: str, **variables: str) -> Session:
    """Run `gpuscale` in `folder`, in a process of its own, as what starts sessions needs it."""
    return _run(folder, "gpuscale", *arguments, **variables)


def run_script(folder: Path, script: Path, *arguments: str, **variables: str) -> Session:
    """Run a script in `folder`, as `python FILE` does."""
    return _run(folder, str(script), *arguments, **variables)


def _run(folder: Path, *words: str, **variables: str) -> Session:
    exit_code, output = warm_session(folder, words, environment_of_sessions() | variables)
    return Session(exit_code=exit_code, output=output, folder=folder)


def start_pytest(folder: Path, *arguments: str, **variables: str) -> WarmProcess:
    """Start pytest in `folder`; its output goes to `log` there."""
    seen = environment_of_sessions() | variables
    return WarmProcess(folder, (*PYTEST, *arguments), seen, folder / "log")


def write_case(folder: Path, *parts: str, name: str = "test_tiny.py") -> Path:
    """A case file made of the tiny case and the given parts, with a test of `Case`."""
    path = folder / name
    test = "\n\n@pytest.mark.gpuscale(case=Case)\ndef test_case(scaling):\n    scaling()\n"
    path.write_text("\n".join([TINY_CASE, *parts]) + test)
    path.with_name("conftest.py").write_text(SHORT_WARM_UP)
    return path


def on_rank(rank: int, fault: str, *, name: str = "Case") -> str:
    """A case with a fault on one rank after the first step, so that others wait for it."""
    return f"""
import os, signal, time

class {name}(Tiny):
    calls = 0

    def forward(self, model, inputs):
        type(self).calls += 1
        if os.environ["RANK"] == "{rank}" and type(self).calls == 3:
            {fault}
        return model(inputs)

Case = {name}
"""


def command_case(name: str, command: str, **attributes: object) -> str:
    """The text of a file, or of a part of one, with a test of a command."""
    values = {"command": command, **attributes}
    lines = "\n    ".join(f"{attribute} = {value!r}" for attribute, value in values.items())
    return f"""
import pytest
from gpuscale import CommandCase

class {name}(CommandCase):
    {lines}

@pytest.mark.gpuscale(case={name})
def test_{name.lower()}(scaling):
    scaling()
"""


def emulated_gpus(count: int) -> dict[str, str]:
    """The variables of a machine with GPUs of tests/cuda_emulation."""
    tests = REPOSITORY / "tests"
    path = os.pathsep.join(map(str, (tests / "cuda_emulation", tests, REPOSITORY)))
    return {"PYTHONPATH": path, "EMULATED_CUDA_DEVICES": str(count)}


def without_torchvision(folder: Path) -> dict[str, str]:
    """The variables of processes that import no torchvision, which takes as long as torch.

    Sessions and their keepers do so for cases that need it; one that is broken is left to these.
    """
    broken = folder / "broken"
    broken.mkdir()
    (broken / "torchvision.py").write_text("raise ImportError('not for these tests')\n")
    paths = (str(broken), os.environ.get("PYTHONPATH"), str(REPOSITORY))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def heed_interrupts() -> None:
    """Restore SIGINT, which a shell ignores in its background processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def in_a_terminal(
    words: Sequence[str],
    folder: Path,
    *,
    columns: int,
    interrupt_at: re.Pattern[bytes] | None = None,
    **variables: str,
) -> str:
    """The output of `python -m WORDS` in a terminal, interrupted once it has printed a pattern."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = environment_of_sessions() | {"TERM": "xterm"} | variables
    process = WarmProcess(folder, words, seen, Path(os.ttyname(follower)))
    output = b""
    # The process has to open it before it is closed here.
    while process.poll() is None and not select([leader], [], [], 0.05)[0]:
        pass
    os.close(follower)
    # Linux says by an error that nobody holds the other side any more.
    with suppress(OSError):
        while chunk := os.read(leader, 65536):
            output += chunk
            if interrupt_at is not None and interrupt_at.search(output):
                process.send_signal(signal.SIGINT)
                interrupt_at = None
    process.wait(timeout=TIMEOUT_S)
    return output.decode(errors="replace")
