"""From a cluster profile to the text of a job: directives, and a shell that calls ci/nightly.sh."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuscale.clusters.profile import ClusterProfile
from gpuscale.clusters.schedulers import SCHEDULERS
from gpuscale.clusters.schedulers.base import Demand, Scheduler
from gpuscale.errors import UsageError
from gpuscale.printable import visible

_LINE_WIDTH = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job on a cluster: what it asks the scheduler for, measures and compares with."""

    profile: ClusterProfile
    named: str
    """The profile as whoever asks for the job names it: a name or a path."""
    options: Mapping[str, str]
    """The options that were given, such as `--runs`, and their values."""
    demand: Demand
    gpus: tuple[int, ...]
    runs: int
    baseline: str | None
    judged_gpus: tuple[int, ...]
    """The numbers of GPUs that are judged; empty where there is no baseline."""
    modules: tuple[str, ...] | None
    """None where whoever submits the script must name them."""

    @property
    def scheduler(self) -> Scheduler:
        """Whose job it is."""
        return SCHEDULERS[self.profile.scheduler]

    @property
    def launcher(self) -> Literal["local", "slurm", "mpirun"]:
        """Starts the ranks: within a node the job's own processes are the ranks."""
        across = self.scheduler.launcher
        return "local" if self.demand.nodes == 1 or across is None else across


def job_demand(
    profile: ClusterProfile, gpus: tuple[int, ...], options: Mapping[str, str]
) -> Demand:
    """The smallest job in which the largest of the numbers of GPUs can be measured.

    Within a node one task gets all its cores and starts the ranks itself; across nodes there is
    a task for each GPU. Options such as `--partition` take the place of the profile's values.
    """
    per_node = int(options.get("--gpus-per-node") or 0) or profile.node.gpus
    if per_node is None:
        raise UsageError(
            f"the profile {profile.name} does not know how many GPUs a node has; "
            "add --gpus-per-node N"
        )
    largest = max(gpus)
    scheduler = SCHEDULERS[profile.scheduler]
    if largest > per_node and scheduler.launcher is None:
        raise UsageError(
            f"--gpus: {largest} GPUs are more than the {per_node} of a node of {profile.name}, and "
            f"jobs under {scheduler.title} stay within one; ask for at most {per_node}"
        )
    on_each = per_node if profile.node.whole or largest > per_node else largest
    tasks = 1 if largest <= per_node else per_node
    cores = profile.node.cores
    return Demand(
        job_name=f"gpuscale-{profile.name}",
        nodes=-(-largest // per_node),
        whole_nodes=profile.node.whole,
        gpus_per_node=on_each,
        tasks_per_node=tasks,
        cores_per_task=None if cores is None else max(1, cores * on_each // tasks // per_node),
        gpu_option=profile.job.gpu_option,
        partition=options.get("--partition", profile.job.partition),
        account=options.get("--account", profile.job.account),
        time_limit=options.get("--time", profile.job.time_limit),
    )


def job_script(request: JobRequest) -> str:
    """The script, complete; the same request gives the same text."""
    scheduler = request.scheduler
    options = [*scheduler.options_of(request.demand), *request.profile.job.options]
    directives = [f"{scheduler.directive} {option}" for option in options]
    lines = [*_head(request), *directives, "", *_body(request), "", *_night(request)]
    return "\n".join(lines) + "\n"


def numbers_text(gpus: tuple[int, ...]) -> str:
    """Numbers of GPUs as `--gpus` takes them."""
    return ",".join(str(number) for number in gpus)


def nodes_text(demand: Demand) -> str:
    """The nodes of a job, such as `2 nodes`."""
    return f"{demand.nodes} node{'' if demand.nodes == 1 else 's'}"


def _head(request: JobRequest) -> list[str]:
    scheduler = request.scheduler
    given = {"--gpus": numbers_text(request.gpus), **request.options}
    words = [request.named, *(word for option in given.items() for word in option), "--print"]
    by_stdin = "< " if scheduler.takes_stdin else ""
    return [
        "#!/bin/bash",
        f"# The scaling job of {request.profile.description} ({scheduler.title}):",
        f"# on {numbers_text(request.gpus)} GPUs, {nodes_text(request.demand)} with "
        f"{request.demand.gpus_per_node} each.",
        "#",
        f"#     gpuscale submit {visible(shlex.join(words))}",
        "#",
        "# wrote it. Submit it from the root of a checkout in which `make setup` has run:",
        "#",
        f"#     {scheduler.submit_command[0]} {by_stdin}FILE",
        "#",
        "# docs/nightly.md says what the exit codes mean and where the results go.",
        "#",
    ]


def _body(request: JobRequest) -> Iterator[str]:
    job, scheduler = request.profile.job, request.scheduler
    yield "# Whatever goes wrong before the night starts ends with 2; 1 is kept for a regression."
    yield "trap 'exit 2' EXIT"
    yield ""
    yield "# Settings: what was asked for, else what the environment of the job says."
    if request.modules is None:
        yield f"modules=${{GPUSCALE_MODULES?{job.modules_remedy}}}"
    else:
        modules = " ".join(request.modules)
        yield f"modules={_setting(request, '--modules', 'GPUSCALE_MODULES-', modules)}"
    runs = _setting(request, "--runs", "GPUSCALE_RUNS:-", str(request.runs))
    yield f"runs={runs}  # fresh starts of each number of GPUs"
    baseline = request.baseline or ""
    yield f"baseline={_setting(request, '--baseline', 'GPUSCALE_BASELINE:-', baseline)}"
    judged = "" if request.baseline is None else numbers_text(request.judged_gpus)
    yield f"judged_gpus=${{GPUSCALE_JUDGED_GPUS:-{judged}}}"
    yield ""
    yield f"cd {_told_by(scheduler, scheduler.folder_variable)} || exit"
    yield 'if [ -n "$modules" ]; then'
    yield "    # shellcheck disable=SC2086  # a list of names"
    yield "    module load $modules || exit"
    yield "fi"
    if job.unset:
        yield f"unset {' '.join(job.unset)}"
    for name, value in job.variables.items():
        yield f"export {name}={shlex.quote(value)}"
    yield from scheduler.preparation(request.demand)


def _setting(request: JobRequest, option: str, variable: str, value: str) -> str:
    """The value as the shell takes it: fixed where the option was given, else a default."""
    return shlex.quote(value) if option in request.options else f"${{{variable}{value}}}"


def _told_by(scheduler: Scheduler, variable: str) -> str:
    """A variable that only a job of the scheduler has."""
    return f'"${{{variable}:?submit this file with {scheduler.submit_command[0]}}}"'


def _night(request: JobRequest) -> Iterator[str]:
    profile, measured, scheduler = request.profile, request.profile.measure, request.scheduler
    words = [
        *measured.cases,
        f"--strategy {','.join(measured.strategies)}",
        f"--gpus {numbers_text(request.gpus)}",
        *([f"--launcher {request.launcher}"] if request.demand.nodes > 1 else []),
        f"--device {measured.device}",
        f"--size {measured.size}",
        *([] if measured.run_seconds is None else [f"--run-seconds {measured.run_seconds:g}"]),
        *(shlex.quote(option) for option in measured.options),
        '--runs "$runs"',
        '${GPUSCALE_DATA_ROOT:+--data-root "$GPUSCALE_DATA_ROOT"}',
    ]
    yield f"exec ci/nightly.sh {profile.name} {_told_by(scheduler, scheduler.job_variable)} \\"
    yield from _wrapped("measure", words, end=" \\")
    cases = [f"--case {case}" for case in profile.judge.cases]
    judged = ['"$baseline"', *cases]
    if request.baseline is None:
        judged.append('${judged_gpus:+--gpus "$judged_gpus"}')
        yield f"    ${{baseline:+compare {' '.join(judged)}}}"
    else:
        yield from _wrapped("compare", [*judged, '--gpus "$judged_gpus"'], end="")


def _wrapped(first: str, words: list[str], *, end: str) -> Iterator[str]:
    """Lines of a shell command that goes on from line to line."""
    line = f"    {first}"
    for word in words:
        if len(line) + 1 + len(word) > _LINE_WIDTH:
            yield f"{line} \\"
            line = "   "
        line = f"{line} {word}"
    yield f"{line}{end}"
