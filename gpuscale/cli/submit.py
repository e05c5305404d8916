"""`gpuscale submit`: a job of this cluster's scheduler, from its profile to its exit code."""

import argparse
import os
import socket
import sys
from datetime import datetime
from pathlib import Path

from gpuscale.cli.job_end import exit_code_of, next_job, verdict_of_both
from gpuscale.cli.job_request import as_the_job_takes_it, job_request
from gpuscale.clusters import find_profile, recognised_profile
from gpuscale.errors import ExitCode, FileError, SchedulerError, UsageError
from gpuscale.night import nights_folder
from gpuscale.store import write_report
from gpuscale.submission import (
    CostEstimate,
    JobRequest,
    estimate_cost,
    follow_job,
    job_script,
    submit_script,
)
from gpuscale.submission.directives import log_name
from gpuscale.submission.schedulers import cancel_command
from gpuscale.units import format_seconds

JOBS_FOLDER = Path(".gpuscale") / "jobs"
_ENDINGS = {"slurm": "sbatch", "sge": "sge", "lsf": "lsf"}


def run_submit(arguments: argparse.Namespace) -> int:
    """Print or submit; the exit code is the job's with `--wait`."""
    environment = os.environ
    profile = (
        recognised_profile(environment, socket.getfqdn())
        if arguments.profile is None
        else find_profile(arguments.profile, environment)
    )
    request = job_request(profile, arguments)
    script = job_script(request)
    if arguments.print:
        sys.stdout.write(script)
        return ExitCode.OK
    _refuse_other_folder()
    settled = as_the_job_takes_it(request, environment)
    for line in _announcement(settled, estimate_cost(settled, cases=_count_cases(request))):
        print(line)  # noqa: T201 - a command line prints
    if not arguments.yes and not _go_on():
        print("nothing was submitted")  # noqa: T201
        return ExitCode.USAGE
    path = _write(request, script)
    try:
        job = submit_script(profile.scheduler, path)
    except SchedulerError:
        path.unlink(missing_ok=True)
        raise
    log = Path(log_name(request, job))
    print(f"submitted {path} as job {job}; its log is {log}", flush=True)  # noqa: T201
    return _follow(request, job) if arguments.wait else ExitCode.OK


def _follow(request: JobRequest, job: str) -> int:
    """Wait for the job, and for the one that took its place where a node failed."""
    nights = nights_folder(os.environ) / request.profile.name
    before: int = ExitCode.OK
    try:
        while True:
            log = Path(log_name(request, job))
            end = follow_job(request.profile.scheduler, job, log=log, say=_say)
            again = next_job(nights, job)
            code, meaning = exit_code_of(end)
            if again is None:
                print(f"gpuscale: job {job} ended as {end.word}: {meaning}")  # noqa: T201
                return _night_code(before, code)
            print(f"gpuscale: job {job} was submitted once more as job {again}")  # noqa: T201
            before, job = code, again
    except KeyboardInterrupt:
        command = " ".join(cancel_command(request.profile.scheduler, job))
        print(f"\ngpuscale: job {job} goes on; '{command}' ends it", file=sys.stderr)  # noqa: T201
        raise


def _night_code(before: int, last: int) -> int:
    code = verdict_of_both(before, last)
    if code != last:
        print("gpuscale: what the first job measured had regressed")  # noqa: T201
    return code


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _refuse_other_folder() -> None:
    if not Path("ci/nightly.sh").is_file():
        raise UsageError(
            "ci/nightly.sh, which the job runs, is not in this folder; submit from the root of a "
            "checkout of gpuscale"
        )


def _count_cases(request: JobRequest) -> int:
    """How many cases there are, taking each file for one."""
    count = 0
    for named in request.profile.measure.cases:
        path = Path(named.partition("::")[0])
        if not path.exists():
            raise UsageError(
                f"{named}, which the profile {request.profile.name} measures, is not here; submit "
                "from the root of the checkout that has it"
            )
        count += len(list(path.rglob("test_*.py"))) if path.is_dir() else 1
    return count


def _announcement(request: JobRequest, cost: CostEstimate) -> list[str]:
    allocation, profile = request.allocation, request.profile
    nodes = f"{allocation.nodes} node{'' if allocation.nodes == 1 else 's'}"
    gpus = ",".join(str(number) for number in request.gpus)
    judged = request.baseline or "nothing: it is only measured, and ends with 4"
    lines = [
        f"{profile.description}: on {gpus} GPU{'' if gpus == '1' else 's'}, "
        f"{nodes} with {allocation.gpus_per_node} each, "
        f"launcher {allocation.launcher}, compared with {judged}",
        f"estimate: {cost.items} fresh starts of about {format_seconds(cost.seconds_an_item)} and "
        f"{format_seconds(cost.seconds_beside)} around them are {format_seconds(cost.seconds)} on "
        f"{nodes}: {cost.node_hours:.2g} node-hours "
        f"(start-up is guessed; the time limit allows {cost.most_node_hours:.2g})",
    ]
    if not cost.fits:
        lines.append(
            f"this may not fit into the time limit of {request.time_limit}; "
            "give it more with --time, or fewer --runs"
        )
    return lines


def _go_on() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on; add --yes to submit all the same")
    try:
        return input("submit? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _write(request: JobRequest, script: str) -> Path:
    now = datetime.now().strftime("%Y-%m-%dT%H%M%S.%f")
    name = f"{request.profile.name}-{now}.{_ENDINGS[request.profile.scheduler]}"
    path = JOBS_FOLDER / name
    try:
        JOBS_FOLDER.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror}); use --print and submit the script yourself"
        raise FileError(JOBS_FOLDER, problem) from None
    write_report(path, script)
    return path
