"""Slurm."""

import re
from collections.abc import Iterator, Mapping, Sequence

from gpuscale.measure.schedulers.scheduler import (
    UNKNOWN,
    Demand,
    Ending,
    JobState,
    Scheduler,
    answer_of,
)

_WARNING_S, _SHORTEST_WARNED_S = 180, 300
"""So many seconds before its end a job is told, to compare what it has: to end ranks on other
nodes takes longer than Slurm waits before it kills. Slurm may tell a minute too early, so short
jobs are told nothing."""
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
_NOTHING = "(null)"
"""Slurm's word for a value that is not there."""


class Slurm(Scheduler):
    """`sbatch`."""

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
    default_gpu_option = "--gres=gpu:{gpus}"
    launcher = "slurm"

    options = (
        "--job-name={job_name}",
        "--partition={partition}",
        "--account={account}",
        "--nodes={nodes}",
        "--ntasks-per-node={tasks_per_node}",
        "--cpus-per-task={cores_per_task}",
        "{gpus}",
        "--time={time_limit}",
        # Never begun again under the same job number: each night has a directory of its own.
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
        told = re.search(r"\bJobState=(\w+)(?:.*?\bExitCode=(\d+):(\d+))?", answers[0])
        if told is None and len(answers) > 1:
            told = re.match(r"\s*(\w+)[^|]*\|(\d+):(\d+)", answers[1])
        if told is None:
            return UNKNOWN
        word, code, signal = told.groups()
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

    def nodes(self, environment: Mapping[str, str]) -> tuple[str, ...] | None:
        nodes = environment.get("SLURM_JOB_NODELIST")
        if nodes is None:
            return None
        return tuple((answer_of(["scontrol", "show", "hostnames", nodes]) or "").split())

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
