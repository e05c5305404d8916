"""Where to try once more after the infrastructure failed."""

import re
from collections.abc import Mapping, Sequence

from gpuscale.night.attempt import Fault

RETRY_OF = "GPUSCALE_RETRY_OF"
"""The variable that tells a job in whose night's folder it takes the place of another."""

_NOTHING = "(null)"
"""What Slurm calls a value that is not there."""


def suspects(
    faults: Sequence[Fault], nodes: Sequence[str], *, lost: Sequence[str] = ()
) -> tuple[str, ...]:
    """The nodes to keep away from, by the scheduler's names.

    Args:
        faults: What failed.
        nodes: All nodes of the job.
        lost: Those that the scheduler has lost.

    Returns:
        Those that are lost, since ranks on the others then fail too; else those that faults name;
        all of them where none is named.
    """
    if gone := tuple(node for node in nodes if node in lost):
        return gone
    blamed = {fault.host.partition(".")[0] for fault in faults if fault.host is not None}
    named = tuple(node for node in nodes if node.partition(".")[0] in blamed)
    return named or tuple(nodes)


def resubmission(
    environment: Mapping[str, str], *, avoid: Sequence[str], night: str, shown: str
) -> tuple[list[str], dict[str, str]] | None:
    """The command that submits this job once more for other nodes, and its environment.

    Args:
        environment: The variables of this process.
        avoid: Nodes that the new job must not get.
        night: The folder that it goes on in.
        shown: What `scontrol --oneliner show job` says of this job; empty where it fails.

    Returns:
        None where there is no Slurm job, or it does not know its script.
    """
    script = environment.get("GPUSCALE_JOB_SCRIPT")
    if "SLURM_JOB_ID" not in environment or not script or not avoid:
        return None
    # What was given on the command line of the first job is not in its script.
    kept = {
        "--partition": environment.get("SLURM_JOB_PARTITION"),
        "--account": environment.get("SLURM_JOB_ACCOUNT"),
        "--qos": environment.get("SLURM_JOB_QOS"),
        "--reservation": environment.get("SLURM_JOB_RESERVATION"),
        "--time": _told(shown, "TimeLimit"),
        "--mail-type": _told(shown, "MailType"),
        "--mail-user": _told(shown, "MailUser"),
    }
    # The option takes the place of what the script, or the first command line, excludes.
    excluded = [name for name in (_told(shown, "ExcNodeList"), *avoid) if name]
    command = ["sbatch", "--parsable", f"--exclude={','.join(excluded)}", "--export=ALL"]
    command += [
        f"{option}={value}" for option, value in kept.items() if value and value != _NOTHING
    ]
    command.append(script)
    # The variables of this job are not to be taken for those of the next.
    fresh = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SRUN_", "SBATCH_")) or name == "SLURM_CONF"
    }
    return command, {**fresh, RETRY_OF: night}


def _told(shown: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}=(\S+)", shown)
    return found[1] if found is not None and found[1] != _NOTHING else None
