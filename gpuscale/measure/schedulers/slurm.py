"""Slurm as a batch scheduler and as a starter of processes."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

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
"""How many seconds before the time limit Slurm is to warn a job, so that results so far can be
compared: ending ranks on other nodes takes longer than Slurm waits before it kills the job. The
warning may come a minute early, so jobs with limits below `_SHORTEST_WARNED_S` get no warning."""
_LOST = ("OUT_OF_MEMORY", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL")
_ENDINGS = {
    "COMPLETED": Ending.COMPLETED,
    **dict.fromkeys(("FAILED", "CANCELLED", "REVOKED"), Ending.FAILED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), Ending.TIME_UP),
    **dict.fromkeys(_LOST, Ending.RESOURCES_LOST),
}
# While COMPLETING its processes may still be writing to the log.
_RUNS = (
    *("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED"),
    *("SIGNALING", "STAGE_OUT", "RESIZING", "EXPEDITING"),
)
_GPU_PARTITION = re.compile(
    r"^(?P<partition>[^|*]+)\*?\|[^|]*?\b(?P<gres>gpu(?::[^:,(|]+)?):(?P<gpus>\d+)[^|]*"
    r"\|(?P<cores>\d+)\+?\|(?P<nodes>\d+)$",
    re.MULTILINE,
)
_OTHERS_S = 10
"""Seconds that the other tasks of a job step may continue after the first task has ended."""
_OF_THE_JOB_SCRIPT = (
    # srun would take these for its own options, and what the job asked for as a whole does not fit
    # a step on some of its nodes.
    *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASKS_PER_NODE"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE", "SLURM_NTASKS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU"),
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_HOSTFILE"),
    *("SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERCOMMIT", "SLURM_LABELIO", "SLURM_WAIT"),
)
_BY_JOB_OR_TASK = {"SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET"}
_NOTHING = "(null)"
"""Slurm's word for a missing value."""


class Slurm(Scheduler, ProcessStarter):
    """Slurm: `sbatch` submits jobs, and `srun` starts processes on the nodes of the current job."""

    name = "slurm"
    title = "Slurm"
    directive = "#SBATCH"
    script_ending = "sbatch"
    submit_command = ("sbatch", "--parsable")
    # Behind a semicolon comes the cluster's name.
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
    passes_input = True
    # Slurm's name of a node need not be the one that the node has for itself.
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
        # Never started again under the same job number: each night has its own directory.
        "--no-requeue",
        "{when_a_node_fails}",
        "--signal=B:TERM@{warning_s}",
        "--output={job_name}-%j.log",
    )
    # sacct needs a database that not every site has; scontrol forgets a job after minutes.
    questions = (
        ("scontrol", "--oneliner", "show", "job"),
        ("sacct", "-X", "-n", "-P", "-o", "State,ExitCode", "-j"),
    )

    def demanded(self, demand: Demand, gpus: str) -> Mapping[str, object]:
        warning_s = min(_WARNING_S, demand.limit_s // 10)
        return {
            # The night goes on with the other nodes and tries once more.
            "when_a_node_fails": "--no-kill" if demand.nodes > 1 else None,
            "warning_s": warning_s if demand.limit_s >= _SHORTEST_WARNED_S else None,
        }

    def preparation(self, demand: Demand) -> Iterator[str]:
        if demand.cores_per_task is not None:
            yield "# srun has not taken over --cpus-per-task from sbatch since Slurm 22.05."
            yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
        yield "# What is submitted once more, for other nodes, where one of these fails."
        yield 'export GPUSCALE_JOB_SCRIPT="$0"'

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
        elsewhere = "another cluster of the federation has started it; see there"
        remark = elsewhere if word == "REVOKED" else None
        return JobState("ended", word, exit_code, _ENDINGS[word], remark)

    def submit_again(
        self, environment: Mapping[str, str], *, avoid: Sequence[str]
    ) -> tuple[list[str], dict[str, str]] | None:
        script = environment.get("GPUSCALE_JOB_SCRIPT")
        if not script or not avoid:
            return None
        question = ["scontrol", "--oneliner", "show", "job", environment[self.job_variable]]
        found = re.findall(r"(?:^|\s)(\w+)=(\S+)", answer_of(question) or "")
        shown = {name: value for name, value in reversed(found) if value != _NOTHING}
        # What was given on the command line of the first job is not in its script.
        words = ("partition", "account", "qos", "reservation")
        kept = {f"--{word}": environment.get(f"SLURM_JOB_{word.upper()}") for word in words}
        names = {"--time": "TimeLimit", "--mail-type": "MailType", "--mail-user": "MailUser"}
        kept |= {option: shown.get(name) for option, name in names.items()}
        # The option takes the place of what the script, or the first command line, excludes.
        excluded = [name for name in (shown.get("ExcNodeList"), *avoid) if name]
        command = [*self.submit_command, f"--exclude={','.join(excluded)}", "--export=ALL"]
        command += [f"{name}={it}" for name, it in kept.items() if it and it != _NOTHING]
        # The variables of this job are not to be taken for those of the next.
        fresh = {
            name: value
            for name, value in environment.items()
            if not name.startswith(("SLURM_", "SRUN_", "SBATCH_")) or name == "SLURM_CONF"
        }
        return [*command, script], fresh

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        names = environment.get(self.nodes_variable)
        answer = names and answer_of(["scontrol", "show", "hostnames", names])
        return tuple((answer or "").split())

    def profile_values(self) -> dict[str, str]:
        answer = answer_of(["sinfo", "--noheader", "--format=%P|%G|%c|%D"]) or ""
        partitions = [found.groupdict() for found in _GPU_PARTITION.finditer(answer)]
        largest = max(partitions, key=lambda partition: int(partition["nodes"]), default={})
        return {**largest, "gpu_option": f"--gres={largest.get('gres', 'gpu')}:{{gpus}}"}

    def lost_nodes(self, nodes: Sequence[str]) -> tuple[str, ...]:
        if not nodes:
            return ()
        question = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N"]
        lost = answer_of([*question, "--states=down,fail,no_respond"]) or ""
        return tuple(dict.fromkeys(lost.split()))

    def hosts(self) -> tuple[str, ...]:
        """Return the nodes of the job; UsageError if job steps would not see all GPUs of a node."""
        nodes = os.environ.get("SLURM_JOB_NODELIST")
        if nodes is None:
            raise UsageError(
                "--launcher slurm: this is no Slurm job (SLURM_JOB_NODELIST is not set); start it "
                "inside of sbatch or salloc, e.g. 'salloc --nodes=2 --exclusive pytest …'"
            )
        if "SLURM_GPUS_PER_NODE" not in os.environ and _BY_JOB_OR_TASK & set(os.environ):
            raise UsageError(
                "--launcher slurm: the job has its GPUs by task or as a whole, so steps on some of "
                "its nodes do not see all of theirs; ask for them by node, with --gpus-per-node=4 "
                "or --gres=gpu:4 in place of --gpus and --gpus-per-task"
            )
        if shutil.which("srun") is None:
            raise UsageError("--launcher slurm: 'srun' is not on PATH; load your site's Slurm")
        hosts = self.nodes(os.environ)
        if not hosts:
            problem = f"'scontrol show hostnames {nodes}' does not say"
            raise UsageError(f"cannot tell the nodes of the job: {problem}; see whether it works")
        return hosts

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        """Return the `srun` command line for a job step with one task per rank.

        Every task sees all GPUs of its node, so that a run can choose among them; this is what
        srun does if the job requested GPUs per node. (`--gpu-bind=none` should do the same, but in
        Slurm 22.05 it leaves steps with several tasks on a node without a GPU.) Ranks have
        the same number of cores in every run, and unless the site binds tasks they are not bound to
        particular cores: binding that depends on the number of ranks favours T(n) over T(1).
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
            # pytest may itself run in a step of this job, which would hold the resources.
            "--overlap",
            *(["--overcommit"] if placement.oversubscribed else []),
            "--mpi=none",
            "--export=ALL",
            # A keeper that dies takes its ranks along; those elsewhere may still say what they saw.
            "--kill-on-bad-exit=0",
            f"--wait={_OTHERS_S}",
            *program,
        ]

    def reaches(self, variable: str) -> bool:
        """Return False for variables that would pass options of the job script on to srun."""
        return variable not in _OF_THE_JOB_SCRIPT and not variable.startswith("SLURM_CPU_BIND_")
