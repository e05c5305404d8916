"""The nodes and the queue of a Slurm cluster, for sweeps that measure node after node."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from gpuscale.measure.schedulers.scheduler import answer_of

_OUT = ("down", "drain", "fail", "error", "inval", "maint", "boot_fail", "no_resp")
"""Prefixes of the states that Slurm reports for nodes on which no job can start."""


class ClusterNode(NamedTuple):
    """A node in a partition, as reported by Slurm."""

    name: str
    partition: str
    state: str
    """State as Slurm names it, such as `idle`, with an admin's reason if any: `drained (fan)`."""
    kind: str
    """GPUs and cores, `gpu:a100:4, 64 cores`; nodes with the same text are alike."""

    @property
    def stage(self) -> Literal["idle", "busy", "out"]:
        """`idle` if a job could start now, `busy` if it could start later, otherwise `out`."""
        if self.state.startswith(_OUT):
            return "out"
        return "idle" if self.state.startswith("idle") else "busy"


class QueuedJob(NamedTuple):
    """A job of this user that waits or runs."""

    number: str
    waits: bool


def cluster_nodes(partition: str | None) -> list[ClusterNode] | None:
    """Return the nodes of a partition, or all nodes; None if Slurm's controller does not answer."""
    only = [] if partition is None else [f"--partition={partition}"]
    # The reason comes last, since it may contain any sign.
    answer = answer_of(["sinfo", "--noheader", "--Node", *only, "--format=%N|%R|%T|%G|%c|%E"])
    if answer is None:
        return None
    nodes = []
    for name, of, state, gres, cores, reason in (x.split("|", 5) for x in answer.splitlines()):
        # An asterisk marks a node that does not answer, or of which a controller that has just
        # begun knows nothing yet; other signs are of power saving.
        word = re.sub(r"[^a-z_]", "", state.lower())
        word = "down" if state.endswith("*") and word != "unknown" else word
        gpus = "" if gres == "(null)" else f"{re.sub(r'[(][^)]*[)]', '', gres)}, "
        why = "" if reason.strip() in ("none", "") else f" ({reason.strip()})"
        nodes.append(ClusterNode(name, of, f"{word}{why}", f"{gpus}{cores} cores"))
    return nodes


def queued_jobs() -> Mapping[str, QueuedJob] | None:
    """Return this user's jobs by name; None if Slurm's controller does not answer."""
    answer = answer_of(["squeue", "--noheader", "--me", "--format=%i|%T|%j"])
    if answer is None:
        return None
    jobs = (line.strip().split("|", 2) for line in answer.splitlines())
    return {name: QueuedJob(number, state == "PENDING") for number, state, name in jobs}


def leaf_switches() -> Mapping[str, str]:
    """Return the leaf switch of each node; empty without Slurm or if Slurm has no topology."""
    answer = answer_of(["scontrol", "show", "topology"]) or ""
    leaves = re.findall(r"^SwitchName=(\S+) Level=0 .*\bNodes=(\S+)", answer, re.MULTILINE)
    return {node: switch for switch, nodes in leaves for node in expanded(nodes)}


def expanded(names: str) -> set[str]:
    """Expand a list of nodes in Slurm's notation, such as `nid[0001-0004,0007]`."""
    return {*(answer_of(["scontrol", "show", "hostnames", names]) or names).split()}


def folded(names: Iterable[str]) -> str:
    """Format nodes for `--exclude`; compressed, as in `nid[0102,0417]`, if Slurm is installed."""
    plain = ",".join(sorted({*names}))
    return (answer_of(["scontrol", "show", "hostlistsorted", plain]) if plain else None) or plain
