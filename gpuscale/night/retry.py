"""Where to try once more after the infrastructure failed."""

from collections.abc import Mapping, Sequence

from gpuscale.night.attempt import Fault

RETRY_OF = "GPUSCALE_RETRY_OF"
"""The variable that tells a job in whose night's folder it takes the place of another."""


def suspects(faults: Sequence[Fault], nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes to keep away from, by the scheduler's names.

    Args:
        faults: What failed.
        nodes: All nodes of the job.

    Returns:
        Those that faults name; all of them where none is named.
    """
    blamed = {fault.host.partition(".")[0] for fault in faults if fault.host is not None}
    named = tuple(node for node in nodes if node.partition(".")[0] in blamed)
    return named or tuple(nodes)


def resubmission(
    environment: Mapping[str, str], *, avoid: Sequence[str], night: str, time_limit: str | None
) -> tuple[list[str], dict[str, str]] | None:
    """The command that submits this job once more for other nodes, and its environment.

    Args:
        environment: The variables of this process.
        avoid: Nodes that the new job must not get.
        night: The folder that it goes on in.
        time_limit: Of this job, as Slurm writes it; None where it is not known.

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
        "--time": time_limit,
    }
    command = ["sbatch", "--parsable", f"--exclude={','.join(avoid)}", "--export=ALL"]
    command += [
        f"{option}={value}" for option, value in kept.items() if value and value != "(null)"
    ]
    command.append(script)
    # The variables of this job are not to be taken for those of the next.
    fresh = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SRUN_", "SBATCH_")) or name == "SLURM_CONF"
    }
    return command, {**fresh, RETRY_OF: night}
