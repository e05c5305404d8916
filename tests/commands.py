"""Real scripts, started and timed by the process that watches a command, without a session."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from gpuscale.measure.launch.collect import collect_run
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Environment, Node, Run, RunRequest, TimingPlan
from gpuscale.workload.command_case import CommandCase
from gpuscale.workload.run_defaults import command_request

TIMING = TimingPlan(warmup_steps=2, warmup_s=0.05, windows=10, window_s=0.05, run_seconds=1.0)
HERE = Environment(device="cpu", cpu_count=2)
PRELUDE = """
import json, os, subprocess, sys, time
due = 0.0

def steps(numbers, pace_s=0.01, **more):
    global due
    for number in numbers:
        # What is late is made up for, but at most a window of it: more would be windows of no time.
        due = max(due, time.monotonic() - 0.05) + pace_s
        time.sleep(max(0, due - time.monotonic()))
        print("GPUSCALE", json.dumps({"step": number, **more}))

"""
"""The beginning of scripts: steps of equal length on a busy machine too."""


def request_for(
    folder: Path,
    script: str,
    *,
    gpus: int = 1,
    timeout_s: float = 240,
    nodes: int = 0,
    **attributes: object,
) -> RunRequest:
    """The request for one run of a script; attributes are those of its case.

    With `nodes` it is one across nodes, each of which has two cores.
    """
    path = folder / "train.py"
    path.write_text(PRELUDE + script)
    settings = {"command": f"{sys.executable} {path}", "batch": 8, **attributes}
    case = type("Train", (CommandCase,), {"__module__": __name__, **settings})
    there = tuple(Node(host=f"n{number}", cpu_count=2) for number in range(1, nodes + 1))
    request = command_request(case, replace(HERE, nodes=there), gpus=gpus, run=1)
    return replace(request, timing=TIMING, timeout_s=timeout_s)


def watch(folder: Path, request: RunRequest) -> "subprocess.Popen[bytes]":
    """The process that watches the command of a request, started in a new folder of the run."""
    place = folder / "run"
    place.mkdir(exist_ok=True)
    RunDirectory(path=place).request.write(request)
    code = "import sys; from gpuscale.measure.worker.command import main; main(sys.argv[1])"
    return subprocess.Popen([sys.executable, "-c", code, str(place)])


def measured(
    folder: Path, script: str, *, gpus: int = 1, timeout_s: float = 240, **attributes: object
) -> Run:
    """The run that a script makes."""
    request = request_for(folder, script, gpus=gpus, timeout_s=timeout_s, nodes=0, **attributes)
    process = watch(folder, request)
    try:
        process.wait(timeout_s + 30)
    finally:
        process.send_signal(signal.SIGTERM)
    directory = RunDirectory(path=folder / "run")
    failure = next((report.failure for report in directory.failures()), None)
    return collect_run(request, directory, failure, started_at_s=time.time(), wall_s=1.0)


def is_living(process: int) -> bool:
    """True if the process has not ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
