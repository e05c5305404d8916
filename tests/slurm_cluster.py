"""A Slurm of several hosts on this machine, with MUNGE and GPUs that nobody computes on."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hosts import Cluster, cluster_of

_PROGRAMS = (
    *("munged", "slurmctld", "slurmd"),
    *("sbatch", "srun", "salloc", "sinfo", "squeue", "scontrol", "scancel"),
)
_SLURM_CONF = """\
ClusterName=gpuscale
SlurmctldHost=login({address})
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
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={down_after_s}
MpiDefault=none
ReturnToService=2
KillWait=20
GresTypes=gpu
"""
TWO_NODES = {"n1": "CPUs=2", "n2": "CPUs=2"}
# Slurm wants a character device for each GPU and only looks at it; these exist everywhere.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")


@contextmanager
def slurm_cluster(
    nodes: Mapping[str, str],
    *,
    gpus: int = 2,
    partitions: Sequence[str] = ("main Nodes=ALL Default=YES",),
    task_plugin: str = "task/none",
    topology: Sequence[str] = (),
    down_after_s: int = 10,
) -> Iterator[Cluster]:
    """A running Slurm of `nodes` with these CPUs, whose daemons and jobs end with the block."""
    variables = {"SLURM_CONF": "{directory}/slurm.conf"}
    with cluster_of(
        list(nodes), programs=_PROGRAMS, packages="slurm-wlm munge", variables=variables
    ) as (cluster, stack):
        directory = cluster.directory
        chosen = {"task_plugin": task_plugin, "down_after_s": down_after_s}
        common = _SLURM_CONF.format(directory=directory, address=cluster.login.address, **chosen)
        if topology:
            common += "TopologyPlugin=topology/tree\n"
            (directory / "topology.conf").write_text("\n".join(topology) + "\n")
        _configure(cluster, nodes, gpus, partitions, common)
        cluster.daemon(stack, cluster.login, *_munged(directory))
        cluster.wait_until_ready((directory / "munge.socket").exists)
        cluster.daemon(stack, cluster.login, "slurmctld", "-D")
        for node in cluster.nodes:
            cluster.daemon(stack, node, "slurmd", "-D", "-N", node.name)
        cluster.wait_until_ready(lambda: _is_idle(cluster))
        yield cluster


def _configure(
    cluster: Cluster, nodes: Mapping[str, str], gpus: int, partitions: Sequence[str], common: str
) -> None:
    directory = cluster.directory
    (directory / "state").mkdir()
    lines = [
        *(
            f"NodeName={node.name} NodeAddr={node.address} Gres=gpu:{gpus} {nodes[node.name]}"
            for node in cluster.nodes
        ),
        *(f"PartitionName={partition} MaxTime=24:00:00 State=UP" for partition in partitions),
    ]
    (directory / "slurm.conf").write_text(common + "\n".join(lines) + "\n")
    devices = ",".join(_DEVICES[:gpus])
    gres = f"NodeName={','.join(nodes)} Name=gpu File={devices}\n"
    (directory / "gres.conf").write_text(gres)
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)


def _munged(directory: Path) -> list[str]:
    """The command line of MUNGE's daemon, with all of its files in the folder of the cluster."""
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid"}
    files |= {"log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={directory}/munge.{ending}" for option, ending in files.items()]
    return ["munged", "--foreground", *options]


def _is_idle(cluster: Cluster) -> bool:
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    # A node in several partitions is listed in each.
    return {*states} == {"idle"} and len(states) >= len(cluster.nodes)
