"""The text of a job script: the directives, and a shell that hands over to ci/nightly.sh."""

import shlex
from collections.abc import Iterator, Mapping

from gpuscale.clusters import Scheduler
from gpuscale.printable import visible
from gpuscale.submission.directives import directives
from gpuscale.submission.request import JobRequest

TITLE: Mapping[Scheduler, str] = {"slurm": "Slurm", "sge": "SGE", "lsf": "LSF"}
_SUBMIT = {"slurm": "sbatch FILE", "sge": "qsub FILE", "lsf": "bsub < FILE"}
_JOB = {"slurm": "SLURM_JOB_ID", "sge": "JOB_ID", "lsf": "LSB_JOBID"}
_FOLDER = {"slurm": "SLURM_SUBMIT_DIR", "sge": "SGE_O_WORKDIR", "lsf": "LS_SUBCWD"}
_LINE_WIDTH = 96


def job_script(request: JobRequest) -> str:
    """The script, complete; the same request gives the same text."""
    parts = [_head(request), directives(request), [""], _body(request), [""], _night(request)]
    return "\n".join(line for part in parts for line in part) + "\n"


def _head(request: JobRequest) -> list[str]:
    profile, allocation = request.profile, request.allocation
    nodes = f"{allocation.nodes} node{'' if allocation.nodes == 1 else 's'}"
    given = {"--gpus": _numbers(request.gpus), **request.options}
    words = [request.named, *(word for option in given.items() for word in option), "--print"]
    return [
        "#!/bin/bash",
        f"# The scaling job of {profile.description} ({TITLE[profile.scheduler]}):",
        f"# on {_numbers(request.gpus)} GPUs, {nodes} with {allocation.gpus_per_node} each.",
        "#",
        f"#     gpuscale submit {visible(shlex.join(words))}",
        "#",
        "# wrote it. Submit it from the root of a checkout in which `make setup` has run:",
        "#",
        f"#     {_SUBMIT[profile.scheduler]}",
        "#",
        "# docs/nightly.md says what the exit codes mean and where the results go.",
        "#",
    ]


def _body(request: JobRequest) -> Iterator[str]:
    profile = request.profile
    scheduler = profile.scheduler
    yield "# Whatever goes wrong before the night starts ends with 2; 1 is kept for a regression."
    yield "trap 'exit 2' EXIT"
    yield ""
    yield "# Settings: what was asked for, else what the environment of the job says."
    yield _modules_setting(request)
    runs = _setting(request, "--runs", "GPUSCALE_RUNS:-", str(request.runs))
    yield f"runs={runs}  # fresh starts of each number of GPUs"
    yield "baseline=" + _setting(
        request, "--baseline", "GPUSCALE_BASELINE:-", request.baseline or ""
    )
    judged = "" if request.baseline is None else _numbers(request.judged_gpus)
    yield f"judged_gpus=${{GPUSCALE_JUDGED_GPUS:-{judged}}}"
    yield ""
    command = _SUBMIT[scheduler].split()[0]
    yield f'cd "${{{_FOLDER[scheduler]}:?submit this file with {command}}}" || exit'
    yield 'if [ -n "$modules" ]; then'
    yield "    # shellcheck disable=SC2086  # a list of names"
    yield "    module load $modules || exit"
    yield "fi"
    if profile.job.unset:
        yield f"unset {' '.join(profile.job.unset)}"
    for name, value in profile.job.variables.items():
        yield f"export {name}={shlex.quote(value)}"
    if scheduler == "slurm":
        if request.allocation.cores_per_task is not None:
            yield "# srun has not taken over --cpus-per-task from sbatch since Slurm 22.05."
            yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"'
        yield "# What is submitted once more, for other nodes, where one of these fails."
        yield 'export GPUSCALE_JOB_SCRIPT="$0"'


def _modules_setting(request: JobRequest) -> str:
    if request.modules is None:
        return f"modules=${{GPUSCALE_MODULES?{request.profile.job.modules_remedy}}}"
    modules = " ".join(request.modules)
    return f"modules={_setting(request, '--modules', 'GPUSCALE_MODULES-', modules)}"


def _setting(request: JobRequest, option: str, variable: str, value: str) -> str:
    """The value as the shell takes it: fixed where the option was given, else a default."""
    return shlex.quote(value) if option in request.options else f"${{{variable}{value}}}"


def _night(request: JobRequest) -> Iterator[str]:
    profile = request.profile
    measured = profile.measure
    command = _SUBMIT[profile.scheduler].split()[0]
    words = [
        *measured.cases,
        f"--strategy {','.join(measured.strategies)}",
        f"--gpus {_numbers(request.gpus)}",
        *([f"--launcher {request.allocation.launcher}"] if request.allocation.nodes > 1 else []),
        f"--device {measured.device}",
        f"--size {measured.size}",
        *([] if measured.run_seconds is None else [f"--run-seconds {measured.run_seconds:g}"]),
        *(shlex.quote(option) for option in measured.options),
        '--runs "$runs"',
        '${GPUSCALE_DATA_ROOT:+--data-root "$GPUSCALE_DATA_ROOT"}',
    ]
    job = f'"${{{_JOB[profile.scheduler]}:?submit this file with {command}}}"'
    yield f"exec ci/nightly.sh {profile.name} {job} \\"
    yield from _wrapped("measure", words, end=" \\")
    cases = [f"--case {case}" for case in profile.judge.cases]
    if request.baseline is None:
        judged = ['"$baseline"', *cases, '${judged_gpus:+--gpus "$judged_gpus"}']
        yield f"    ${{baseline:+compare {' '.join(judged)}}}"
    else:
        judged = ['"$baseline"', *cases, '--gpus "$judged_gpus"']
        yield from _wrapped("compare", judged, end="")


def _wrapped(first: str, words: list[str], *, end: str) -> Iterator[str]:
    """Lines of a shell command that goes on from line to line."""
    line = f"    {first}"
    for word in words:
        if len(line) + 1 + len(word) > _LINE_WIDTH:
            yield f"{line} \\"
            line = f"    {word}"
        else:
            line = f"{line} {word}"
    yield f"{line}{end}"


def _numbers(gpus: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in gpus)
