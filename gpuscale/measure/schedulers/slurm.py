"""Support for the scheduler Slurm: jobs, job steps, and the nodes of clusters.

ClusterShell folds and expands node names; only the functions that need it import it.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from gpuscale.base.errors import UsageError
from gpuscale.measure.schedulers.placement import Placement, ProcessStarter
from gpuscale.measure.schedulers.scheduler import (
    UNKNOWN,
    Demand,
    Ending,
    JobState,
    Scheduler,
    answer_of,
)

_WARNING_S, _SHORTEST_WARNED_S = 180, 300
"""Most seconds before its limit that Slurm warns a job, and the shortest limit with a warning.
The warning leaves time to end ranks on other nodes and compare results, for which Slurm's own delay
before it kills a job is too short. It may come a minute early, so short jobs get none."""
_LOST = ("OUT_OF_MEMORY", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
_ENDINGS = {
    "COMPLETED": Ending.COMPLETED,
    **dict.fromkeys(("FAILED", "CANCELLED", "REVOKED"), Ending.FAILED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), Ending.TIME_UP),
    **dict.fromkeys(_LOST, Ending.RESOURCES_LOST),
}
# Processes of a COMPLETING job may still be writing to the log.
_RUNS = (
    *("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"),
    *("SIGNALING", "STAGE_OUT", "RESIZING", "EXPEDITING"),
)
_OTHERS_S = 10
"""Seconds that the other tasks of a job step may continue after the first task has ended."""
_OF_THE_JOB_SCRIPT = (
    # srun would take these as options, but what the job asked for does not fit a step on few nodes.
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASKS_PER_NODE"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_HOSTFILE"),
    *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERCOMMIT", "SLURM_LABELIO", "SLURM_WAIT"),
)
_BY_JOB_OR_TASK = {"SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET"}

_OUT = ("down", "drain", "fail", "error", "inval", "maint", "boot_fail", "no_resp")
"""Prefixes of the states that Slurm reports for nodes that cannot start jobs."""


class Slurm(Scheduler, ProcessStarter):
    """Slurm: `sbatch` submits jobs, and `srun` starts processes on the nodes of the current job."""

    name = "slurm"
    title = "Slurm"
    directive = "#SBATCH"
    script_ending = "sbatch"
    submit_command = ("sbatch", "--parsable")
    # The cluster's name may follow, separated by a semicolon.
    job_number = re.compile(r"^(\d+)(?:;\S*)?\s*$", re.MULTILINE)
    cancel_program = "scancel"
    job_variable = "SLURM_JOB_ID"
    folder_variable = "SLURM_SUBMIT_DIR"
    nodes_variable = "SLURM_JOB_NODELIST"
    default_gpu_option = "--gres=gpu:{gpus}"
    launcher = "slurm"
    place_variables: ClassVar[Mapping[str, str]] = {
        "RANK": "SLURM_PROCID",
        "LOCAL_RANK": "SLURM_LOCALID",
        "WORLD_SIZE": "SLURM_NTASKS",
    }
    limits_cores = True
    # Slurm's name for a node may differ from the node's host name.
    node_variable = "SLURMD_NODENAME"

    options = (
        "--job-name={job_name}",
        "--partition={partition}",
        "--account={account}",
        "--nodelist={nodelist}",
        "--nodes={nodes}",
        "--ntasks-per-node={tasks_per_node}",
        "--cpus-per-task={cores_per_task}",
        "{gpus}",
        "--time={time_limit}",
        # A requeued job would keep its number, and with it the directory of the first attempt.
        "--no-requeue",
        "{when_a_node_fails}",
        "--signal=B:TERM@{warning_s}",
        "--output={job_name}-%j.log",
    )
    # sacct needs a database that not every site has; scontrol forgets a job after minutes.
    state_commands = (
        ("scontrol", "--oneliner", "show", "job"),
        ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j"),
    )

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        warning_s = min(_WARNING_S, demand.limit_s // 10)
        return {
            # If a node fails, the nightly job retries once on the remaining nodes.
            "when_a_node_fails": "--no-kill" if demand.nodes > 1 else None,
            "warning_s": warning_s if demand.limit_s >= _SHORTEST_WARNED_S else None,
        }

    def preparation(self, demand: Demand) -> Iterator[str]:
        if demand.cores_per_task is not None:
            yield "# srun has not taken over --cpus-per-task from sbatch since Slurm 22.05."
            yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'

    def read_state(self, answers: Sequence[str]) -> JobState:
        found = re.search(r"\bJobState=(\w+)(?:.*?\bExitCode=(\d+):(\d+))?", answers[0])
        if found is None and len(answers) > 1:
            found = re.match(r"\s*(\w+)[^|]*\|(\d+):(\d+)", answers[1])
        if found is None:
            return UNKNOWN
        word, code, signal = found.groups()
        if word not in _ENDINGS:
            return JobState("running" if word in _RUNS else "waiting", word)
        exit_code = None if code is None else 128 + int(signal) if int(signal) else int(code)
        return JobState("ended", word, exit_code, _ENDINGS[word])

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return host_names(environment.get(self.nodes_variable, ""))

    def hosts(self) -> tuple[str, ...]:
        """Return the job's nodes; raise UsageError if none, or if srun is missing or hides GPUs."""
        if not (hosts := self.nodes(os.environ)) or shutil.which("srun") is None:
            raise UsageError(
                "--launcher slurm: no nodes of a Slurm job here; start it inside sbatch or salloc, "
                "e.g. 'salloc --nodes=2 --exclusive pytest …', where SLURM_JOB_NODELIST is set and "
                "'srun' and 'scontrol show hostnames' work"
            )
        if "SLURM_GPUS_PER_NODE" not in os.environ and _BY_JOB_OR_TASK & set(os.environ):
            raise UsageError(
                "--launcher slurm: the job has its GPUs by task or as a whole, so steps on some of "
                "its nodes do not see all of theirs; ask for them by node, with --gpus-per-node=4 "
                "or --gres=gpu:4 in place of --gpus and --gpus-per-task"
            )
        return hosts

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the `srun` command line for a job step with one task per rank.

        Every task sees all GPUs of its node, so that a run can choose among them; this is what
        srun does if the job requested GPUs per node. (`--gpu-bind=none` should do the same, but in
        Slurm 22.05 a step with several tasks on a node then gets no GPU.) Ranks have the same
        number of cores in every run, and are not bound to particular cores unless the site's
        binding is kept: binding that depends on the number of ranks would inflate the speedup.
        """
        cores = placement.cores_per_rank
        return [
            "srun",
            f"--nodes={len(placement.hosts)}",
            f"--nodelist={','.join(placement.hosts)}",
            f"--ntasks={placement.ranks}",
            f"--ntasks-per-node={placement.ranks_per_host}",
            *([] if cores is None else [f"--cpus-per-task={cores}"]),
            "--distribution=block",
            *([] if placement.is_bound_by_site else ["--cpu-bind=none"]),
            # pytest itself may run in a step of this job, which would otherwise hold the resources.
            "--overlap",
            *(["--overcommit"] if placement.oversubscribed else []),
            "--mpi=none",
            "--export=ALL",
            # If a keeper dies, so do its ranks; ranks on other nodes may still report the failure.
            "--kill-on-bad-exit=0",
            f"--wait={_OTHERS_S}",
            *program,
        ]

    def reaches(self, variable: str) -> bool:
        """Return False for a variable that srun would take as one of its own options."""
        return variable not in _OF_THE_JOB_SCRIPT and not variable.startswith("SLURM_CPU_BIND_")


def host_names(listed: str) -> tuple[str, ...]:
    """Expand a node list such as `nid[01-04]` with scontrol; empty if scontrol does not answer."""
    answer = answer_of(["scontrol", "show", "hostnames", listed]) if listed else None
    return tuple((answer or "").split())


class ClusterNode(NamedTuple):
    """A node in a partition, as reported by Slurm."""

    name: str
    partition: str
    state: str
    """State as Slurm names it, such as `idle`, with an admin's reason if any: `drained (fan)`."""
    kind: str
    """GPUs and cores, such as `gpu:a100:4, 64 cores`; identical for identically equipped nodes."""

    @property
    def stage(self) -> Literal["idle", "busy", "out"]:
        """`idle` if a job could start now, `busy` if it could start later, otherwise `out`."""
        if self.state.startswith(_OUT):
            return "out"
        return "idle" if self.state.startswith("idle") else "busy"


class QueuedJob(NamedTuple):
    """A pending or running job of this user."""

    number: str
    waits: bool


def cluster_nodes(partition: str | None) -> list[ClusterNode] | None:
    """Return the nodes of a partition (None: of all partitions); None if Slurm does not answer."""
    only = [] if partition is None else [f"--partition={partition}"]
    # The reason comes last, since it may contain any character.
    answer = answer_of(["sinfo", "--noheader", "--Node", *only, "--format=%N|%R|%T|%G|%c|%E"])
    if answer is None:
        return None
    nodes = []
    for name, of, state, gres, cores, reason in (x.split("|", 5) for x in answer.splitlines()):
        # An asterisk marks a node that does not respond, or whose state a restarted controller
        # does not know yet; other symbols concern power saving.
        word = re.sub(r"[^a-z_]", "", state.lower())
        word = "down" if state.endswith("*") and word != "unknown" else word
        gpus = "" if gres == "(null)" else f"{re.sub(r'[(][^)]*[)]', '', gres)}, "
        why = "" if reason.strip() in ("none", "") else f" ({reason.strip()})"
        nodes.append(ClusterNode(name, of, f"{word}{why}", f"{gpus}{cores} cores"))
    return nodes


def queued_jobs() -> Mapping[str, QueuedJob] | None:
    """Return this user's jobs, keyed by job name; None if Slurm's controller does not answer."""
    if (answer := answer_of(["squeue", "--noheader", "--me", "--format=%i|%T|%j"])) is None:
        return None
    jobs = (line.strip().split("|", 2) for line in answer.splitlines())
    return {name: QueuedJob(number, state == "PENDING") for number, state, name in jobs}


def leaf_switches() -> Mapping[str, str]:
    """Return the leaf switch of each node; empty if Slurm is absent or knows no topology."""
    answer = answer_of(["scontrol", "show", "topology"]) or ""
    leaves = re.findall(r"^SwitchName=(\S+) Level=0 .*\bNodes=(\S+)", answer, re.MULTILINE)
    return {node: switch for switch, nodes in leaves for node in host_names(nodes)}


def expanded(names: str) -> set[str]:
    """Expand a list of nodes, such as `nid[0001-0004,0007]`; raise a UsageError if invalid."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return {*NodeSet(names, resolver=RESOLVER_NOGROUP)}
    except NodeSetException as error:
        raise UsageError(f"--nodes: {error}; write nodes as nid[0001-0064,0070]") from None


def folded(names: Iterable[str]) -> str:
    """Join node names into a list such as `nid[0102,0417]` for Slurm's option `--exclude`."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    nodes = NodeSet.fromlist([*names], resolver=RESOLVER_NOGROUP)
    # Slurm accepts at most two ranges per name, but names such as x1000c0s0b0n0 have five numbers.
    nodes.fold_axis = [-1]
    return str(nodes)
