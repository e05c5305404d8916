"""A real Slurm on this machine: one node like JUWELS Booster's and one like CTE-POWER's."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "squeue", "scancel")
# The daemons of Debian lie outside the PATH of ordinary users.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
START_LIMIT_S = 30.0

SLURM_CONF = """\
ClusterName=gpuscale
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=2
GresTypes=gpu
NodeName=jwb1 NodeHostname={host} NodeAddr=127.0.0.1 Port={booster_port} Sockets=2 \
CoresPerSocket=24 ThreadsPerCore=2 Gres=gpu:4
NodeName=p9n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={power_port} Sockets=2 \
CoresPerSocket=20 ThreadsPerCore=4 Gres=gpu:4
PartitionName=booster Nodes=jwb1 MaxTime=24:00:00 State=UP
PartitionName=main Nodes=p9n1 MaxTime=24:00:00 Default=YES State=UP
"""
# Slurm wants a character device for each GPU and only looks at it; these exist everywhere.
GRES_CONF = "NodeName=jwb1,p9n1 Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/urandom\n"


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
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]
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
    directory.chmod(0o755)  # MUNGE insists that everyone can reach its socket
    (directory / "state").mkdir()
    (directory / "gres.conf").write_text(GRES_CONF)
    (directory / "slurm.conf").write_text(
        SLURM_CONF.format(
            directory=directory,
            host=socket.gethostname().split(".", 1)[0],
            controller_port=controller_port,
            booster_port=booster_port,
            power_port=power_port,
        )
    )
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)

    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    environment = {
        **inherited,
        "PATH": SEARCH_PATH,
        "SLURM_CONF": str(directory / "slurm.conf"),
    }
    cluster = SlurmCluster(directory=directory, environment=environment)
    munge = {name: f"{directory}/munge.{name}" for name in ("socket", "pid", "log", "seed")}
    munged = _daemon(
        cluster,
        stack,
        "munged",
        "--foreground",
        f"--key-file={key}",
        f"--socket={munge['socket']}",
        f"--pid-file={munge['pid']}",
        f"--log-file={munge['log']}",
        f"--seed-file={munge['seed']}",
    )
    _within_limit(lambda: Path(munge["socket"]).exists() or munged.poll() is not None)
    if not Path(munge["socket"]).exists():
        pytest.skip(f"munged does not start: {_last_line(directory / 'munged.out')}")
    _daemon(cluster, stack, "slurmctld", "-D")
    for node in ("jwb1", "p9n1"):
        _daemon(cluster, stack, "slurmd", "-D", "-N", node)
    if not _within_limit(lambda: _is_idle(cluster)):
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
    _within_limit(lambda: not cluster.run("squeue", "--noheader").stdout.strip())


def _within_limit(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


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
