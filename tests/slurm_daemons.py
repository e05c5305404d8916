"""What every Slurm of the tests shares: its configuration, its key, and waiting for its daemons."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "squeue")
# The daemons of Debian lie outside the PATH of ordinary users.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
OF_A_JOB = ("SLURM", "SBATCH", "SALLOC", "SRUN", "OMPI", "PMI")
START_LIMIT_S = 30.0

_SLURM_CONF = """\
ClusterName=gpuscale
SlurmctldHost={controller}
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
SlurmdTimeout=10
MpiDefault=none
ReturnToService=2
KillWait=2
GresTypes=gpu
{lines}
"""
# Slurm wants a character device for each GPU and only looks at it; these exist everywhere.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")


def configure(
    directory: Path, *, controller: str, lines: Sequence[str], nodes: Sequence[str], gpus: int
) -> dict[str, str]:
    """Writes what the daemons of a cluster read; the environment of whoever talks to them.

    Args:
        directory: Where all of it lies.
        controller: The host of slurmctld, with its address.
        lines: Nodes, partitions and what else is this cluster's own.
        nodes: The names of the nodes.
        gpus: Of each node, four at most.
    """
    directory.chmod(0o755)  # MUNGE insists that everyone can reach its socket
    (directory / "state").mkdir()
    (directory / "slurm.conf").write_text(
        _SLURM_CONF.format(directory=directory, controller=controller, lines="\n".join(lines))
    )
    devices = ",".join(_DEVICES[:gpus])
    gres = f"NodeName={','.join(nodes)} Name=gpu File={devices}\n"
    (directory / "gres.conf").write_text(gres)
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(OF_A_JOB)}
    return {
        **inherited,
        "PATH": SEARCH_PATH,
        "SLURM_CONF": str(directory / "slurm.conf"),
    }


def munged_command(directory: Path) -> list[str]:
    """The command line of MUNGE's daemon with the key of that cluster."""
    files = {
        "key-file": "munge.key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "log-file": "munge.log",
        "seed-file": "munge.seed",
    }
    options = [f"--{option}={directory / name}" for option, name in files.items()]
    return ["munged", "--foreground", *options]


def answers(directory: Path, munged_has_ended: Callable[[], bool]) -> bool:
    """Whether MUNGE's daemon comes to listen, rather than to end."""
    socket = directory / "munge.socket"
    within_limit(lambda: socket.exists() or munged_has_ended())
    return socket.exists()


def within_limit(condition: Callable[[], bool]) -> bool:
    """Waits for a condition; whether it came true in time."""
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
