"""The lines of a job script that its scheduler reads."""

import math
from collections.abc import Callable, Iterator, Mapping

from gpuscale.clusters import Scheduler
from gpuscale.submission.request import JobRequest

DIRECTIVE: Mapping[Scheduler, str] = {"slurm": "#SBATCH", "sge": "#$", "lsf": "#BSUB"}


_WARNING_S, _SHORTEST_WARNED_S = 180, 300
"""So many seconds before its end a job is told, to compare what it has: to end ranks on other
nodes takes longer than Slurm waits before it kills. Slurm may tell a minute too early, so short
jobs are told nothing."""


def directives(request: JobRequest) -> list[str]:
    """All directives of a job, in order."""
    scheduler = request.profile.scheduler
    lines = [*_OPTIONS[scheduler](request), *request.profile.job.options]
    return [f"{DIRECTIVE[scheduler]} {line}" for line in lines]


def log_name(request: JobRequest, job: str) -> str:
    """The job's log, in the folder that it was submitted from.

    Args:
        request: The job.
        job: Its number, or the scheduler's word for it.
    """
    return f"{request.job_name}-{job}.log"


def _slurm(request: JobRequest) -> Iterator[str]:
    allocation = request.allocation
    yield f"--job-name={request.job_name}"
    if request.partition is not None:
        yield f"--partition={request.partition}"
    if request.account is not None:
        yield f"--account={request.account}"
    yield f"--nodes={allocation.nodes}"
    yield f"--ntasks-per-node={allocation.tasks_per_node}"
    if allocation.cores_per_task is not None:
        yield f"--cpus-per-task={allocation.cores_per_task}"
    yield from _gpu_option(request, default="--gres=gpu:{gpus}")
    yield f"--time={request.time_limit}"
    # Never begun again under the same job number: each night has a directory of its own.
    yield "--no-requeue"
    if allocation.nodes > 1:
        # When one node fails, the night goes on with the others and tries once more.
        yield "--no-kill"
    if request.limit_s >= _SHORTEST_WARNED_S:
        yield f"--signal=B:TERM@{min(_WARNING_S, request.limit_s // 10)}"
    yield f"--output={log_name(request, '%j')}"


def _sge(request: JobRequest) -> Iterator[str]:
    yield "-S /bin/bash"
    yield f"-N {request.job_name}"
    if request.partition is not None:
        yield f"-q {request.partition}"
    if request.account is not None:
        yield f"-P {request.account}"
    yield "-cwd"
    yield "-j y"
    yield f"-o {log_name(request, '$JOB_ID')}"
    yield "-r n"
    yield f"-l h_rt={request.time_limit}"
    yield from _gpu_option(request, default="")


def _lsf(request: JobRequest) -> Iterator[str]:
    allocation = request.allocation
    # A login shell: elsewhere `module` is not defined.
    yield "-L /bin/bash"
    yield f"-J {request.job_name}"
    if request.partition is not None:
        yield f"-q {request.partition}"
    if request.account is not None:
        yield f"-P {request.account}"
    yield f"-n {allocation.nodes * allocation.tasks_per_node}"
    yield f'-R "span[ptile={allocation.tasks_per_node}]"'
    if allocation.cores_per_task is not None:
        yield f'-R "affinity[thread*{allocation.cores_per_task}]"'
    yield from _gpu_option(request, default='-gpu "num={gpus}:j_exclusive=yes"')
    yield f"-W {math.ceil(request.limit_s / 60)}"
    yield "-rn"
    yield f"-o {log_name(request, '%J')}"


def _gpu_option(request: JobRequest, *, default: str) -> Iterator[str]:
    option = request.profile.job.gpu_option
    # An empty option is one: a partition of CPU nodes has no GPUs to ask for.
    if text := default if option is None else option:
        yield text.replace("{gpus}", str(request.allocation.gpus_per_node))


_OPTIONS: Mapping[Scheduler, Callable[[JobRequest], Iterator[str]]] = {
    "slurm": _slurm,
    "sge": _sge,
    "lsf": _lsf,
}
