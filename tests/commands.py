"""Real scripts, started and timed by the process that watches a command, without a session."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measuring import heed_interrupts
from msgspec.structs import replace
from warm_sessions import WarmProcess

from gpuscale.base.strategies import COMMAND
from gpuscale.measure.launch.collect import collect_run
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.requests import run_request
from gpuscale.records import Environment, Node, Run, RunRequest, TimingPlan
from gpuscale.workload.command_case import CommandCase

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


def gpuscale(folder: Path, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
    """Start `gpuscale` in its own process, which reacts to Ctrl-C; both streams are one text."""
    command = [sys.executable, "-m", "gpuscale", *arguments]
    more |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "preexec_fn": heed_interrupts}
    process: subprocess.Popen[str] = subprocess.Popen(command, cwd=folder, text=True, **more)
    return process


def request_for(
    folder: Path, script: str, *, gpus: int = 1, timeout_s: float = 240, nodes: int = 0, **more: Any
) -> RunRequest:
    """Return the request for one run of a script, across `nodes` of two cores if any are given."""
    path = folder / "train.py"
    path.write_text(PRELUDE + script)
    settings = {"command": f"{sys.executable} {path}", "batch": 8, **more}
    case = type("Train", (CommandCase,), {"__module__": __name__, **settings})
    there = tuple(Node(host=f"n{number}", cpu_count=2) for number in range(1, nodes + 1))
    plan = ItemPlan(case=case, strategy=COMMAND, gpus=gpus, run=1)
    request = run_request(plan, replace(HERE, nodes=there), MeasureOptions())
    return replace(request, timing=TIMING, timeout_s=timeout_s)


def watch(folder: Path, request: RunRequest, rank: int = 0) -> WarmProcess:
    """Start the process that watches the command of a request, as a keeper would on this host."""
    place = folder / "run"
    place.mkdir(exist_ok=True)
    RunDirectory(path=place).request.write(request)
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    own |= {"WORLD_SIZE": str(request.processes), "MASTER_PORT": str(free_port())}
    variables = {**os.environ, **own}
    if (place / "hosts").exists():
        # The test says which of the processes it is.
        variables = {**own, **os.environ}
    words = ("gpuscale.measure.worker.command:main", str(place))
    return WarmProcess(Path.cwd(), words, variables, folder / f"watcher-{rank}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measured(folder: Path, script: str, *, timeout_s: float = 240, **more: Any) -> Run:
    request = request_for(folder, script, timeout_s=timeout_s, **more)
    processes = [watch(folder, request, rank) for rank in range(request.processes)]
    try:
        for process in processes:
            process.wait(timeout_s + 30)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
    directory = RunDirectory(path=folder / "run")
    failure = next((report.failure for report in directory.failures()), None)
    return collect_run(request, directory, failure, started_at_s=time.time(), wall_s=1.0)


def is_living(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
