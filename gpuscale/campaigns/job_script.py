"""Write job scripts from cluster profiles: directives, then commands that start a nightly run."""

import shlex
from collections.abc import Iterator, Sequence

import msgspec

from gpuscale.base.errors import UsageError
from gpuscale.base.text import counted
from gpuscale.campaigns.cluster_profile import ClusterProfile
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import Demand, Scheduler

_LINE_WIDTH = 96
_SEARCH = """\
# gpuscale and pytest come from GPUSCALE_VENV, else from .venv in this folder, else from PATH.
if [ -n "${GPUSCALE_VENV-}" ] || [ -x .venv/bin/gpuscale ]; then
    PATH="$(cd "${GPUSCALE_VENV:-.venv}/bin" && pwd):$PATH" || exit
fi
"""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit; its profile describes the cluster, the measurements and the baseline."""

    profile: ClusterProfile
    results: str | None = None
    """Results file of a job that only measures, quoted for a shell; None for a nightly run."""

    def __post_init__(self) -> None:
        if not self.profile.measure.gpus or self.profile.node.gpus is None:
            problem = f"the profile {self.profile.name} leaves open on how many GPUs to measure"
            remedy = "add what it lacks, for example --gpus 1,2,4 --gpus-per-node 4"
            raise UsageError(f"{problem}, or how many a node has; {remedy}")

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler named in the profile."""
        return SCHEDULERS[self.profile.scheduler]

    @property
    def launcher(self) -> str:
        """Launcher that starts the ranks: `local` on a single node, else the scheduler's own."""
        return "local" if self.demand.nodes == 1 else self.scheduler.launcher or "local"

    @property
    def demand(self) -> Demand:
        """Resources of the smallest job that can measure on the largest requested number of GPUs.

        On one node, a single task gets all cores of the job; on several, each GPU gets a task.
        """
        profile, scheduler = self.profile, self.scheduler
        per_node, largest = profile.node.gpus, max(profile.measure.gpus)
        assert per_node is not None
        if largest > per_node and (scheduler.launcher is None or profile.job.container):
            raise UsageError(
                f"--gpus: a node of {profile.name} has {per_node} GPUs, fewer than {largest}, and "
                f"its jobs stay within a node; ask for at most {per_node}"
            )
        if profile.job.nodelist and not any("{nodelist}" in option for option in scheduler.options):
            problem = f"gpuscale can choose nodes under Slurm only, not under {scheduler.title}"
            raise UsageError(f"--nodelist: {problem}; leave it out")
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
            nodelist=profile.job.nodelist,
            time_limit=profile.job.time_limit,
        )


def numbers_text(gpus: tuple[int, ...]) -> str:
    """Format numbers of GPUs in the syntax of the option `--gpus`, such as `1,2,4`."""
    return ",".join(str(number) for number in gpus)


def job_script(request: JobRequest) -> str:
    """Return the complete script of a job; equal requests give equal scripts."""
    return "\n".join((_head(request), _preparation(request), _night(request)))


def _head(request: JobRequest) -> str:
    profile, scheduler, demand = request.profile, request.scheduler, request.demand
    gpus = numbers_text(request.profile.measure.gpus)
    asked = [*scheduler.options_of(demand), *profile.job.options]
    directives = "\n".join(f"{scheduler.directive} {option}" for option in asked)
    return f"""\
#!/bin/bash
# Scaling job ({scheduler.title}). {profile.description}:
# on {gpus} GPUs, {counted(demand.nodes, "node")} with {demand.gpus_per_node} each.
#
# Submit it from the folder of its cases:
#
#     {scheduler.submit_command[0]} {"< " if scheduler.takes_stdin else ""}FILE
#
# docs/nightly.md of gpuscale's repository says what the exit codes mean and where results go.
#
{directives}

# A failure before the night starts exits with 2; 1 is reserved for a regression.
trap 'exit 2' EXIT
"""


def _preparation(request: JobRequest) -> str:
    """Return shell commands that change to the job's folder, load modules and set variables."""
    job, command = request.profile.job, request.profile.judge.on_verdict
    lines = [f"module load {' '.join(job.modules)} || exit"] if job.modules else []
    lines += [f"unset {' '.join(job.unset)}"] if job.unset else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()]
    if command is not None:
        lines.append(f"export GPUSCALE_ON_VERDICT={shlex.quote(command)}")
    if job.prologue:
        lines += ["set -e", *job.prologue, "set +e"]
    lines += request.scheduler.preparation(request.demand)
    return f"""\
cd "{_in_job(request, request.scheduler.folder_variable)}" || exit
{"".join(f"{line}{chr(10)}" for line in lines)}"""


def _in_job(request: JobRequest, variable: str) -> str:
    """Return a shell expansion of a scheduler's variable; the script ends if it is unset."""
    return f"${{{variable}:?submit this file with {request.scheduler.submit_command[0]}}}"


def _night(request: JobRequest) -> str:
    """Return the last part of a job script: check that gpuscale starts, then measure."""
    profile = request.profile
    where, inside, remedy = _SEARCH, "", "here; install it, or set GPUSCALE_VENV to its environment"
    if profile.job.container:
        where, inside = "", f"{profile.job.container} \\\n    "
        remedy = "in the container; choose an image that has it"
    measure = [*_pytest_words(request)]
    number = _in_job(request, request.scheduler.job_variable)
    if request.results is None:
        program = f'gpuscale night {profile.name} "{number}"'
        words = _wrapped("measure", measure)
        if (judge := profile.judge).baseline is not None:
            cases = (f"--case {case}" for case in judge.cases)
            judged = (judge.baseline, *cases, f"--gpus {numbers_text(judge.gpus)}")
            words += f" \\\n{_wrapped('compare', judged)}"
    else:
        program, words = "pytest", _wrapped(f"--results {request.results}", measure)
    return f"""\
{where}# A broken environment would exit with 1, which means a regression.
{inside}gpuscale --version >/dev/null || {{
    echo "gpuscale does not run {remedy}" >&2
    exit
}}

exec {inside}{program} \\
{words}
"""


def _pytest_words(request: JobRequest) -> Iterator[str]:
    measured = request.profile.measure
    yield from measured.cases
    options = {
        "--strategy": ",".join(measured.strategies),
        "--gpus": numbers_text(measured.gpus),
        "--launcher": request.launcher if request.demand.nodes > 1 else None,
        "--device": measured.device,
        "--cpu-bind": measured.cpu_bind,
        "--size": measured.size,
        "--run-seconds": measured.run_seconds and f"{measured.run_seconds:g}",
    }
    yield from (f"{name} {value}" for name, value in options.items() if value is not None)
    yield from map(shlex.quote, measured.options)
    yield f"--runs {measured.runs}"
    yield '${GPUSCALE_DATA_ROOT:+--data-root "$GPUSCALE_DATA_ROOT"}'


def _wrapped(first: str, words: Sequence[str]) -> str:
    lines = [f"    {first}"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > _LINE_WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)
