"""`gpuscale submit`: submit a job to this cluster's scheduler, and follow the job if asked."""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.errors import ExitCode, FileError, GpuscaleError, SchedulerError, UsageError
from gpuscale.base.strategies import COMMAND
from gpuscale.base.units import counted, format_seconds
from gpuscale.campaigns.cluster_profile import (
    JOB_OPTIONS,
    ClusterProfile,
    Measured,
    with_options,
)
from gpuscale.campaigns.job_script import JobRequest, job_demand, job_script, numbers_text
from gpuscale.campaigns.night.attempt import combined_exit, job_exit
from gpuscale.campaigns.profile_files import chosen_profile
from gpuscale.cli.inputs import gpu_counts
from gpuscale.measure.schedulers import SCHEDULERS
from gpuscale.measure.schedulers.scheduler import UNKNOWN, JobState, Scheduler
from gpuscale.store import read_any, write_report
from gpuscale.store.night_record import next_job, nights_folder
from gpuscale.workload.run_defaults import TIMING_PLANS

_JOBS_FOLDER = Path(".gpuscale") / "jobs"
_BESIDE_RUN_S = {**dict.fromkeys(GPU_KINDS, 25.0), "cpu": 6.0}
"""Guessed seconds that a run takes in addition to its measurement (start of ranks, loading of
kernels, warm-up, checks), by device; too high for a modern node, too low with a slow file
system."""
_ACROSS_NODES_S = 10.0
BESIDE_MEASURING_S = 60.0
"""Guessed seconds that a job takes in addition to its runs: to start pytest, describe the machine
and compare the results."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.5, 15.0, 1.15
_MOST_UNKNOWN = 15
"""Maximum number of successive queries for which the scheduler may not know the job, since SGE's
accounting lags behind by minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    *first, last = dict.fromkeys(one.submit_command[0] for one in SCHEDULERS.values())
    parser.description = (
        "Write the job script of a cluster, say what the job will cost, and hand it to "
        f"{', '.join(first)} or {last}. Run it from the folder of your cases."
    )
    parser.epilog = (
        "Exit codes: with --wait that of the night (docs/nightly.md), and for a job that its "
        "scheduler ended 5 (its time was up) or 6 (a node of it failed), where it tells; else 0 "
        "submitted or printed, 2 not submitted."
    )
    add = parser.add_argument
    text = "such as juwels-booster, or a file such as ./mysite.toml"
    text += " (default: the one that recognises this machine)"
    add("profile", metavar="PROFILE", nargs="?", help=text)
    # Options keep their names as destinations: the head of the script repeats them.
    text = "measure on these numbers of GPUs (default: the profile's)"
    add("--gpus", metavar="N,N,…", help=text, dest="--gpus")
    for name, (_, option) in JOB_OPTIONS.items():
        text = f"{option.words} (default: the profile's)"
        add(name, metavar=option.metavar, type=option.parse, help=text, dest=name)
    add("--print", action="store_true", help="print the script and submit nothing")
    add("--wait", action="store_true", help="follow the job and end with its exit code")
    add("--yes", action="store_true", help="do not ask before submitting")


def run(arguments: argparse.Namespace) -> int:
    """Print or submit the job; with `--wait`, return the job's exit code."""
    profile = chosen_profile(arguments.profile)
    request = _request(profile, arguments)
    script = job_script(request)
    problems = _problems_of_paths(request)
    if arguments.print:
        # The script may be for a folder elsewhere.
        sys.stderr.writelines(f"gpuscale: beware: {problem}\n" for problem in problems)
        sys.stdout.write(script)
        return ExitCode.OK
    for problem in problems:
        raise problem
    _say("\n".join(_announcement(request)))
    if not arguments.yes and not confirmed():
        _say("nothing was submitted")
        return ExitCode.USAGE
    path = _write(request, script)
    try:
        job = request.scheduler.submit(path, job_environment(request.profile.job.container))
    except SchedulerError:
        path.unlink(missing_ok=True)
        raise
    log = request.scheduler.log_of(request.demand.job_name, job)
    _say(f"submitted {path} as job {job}; its log is {log}")
    return _wait(request, job) if arguments.wait else ExitCode.OK


def _request(profile: ClusterProfile, arguments: argparse.Namespace) -> JobRequest:
    """Return the job to submit, from the profile and the options on the command line."""
    given = {
        option: value
        for option, value in vars(arguments).items()
        if option.startswith("--") and value not in (None, [])
    }
    profile = with_options(profile, given)
    asked = gpu_counts(given["--gpus"]) if "--gpus" in given else {*profile.measure.gpus}
    if not asked:
        problem = "does not say on how many GPUs to measure; add, for example, --gpus 1,2,4"
        raise UsageError(f"the profile {profile.name} {problem}")
    gpus = tuple(sorted(asked))
    return JobRequest(
        profile=profile,
        named=arguments.profile or profile.name,
        options={
            option: " ".join(value) if isinstance(value, list) else str(value)
            for option, value in given.items()
        },
        demand=job_demand(profile, gpus),
        gpus=gpus,
        judged_gpus=_judged(profile, gpus),
    )


def _judged(profile: ClusterProfile, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """Return the given GPU counts that the profile lists to be judged; if it lists none, all."""
    if not profile.judge.gpus:
        return gpus
    judged = tuple(number for number in gpus if number in profile.judge.gpus)
    if profile.judge.baseline is not None and not judged:
        raise UsageError(
            f"--gpus: {profile.judge.baseline} has {numbers_text(profile.judge.gpus)} GPUs only, "
            "so nothing would be judged; include some of them, or name a --baseline of your own"
        )
    return judged


def _problems_of_paths(request: JobRequest) -> Iterator[GpuscaleError]:
    """Yield problems with the job's baseline, and cases not found from the current folder."""
    if baseline := _baseline(request):
        try:
            read_any(Path(baseline))
        except GpuscaleError as error:
            yield error
    asked = "--cases" in request.options
    whose = "--cases" if asked else f"the profile {request.profile.name}"
    for named in request.profile.measure.cases:
        if not _path_of(named).exists():
            remedy = "submit from the folder that has it, or name others with --cases"
            yield UsageError(f"{named}, which {whose} names, is not here; {remedy}")


def _path_of(case: str) -> Path:
    return Path(case.partition("::")[0])


def _baseline(request: JobRequest) -> str | None:
    """Return the baseline file of the job, from the options, the environment or the profile."""
    return _of_environment(request, "--baseline") or request.profile.judge.baseline


def _of_environment(request: JobRequest, option: str) -> str | None:
    """Return the value of an option's environment variable; None if the option itself is given."""
    variable = JOB_OPTIONS[option][1].variable
    return None if variable is None or option in request.options else os.environ.get(variable)


def job_environment(container: str | None) -> Mapping[str, str]:
    """Return the job's environment, with GPUSCALE_VENV added if needed to find gpuscale."""
    if _finds_gpuscale(container) or not _can_measure():
        return os.environ
    return {"GPUSCALE_VENV": sys.prefix, **os.environ}


def _finds_gpuscale(container: str | None) -> bool:
    """True if the job finds gpuscale via GPUSCALE_VENV, in .venv here, or in its container."""
    own = "GPUSCALE_VENV" in os.environ or Path(".venv/bin/gpuscale").exists()
    return own or container is not None


def _can_measure() -> bool:
    return all(Path(sys.prefix, "bin", name).is_file() for name in ("gpuscale", "pytest"))


def _announcement(request: JobRequest) -> Iterator[str]:
    """Describe the job and its estimated cost, given that it holds all nodes until it ends."""
    demand, measured = request.demand, request.profile.measure
    # Of a range such as 3:8 the most.
    most = re.search(r"[1-9]\d*$", _of_environment(request, "--runs") or "")
    runs = measured.runs if most is None else int(most[0])
    gpus, nodes = numbers_text(request.gpus), counted(demand.nodes, "node")
    judged = _baseline(request) or "nothing: it is only measured, and ends with 4"
    yield (
        f"{request.profile.description}: on {gpus} GPU{'' if gpus == '1' else 's'}, "
        f"{nodes} with {demand.gpus_per_node} each, "
        f"launcher {request.launcher}, compared with {judged}"
    )
    item_s = run_s(measured) + (_ACROSS_NODES_S if demand.nodes > 1 else 0)
    # A case is trained by gpuscale, or is a command.
    ways = len({*measured.strategies} - {COMMAND}) or 1
    items = _count_cases(request) * ways * len(request.gpus) * runs
    seconds = items * item_s + BESIDE_MEASURING_S
    hours, most_hours = (s * demand.nodes / 3600 for s in (seconds, demand.limit_s))
    yield (
        f"estimate: {items} fresh starts of about {format_seconds(item_s)} and "
        f"{format_seconds(BESIDE_MEASURING_S)} around them are {format_seconds(seconds)} on "
        f"{nodes}: {hours:.2g} node-hours of the {most_hours:.2g} that the time limit allows "
        "(start-up is guessed)"
    )
    if not _finds_gpuscale(request.profile.job.container) and not _can_measure():
        yield (
            "this environment cannot measure, so the job takes the gpuscale that is on its PATH; "
            "the variable GPUSCALE_VENV names another environment"
        )
    if seconds > demand.limit_s:
        yield (
            f"this may not fit into the time limit of {demand.time_limit}; "
            "give it more with --time, or fewer --runs"
        )


def run_s(measured: Measured) -> float:
    """Return the estimated duration of a run, including its start-up, in seconds."""
    windows_s = measured.run_seconds or TIMING_PLANS[measured.device].run_seconds
    return windows_s + _BESIDE_RUN_S[measured.device]


def _count_cases(request: JobRequest) -> int:
    """Return the number of cases in the job, counting each file as one case."""
    paths = [_path_of(named) for named in request.profile.measure.cases]
    return sum(len(list(path.rglob("test_*.py"))) if path.is_dir() else 1 for path in paths)


def confirmed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask on; add --yes to submit all the same")
    try:
        return input("submit? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _write(request: JobRequest, script: str) -> Path:
    now = datetime.now().strftime("%Y-%m-%dT%H%M%S.%f")
    path = _JOBS_FOLDER / f"{request.profile.name}-{now}.{request.scheduler.script_ending}"
    try:
        _JOBS_FOLDER.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror}); use --print and submit the script yourself"
        raise FileError(_JOBS_FOLDER, problem) from None
    write_report(path, script)
    return path


def _wait(request: JobRequest, job: str) -> int:
    """Follow the job, and any job that replaces it after a node failure; return the exit code."""
    nights = nights_folder(os.environ) / request.profile.name
    scheduler, first = request.scheduler, int(ExitCode.OK)
    try:
        while True:
            state = _followed(scheduler, job, scheduler.log_of(request.demand.job_name, job))
            code, meaning = job_exit(state)
            again = next_job(nights, job)
            if again is None:
                break
            _say(f"gpuscale: job {job} was submitted once more as job {again}")
            first, job = code, again
    except KeyboardInterrupt:
        command = f"{scheduler.cancel_program} {job}"
        sys.stderr.write(f"\ngpuscale: job {job} goes on; '{command}' ends it\n")
        raise
    _say(f"gpuscale: job {job} ended as {state.word}: {meaning}")
    both = combined_exit(first, code)
    if both != code:
        _say("gpuscale: what the first job measured had regressed")
    return both


def _followed(scheduler: Scheduler, job: str, log: Path) -> JobState:
    """Print a job's log until the job has ended; return its last state.

    The schedulers' own options (sbatch --wait, qsub -sync y, bsub -K) cannot follow a replacement
    job and return 1 for killed jobs; Grid Engine's even deletes the job on Ctrl-C.
    """
    written = unknown = 0
    before, pause_s = UNKNOWN, _SHORTEST_PAUSE_S
    while unknown <= _MOST_UNKNOWN:
        state = scheduler.state_of(job)
        new = b""
        with suppress(OSError), log.open("rb") as file:
            file.seek(written)
            new = file.read()
        written += len(new)
        _say(new.decode("utf-8", errors="replace"), end="")
        if state.stage == "ended":
            return state
        unknown = unknown + 1 if state.stage == "unknown" else 0
        if state not in (before, UNKNOWN):
            _say(f"gpuscale: job {job} is {state.stage} ({state.word})")
            pause_s = _SHORTEST_PAUSE_S
        before = state
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * _GROWTH)
    raise SchedulerError(
        f"the scheduler no longer knows job {job}; its log is {log}, and the night's "
        f"directory says how it ended. If it still runs, '{scheduler.cancel_program} {job}' ends it"
    )


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(f"{text}{end}")
    sys.stdout.flush()
