"""`gpuscale submit`: submit a job to this cluster's scheduler, and follow the job if asked."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, GpuscaleError, SchedulerError, UsageError
from gpuscale.base.host import GPU_KINDS
from gpuscale.base.strategies import COMMAND
from gpuscale.base.text import counted, format_seconds
from gpuscale.campaigns.cluster_profile import Measured, find_profile
from gpuscale.campaigns.job_options import JOB_OPTIONS, with_options
from gpuscale.campaigns.job_script import JobRequest, job_script, numbers_text
from gpuscale.campaigns.night.outcome import job_exit
from gpuscale.cli.inputs import gpu_counts, remark, say
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import UNKNOWN, Scheduler
from gpuscale.records.request import TIMING_PLANS
from gpuscale.reports.phrases import devices_text
from gpuscale.store.files import make_folder, read_any, write_report

_JOBS_FOLDER = Path(".gpuscale") / "jobs"
_RUN_OVERHEAD_S = {**dict.fromkeys(GPU_KINDS, 25.0), "cpu": 6.0}
"""Estimated seconds, by device, that a run takes in addition to its timed windows."""
_SESSION_OVERHEAD_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    *first, last = dict.fromkeys(one.submit_command[0] for one in SCHEDULERS.values())
    parser.description = (
        "Write the job script of a cluster, estimate its time, and hand it to "
        f"{', '.join(first)} or {last}. Run it from the folder of your cases."
    )
    parser.epilog = (
        "Exit codes: 0 submitted or printed, 2 not submitted. With --wait that of the night "
        "(docs/nightly.md), or, if the scheduler reports that it ended the job, 5 (time limit) or "
        "6 (a node failed)."
    )
    add = parser.add_argument
    text = "a known cluster, such as juwels-booster, or a file, such as ./mysite.toml"
    add("profile", metavar="PROFILE", help=text)
    text = "measure on these numbers of GPUs (default: the profile's)"
    add("--gpus", metavar="N,N,…", type=gpu_counts, help=text, dest="--gpus")
    add_job_options(parser, JOB_OPTIONS)
    add("--wait", action="store_true", help="follow the job, and exit with its exit code")


def add_job_options(parser: argparse.ArgumentParser, names: Iterable[str], runs: str = "") -> None:
    """Add the named `JOB_OPTIONS`, --print and --yes; `runs` replaces the help of --runs."""
    add = parser.add_argument
    for name in names:
        option = JOB_OPTIONS[name]
        text = runs if runs and name == "--runs" else f"{option.words} (default: the profile's)"
        # The destinations are the option names, which `with_options` expects as keys.
        add(name, metavar=option.metavar, type=option.parse, help=text, dest=name)
    add("--print", action="store_true", help="print the script of a job and submit nothing")
    add("--yes", action="store_true", help="do not ask before submitting")


def run(arguments: argparse.Namespace) -> int:
    request = _request(arguments)
    script = job_script(request)
    problems = [*_problems_of_paths(request)]
    if arguments.print:
        # The script may be meant for another folder, so these are warnings, not errors.
        for problem in problems:
            remark(f"beware: {problem}")
        say(script, end="")
        return ExitCode.OK
    if problems:
        raise UsageError("; ".join(problems))
    if not is_confirmed(_announcement(request), arguments.yes):
        return ExitCode.USAGE
    now = datetime.now().strftime("%Y-%m-%dT%H%M%S.%f")
    path = _JOBS_FOLDER / f"{request.profile.name}-{now}.{request.scheduler.script_ending}"
    make_folder(_JOBS_FOLDER)
    write_report(path, script)
    try:
        job = request.scheduler.submit(path, job_environment(request.profile.job.container))
    except SchedulerError:
        path.unlink(missing_ok=True)
        raise
    log = request.scheduler.log_of(request.demand.job_name, job)
    say(f"submitted {path} as job {job}; its log is {log}")
    return _wait(request.scheduler, job, log) if arguments.wait else ExitCode.OK


def _request(arguments: argparse.Namespace) -> JobRequest:
    profile = with_options(find_profile(arguments.profile), vars(arguments))
    gpus = tuple(sorted(vars(arguments)["--gpus"] or profile.measure.gpus))
    measure, judge = replace(profile.measure, gpus=gpus), profile.judge
    judged = tuple(number for number in gpus if number in (judge.gpus or gpus))
    if judge.baseline is not None and gpus and not judged:
        raise UsageError(
            f"--gpus: {judge.baseline} has {numbers_text(judge.gpus)} GPUs only, "
            "so nothing would be judged; include some of them, or name a --baseline of your own"
        )
    return JobRequest(profile=replace(profile, measure=measure, judge=replace(judge, gpus=judged)))


def _problems_of_paths(request: JobRequest) -> Iterator[str]:
    if baseline := request.profile.judge.baseline:
        try:
            read_any(Path(baseline))
        except GpuscaleError as error:
            yield str(error)
    cases = request.profile.measure.cases
    if absent := ", ".join(case for case in cases if not Path(case.partition("::")[0]).exists()):
        yield f"not here: {absent}; submit from the folder of the cases, or name others by --cases"


def job_environment(container: str | None) -> Mapping[str, str]:
    """Return the environment for a job, with GPUSCALE_VENV if the job needs it to find gpuscale."""
    finds = "GPUSCALE_VENV" in os.environ or Path(".venv/bin/gpuscale").exists() or container
    can_measure = all(Path(sys.prefix, "bin", name).is_file() for name in ("gpuscale", "pytest"))
    return os.environ if finds or not can_measure else {"GPUSCALE_VENV": sys.prefix, **os.environ}


def _announcement(request: JobRequest) -> str:
    demand, measured = request.demand, request.profile.measure
    # Each case is either run as a command or trained by all other strategies.
    ways = len({*measured.strategies} - {COMMAND}) or 1
    paths = [Path(case.partition("::")[0]) for case in measured.cases]
    # Each test file counts as one case.
    cases = sum(len(list(path.rglob("test_*.py"))) if path.is_dir() else 1 for path in paths)
    runs = cases * ways * len(measured.gpus) * measured.runs
    seconds = job_s(measured, runs)
    judged = request.profile.judge.baseline or "nothing, so exit code 4 is expected"
    return (
        f"{request.profile.description}: {counted(runs, 'run')} on "
        f"{devices_text(measured.device, *measured.gpus)}, {counted(demand.nodes, 'node')} "
        f"with {demand.gpus_per_node} each, launcher {request.launcher}, compared with {judged}\n"
        f"estimate: {format_seconds(seconds)} of the {format_seconds(demand.limit_s)} that the "
        "time limit allows"
    )


def job_s(measured: Measured, runs: int) -> float:
    """Return the estimated duration of a job that makes this number of runs, in seconds."""
    windows_s = measured.run_seconds or TIMING_PLANS[measured.device].run_seconds
    return runs * (windows_s + _RUN_OVERHEAD_S[measured.device]) + _SESSION_OVERHEAD_S


def is_confirmed(announcement: str, yes: bool) -> bool:
    """Print the announcement; return True if `yes` or the user agrees; raise if unable to ask."""
    say(announcement)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("cannot ask for confirmation without a terminal; add --yes to submit")
    with suppress(EOFError):
        if input("submit? [y/N] ").strip().lower() in ("y", "yes"):
            return True
    say("nothing was submitted")
    return False


def _wait(scheduler: Scheduler, job: str, log: Path) -> int:
    """Print a job's log until the job ends; return the exit code for the job's final state."""
    written, before, ends_it = 0, UNKNOWN, f"'{scheduler.cancel_program} {job}' ends it"
    try:
        for state in scheduler.states_of(job):
            new = b""
            with suppress(OSError), log.open("rb") as file:
                file.seek(written)
                new = file.read()
            written += len(new)
            say(new.decode("utf-8", errors="replace"), end="")
            if state.stage != "ended" and state not in (before, UNKNOWN):
                say(f"gpuscale: job {job} is {state.stage} ({state.word})")
            before = state
    except KeyboardInterrupt:
        sys.stderr.write(f"\ngpuscale: job {job} goes on; {ends_it}\n")
        raise
    if before.stage != "ended":
        raise SchedulerError(
            f"the scheduler no longer knows job {job}; its log is {log}, and the night's directory "
            f"says how it ended. If it still runs, {ends_it}"
        )
    code, meaning = job_exit(before)
    say(f"gpuscale: job {job} ended as {before.word}: {meaning}")
    return code
