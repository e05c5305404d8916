"""From a cluster profile to the text of a job: directives, and a shell that starts a night."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuscale.base.errors import UsageError
from gpuscale.base.printable import visible
from gpuscale.base.units import counted
from gpuscale.campaigns.profile import ClusterProfile
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import Demand, Scheduler

_LINE_WIDTH = 96
_SEARCH = """\
# gpuscale and pytest: of the environment that is named, else of this folder's, else on PATH.
if [ -n "${GPUSCALE_VENV-}" ] || [ -x .venv/bin/gpuscale ]; then
    PATH="$(cd "${GPUSCALE_VENV:-.venv}/bin" && pwd):$PATH" || exit
fi"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job on a cluster: what it asks the scheduler for, measures and compares with."""

    profile: ClusterProfile
    """With the options that were given."""
    named: str
    """The profile as whoever asks for the job names it: a name or a path."""
    options: Mapping[str, str]
    """Those options, such as `--runs`, and their values."""
    demand: Demand
    gpus: tuple[int, ...]
    judged_gpus: tuple[int, ...]
    """Those that are judged where there is a baseline."""

    @property
    def scheduler(self) -> Scheduler:
        """Whose job it is."""
        return SCHEDULERS[self.profile.scheduler]

    @property
    def launcher(self) -> str:
        """Starts the ranks: within a node the job's own processes are the ranks."""
        return "local" if self.demand.nodes == 1 else self.scheduler.launcher or "local"


def job_demand(profile: ClusterProfile, gpus: tuple[int, ...]) -> Demand:
    """The smallest job in which the largest of the numbers of GPUs can be measured.

    Within a node one task gets all its cores and starts the ranks itself; across nodes there is
    a task for each GPU.
    """
    per_node = profile.node.gpus
    if per_node is None:
        problem = "does not know how many GPUs a node has; add --gpus-per-node N"
        raise UsageError(f"the profile {profile.name} {problem}")
    largest, scheduler = max(gpus), SCHEDULERS[profile.scheduler]
    if largest > per_node and (scheduler.launcher is None or profile.job.container is not None):
        stays = "a job in a container stays"
        stays = stays if scheduler.launcher else f"jobs under {scheduler.title} stay"
        raise UsageError(
            f"--gpus: {largest} GPUs are more than the {per_node} of a node of {profile.name}, and "
            f"{stays} within one; ask for at most {per_node}"
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
        partition=profile.job.partition,
        account=profile.job.account,
        time_limit=profile.job.time_limit,
    )


def numbers_text(gpus: tuple[int, ...]) -> str:
    """Numbers of GPUs as `--gpus` takes them."""
    return ",".join(str(number) for number in gpus)


def job_script(request: JobRequest) -> str:
    """The script, complete; the same request gives the same text."""
    profile, scheduler, demand = request.profile, request.scheduler, request.demand
    job, program, gpus = profile.job, scheduler.submit_command[0], numbers_text(request.gpus)
    baseline = profile.judge.baseline
    only = f"submit this file with {program}"

    def setting(option: str, variable: str, default: object) -> str:
        given = request.options.get(option)
        return f"${{{variable}{default}}}" if given is None else shlex.quote(given)

    options = {"--gpus": gpus, **request.options}
    words = [request.named, *(word for option in options.items() for word in option), "--print"]
    asked = [*scheduler.options_of(demand), *job.options]
    directives = "\n".join(f"{scheduler.directive} {option}" for option in asked)
    remedy, loaded = job.modules_remedy, " ".join(job.modules)
    variable = "GPUSCALE_MODULES-" if remedy is None else "GPUSCALE_MODULES?"
    modules = setting("--modules", variable, loaded if remedy is None else remedy)
    runs = setting("--runs", "GPUSCALE_RUNS:-", profile.measure.runs)
    judged = "" if baseline is None else numbers_text(request.judged_gpus)
    lines = [f"unset {' '.join(job.unset)}"] if job.unset else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()]
    if profile.judge.on_verdict is not None:
        lines += [
            f"on_verdict={shlex.quote(profile.judge.on_verdict)}",
            'export GPUSCALE_ON_VERDICT="${GPUSCALE_ON_VERDICT:-$on_verdict}"',
        ]
    if job.prologue:
        lines += ["set -e", *job.prologue, "set +e"]
    lines += scheduler.preparation(demand)
    preparation = "".join(f"{line}\n" for line in lines)
    purge = "module purge || exit\n" if job.module_purge else ""
    where, inside, remedy = _SEARCH, "", "here; install it, or name its environment: GPUSCALE_VENV"
    if job.container is not None:
        where, inside = _of_container(profile), f"{job.container} \\\n    "
        remedy = "in the container; choose an image that has it"
    measured = profile.measure
    measure = [
        *profile.measure.cases,
        f"--strategy {','.join(measured.strategies)}",
        f"--gpus {gpus}",
        *([f"--launcher {request.launcher}"] if demand.nodes > 1 else []),
        f"--device {measured.device}",
        f"--size {measured.size}",
        *([] if measured.run_seconds is None else [f"--run-seconds {measured.run_seconds:g}"]),
        *(shlex.quote(option) for option in measured.options),
        '--runs "$runs"',
        '${GPUSCALE_DATA_ROOT:+--data-root "$GPUSCALE_DATA_ROOT"}',
    ]
    cases = ['"$baseline"', *(f"--case {case}" for case in profile.judge.cases)]
    compare = _wrapped("compare", [*cases, '--gpus "$judged_gpus"'])
    if baseline is None:
        cases.append('${judged_gpus:+--gpus "$judged_gpus"}')
        compare = f"    ${{baseline:+compare {' '.join(cases)}}}"
    return f"""\
#!/bin/bash
# The scaling job of {profile.description} ({scheduler.title}):
# on {gpus} GPUs, {counted(demand.nodes, "node")} with {demand.gpus_per_node} each.
#
#     gpuscale submit {visible(shlex.join(words))}
#
# wrote it. Submit it from the folder of its cases:
#
#     {program} {"< " if scheduler.takes_stdin else ""}FILE
#
# docs/nightly.md says what the exit codes mean and where the results go.
#
{directives}

# Whatever goes wrong before the night starts ends with 2; 1 is kept for a regression.
trap 'exit 2' EXIT

# Settings: what was asked for, else what the environment of the job says.
modules={modules}
runs={runs}  # fresh starts of each number of GPUs
baseline={setting("--baseline", "GPUSCALE_BASELINE:-", baseline or "")}
judged_gpus=${{GPUSCALE_JUDGED_GPUS:-{judged}}}

cd "${{{scheduler.folder_variable}:?{only}}}" || exit
{purge}if [ -n "$modules" ]; then
    # shellcheck disable=SC2086  # a list of names
    module load $modules || exit
fi
{preparation}
{where}
# What is broken would end with Python's or the container's 1.
{inside}gpuscale --version >/dev/null || {{
    echo "gpuscale does not run {remedy}" >&2
    exit
}}

exec {inside}gpuscale night {profile.name} "${{{scheduler.job_variable}:?{only}}}" \\
{_wrapped("measure", measure)} \\
{compare}
"""


def _of_container(profile: ClusterProfile) -> str:
    """The lines that look for the program of a profile's container."""
    program = profile.job.container_program
    return f"""\
command -v {program} >/dev/null || {{
    echo "{program}, for the container, is not on PATH; load its module or correct the profile" >&2
    exit
}}"""


def _wrapped(first: str, words: Sequence[str]) -> str:
    """A shell command, on as many lines as it needs."""
    lines = [f"    {first}"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > _LINE_WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)
