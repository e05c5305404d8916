"""The job that is asked for: the profile, and what the command line says otherwise."""

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace

from gpuscale.cli.inputs import gpu_counts
from gpuscale.clusters import ClusterProfile
from gpuscale.clusters.job_words import SHELL_WORD_SIGNS, is_shell_word, time_limit_s
from gpuscale.errors import UsageError
from gpuscale.submission import JobRequest, allocation_for

_OPTIONS = (
    *("--gpus", "--runs", "--baseline", "--partition", "--account", "--time", "--modules"),
    "--gpus-per-node",
)


def job_request(profile: ClusterProfile, arguments: argparse.Namespace) -> JobRequest:
    """The request, with every default filled in.

    Raises:
        UsageError: an option means nothing, or nobody said what is needed.
    """
    gpus = _gpus(profile, arguments.gpus)
    runs = _at_least_one("--runs", arguments.runs) or profile.measure.runs
    per_node = _at_least_one("--gpus-per-node", arguments.gpus_per_node)
    baseline = _safe("--baseline", arguments.baseline)
    judged = _judged(profile, gpus, baseline)
    return JobRequest(
        profile=profile,
        named=arguments.profile or profile.name,
        options=_given(arguments),
        allocation=allocation_for(profile, gpus, gpus_per_node=per_node),
        gpus=gpus,
        runs=runs,
        baseline=baseline or profile.judge.baseline,
        judged_gpus=judged,
        partition=_safe("--partition", arguments.partition) or profile.job.partition,
        account=_safe("--account", arguments.account) or profile.job.account,
        time_limit=_time_limit(arguments.time) or profile.job.time_limit,
        modules=_modules(profile, arguments.modules),
    )


def as_the_job_takes_it(request: JobRequest, environment: Mapping[str, str]) -> JobRequest:
    """The request with what variables of the site put in the place of the profile's values."""
    runs, baseline = environment.get("GPUSCALE_RUNS"), environment.get("GPUSCALE_BASELINE")
    # Of a range such as 3:8 the most.
    most = re.search(r"[1-9]\d*$", runs or "")
    if most is not None and "--runs" not in request.options:
        request = replace(request, runs=int(most[0]))
    if baseline and "--baseline" not in request.options:
        request = replace(request, baseline=baseline)
    return request


def _given(arguments: argparse.Namespace) -> dict[str, str]:
    values = vars(arguments)
    named = ((option, values[option[2:].replace("-", "_")]) for option in _OPTIONS)
    return {option: str(value) for option, value in named if value is not None}


def _gpus(profile: ClusterProfile, text: str | None) -> tuple[int, ...]:
    if text is not None:
        return tuple(sorted(gpu_counts(text)))
    if not profile.measure.gpus:
        raise UsageError(
            f"the profile {profile.name} does not say on how many GPUs to measure; "
            "add, for example, --gpus 1,2,4"
        )
    return tuple(sorted(set(profile.measure.gpus)))


def _judged(
    profile: ClusterProfile, gpus: tuple[int, ...], baseline: str | None
) -> tuple[int, ...]:
    """What the profile's baseline knows of the numbers; all of them for another baseline."""
    if baseline is not None or not profile.judge.gpus:
        return gpus
    judged = tuple(number for number in gpus if number in profile.judge.gpus)
    if profile.judge.baseline is not None and not judged:
        known = ",".join(str(number) for number in profile.judge.gpus)
        raise UsageError(
            f"--gpus: {profile.judge.baseline} has {known} GPUs only, so nothing would be judged; "
            "include some of them, or name a --baseline of your own"
        )
    return judged


def _modules(profile: ClusterProfile, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None if profile.job.modules_remedy is not None else profile.job.modules
    words = text.split()
    for word in words:
        _safe("--modules", word)
    return tuple(words)


def _safe(option: str, text: str | None) -> str | None:
    """The text, which goes into a shell script as it is."""
    if text is not None and not is_shell_word(text):
        raise UsageError(
            f"{option}: '{text}' goes into a shell script, so it may have letters, digits and "
            f"{SHELL_WORD_SIGNS} only"
        )
    return text


def _time_limit(text: str | None) -> str | None:
    if text is not None:
        try:
            time_limit_s(text)
        except ValueError:
            raise UsageError(f"--time: '{text}' is not HH:MM:SS, such as 01:30:00") from None
    return text


def _at_least_one(option: str, number: int | None) -> int | None:
    if number is not None and number < 1:
        raise UsageError(f"{option}: {number} is not at least 1")
    return number
