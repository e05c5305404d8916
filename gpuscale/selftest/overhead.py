"""What measuring costs on this machine: gpuscale's windows in turn with a bare training loop."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from gpuscale.cases import TrainingCase
from gpuscale.errors import GpuscaleError
from gpuscale.records import (
    Environment,
    Estimate,
    OverheadPair,
    OverheadPlan,
    OverheadReport,
    OverheadResult,
    OverheadRun,
    RunRequest,
)
from gpuscale.selftest.plan import OVERHEAD_PAIRS, case_request
from gpuscale.statistics.estimates import difference, log_sample
from gpuscale.telemetry.summary import sampling_beside
from gpuscale.units import format_seconds

LIMITS: Mapping[str, float] = {"cuda": 1.005, "cpu": 1.01}
SHORTEST_STEP_S: Mapping[str, float] = {"cuda": 0.0, "cpu": 0.020}
"""Steps for which the limit is meant."""
_TRIMMED = 0.2


def measure_overhead(
    compare_with_bare_loop: Callable[[RunRequest, OverheadPlan], OverheadRun],
    case: type[TrainingCase],
    environment: Environment,
    gpus: Sequence[int],
    runs: int,
    after_run: Callable[[], None],
) -> OverheadReport:
    """The overhead by so many runs on each number of GPUs, made in turn.

    `compare_with_bare_loop` makes one run of gpuscale's windows in turn with a bare loop's.
    """
    started = time.monotonic()
    made: dict[int, list[OverheadRun]] = {count: [] for count in gpus}
    for run in range(1, runs + 1):
        for count, its in made.items():
            request = case_request(case, environment, gpus=count, run=run)
            with sampling_beside(request, environment) as sampling:
                sampler = None if sampling is None else sampling.sampler
                pid = None if sampler is None else sampler.pid
                plan = OverheadPlan(pairs=OVERHEAD_PAIRS, sampler_pid=pid)
                its.append(compare_with_bare_loop(request, plan))
            after_run()
    return OverheadReport(
        configuration=made[gpus[0]][0].configuration,
        environment=environment,
        results=tuple(judge_overhead(its) for its in made.values()),
        wall_s=time.monotonic() - started,
    )


def judge_overhead(runs: Sequence[OverheadRun]) -> OverheadResult:
    """What some runs (at least one) on one number of GPUs say of the overhead.

    Each run gives one number, the trimmed mean of its pairs' log ratios; the interval is over
    runs.

    Raises:
        GpuscaleError: every run failed; the message is that of the first.
    """
    valid = [run for run in runs if run.failure is None]
    if not valid:
        failure = runs[0].failure
        message = failure.message if failure is not None else "no run was made"
        raise GpuscaleError(f"every run on {runs[0].gpus} GPUs failed: {message}")
    device = valid[0].configuration.device
    sample = log_sample([_log_ratio(run.pairs) for run in valid])
    ratio = difference(sample.mean, [sample.term()]).exponential()
    step_time_s = statistics.median(
        pair.bare_s / run.steps_per_window
        for run in valid
        if run.steps_per_window
        for pair in run.pairs
    )
    verdict, reason = _verdict(ratio, step_time_s, device)
    return OverheadResult(
        gpus=valid[0].gpus,
        runs=len(valid),
        pairs=sum(len(run.pairs) for run in valid),
        step_time_s=step_time_s,
        ratio=ratio,
        limit=LIMITS[device],
        verdict=verdict,
        reason=reason,
    )


def _log_ratio(pairs: Sequence[OverheadPair]) -> float:
    """The mean of the log ratios without the outermost fifth on either side."""
    logs = sorted(math.log(pair.measured_s / pair.bare_s) for pair in pairs)
    cut = int(_TRIMMED * len(logs))
    return statistics.fmean(logs[cut : len(logs) - cut])


def _verdict(
    ratio: Estimate, step_time_s: float, device: str
) -> tuple[Literal["within", "above", "not decided"], str]:
    limit, shortest_s = LIMITS[device], SHORTEST_STEP_S[device]
    if ratio.low is None or ratio.high is None:
        return "not decided", "one run gives no interval; make more with --runs"
    if ratio.high <= limit:
        return "within", ""
    if step_time_s < shortest_s:
        return "not decided", (
            f"the limit is meant for steps of {format_seconds(shortest_s)} and more; "
            "name a larger case with --case"
        )
    if ratio.low > limit:
        return "above", ""
    return "not decided", "the limit lies inside the interval; make it narrower with more --runs"
