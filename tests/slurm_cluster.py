"""A real Slurm on this machine: one node like JUWELS Booster's and one like CTE-POWER's."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from slurm_daemons import (
    PROGRAMS,
    SEARCH_PATH,
    answers,
    configure,
    munged_command,
    within_limit,
)

_PROGRAMS = (*PROGRAMS, "scancel")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """A running cluster: `jwb1` in partition booster, `p9n1` in the default partition."""

    directory: Path
    environment: Mapping[str, str] = field(repr=False)

    def run(
        self, *command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a Slurm command against this cluster and returns what it said."""
        return subprocess.run(
            command,
            cwd=cwd or self.directory,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A local Slurm for the session; skips where it cannot be had, leaves no daemon behind."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        pytest.skip(f"needs Slurm and MUNGE (Debian: slurm-wlm munge); missing: {missing[0]}")
    if os.geteuid() != 0:
        pytest.skip("needs root: slurmd starts jobs as their users")
    with ExitStack() as stack:
        # A short path: the sockets below it may have at most 108 characters.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        yield _start(directory, stack)


def _start(directory: Path, stack: ExitStack) -> SlurmCluster:
    controller_port, booster_port, power_port = _free_ports(3)
    host = socket.gethostname().split(".", 1)[0]
    here = f"NodeHostname={host} NodeAddr=127.0.0.1 Gres=gpu:4 Sockets=2"
    environment = configure(
        directory,
        controller=f"{host}(127.0.0.1)",
        lines=[
            f"SlurmctldPort={controller_port}",
            f"NodeName=jwb1 {here} Port={booster_port} CoresPerSocket=24 ThreadsPerCore=2",
            f"NodeName=p9n1 {here} Port={power_port} CoresPerSocket=20 ThreadsPerCore=4",
            "PartitionName=booster Nodes=jwb1 MaxTime=24:00:00 State=UP",
            "PartitionName=main Nodes=p9n1 MaxTime=24:00:00 Default=YES State=UP",
        ],
        nodes=["jwb1", "p9n1"],
        gpus=4,
    )
    cluster = SlurmCluster(directory=directory, environment=environment)
    munged = _daemon(cluster, stack, *munged_command(directory))
    if not answers(directory, lambda: munged.poll() is not None):
        pytest.skip(f"munged does not start: {_last_line(directory / 'munged.out')}")
    _daemon(cluster, stack, "slurmctld", "-D")
    for node in ("jwb1", "p9n1"):
        _daemon(cluster, stack, "slurmd", "-D", "-N", node)
    if not within_limit(lambda: _is_idle(cluster)):
        said = cluster.run("sinfo", "--long", "--Node")
        pytest.fail(f"Slurm does not become ready: {said.stdout}{said.stderr}")
    # Before the daemons stop, so that none leaves a job's processes behind.
    stack.callback(_end_jobs, cluster)
    return cluster


def _daemon(cluster: SlurmCluster, stack: ExitStack, *command: str) -> "subprocess.Popen[bytes]":
    """Starts a daemon in the foreground; it is stopped when the stack is unwound."""
    output = stack.enter_context((cluster.directory / f"{command[0]}.out").open("ab"))
    process = subprocess.Popen(
        command, env=dict(cluster.environment), stdout=output, stderr=subprocess.STDOUT
    )
    stack.callback(_stop, process)
    return process


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_idle(cluster: SlurmCluster) -> bool:
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    return states == ["idle", "idle"]


def _end_jobs(cluster: SlurmCluster) -> None:
    cluster.run("scancel", "--user=root")
    within_limit(lambda: not cluster.run("squeue", "--noheader").stdout.strip())


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
