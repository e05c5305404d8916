"""From what the ranks left in the run's directory to one Run."""

import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.encoding import from_json
from gpuscale.errors import DecodeError
from gpuscale.launch.failures import crash_failure, lost_failure, timeout_failure
from gpuscale.records import (
    Failure,
    OverheadOutcome,
    OverheadPair,
    OverheadRun,
    RankOutcome,
    RankWindow,
    Run,
    RunRequest,
    Window,
    with_measured,
)
from gpuscale.run_directory import RunDirectory
from gpuscale.statistics.steadiness import steadiness

_SHORTEST_JUDGED_S = 0.12
"""Windows below this length show what else the machine does from one moment to the next: a
single turn of its scheduler is a tenth of them. By default windows are longer."""


def collect_run(
    request: RunRequest,
    directory: RunDirectory,
    *,
    exit_codes: dict[int, int],
    timed_out: bool,
    started_at_s: float,
    wall_s: float,
    failed_launcher: str | None = None,
) -> Run:
    """The run that the ranks made, or the reason why there is none.

    Args:
        request: What was asked of the ranks.
        directory: What they left.
        exit_codes: Of the ranks that failed, in the order in which they did where that is known;
            minus the signal's number where one ended it.
        timed_out: Whether they were ended because their time was up.
        started_at_s: Unix time of the start.
        wall_s: Seconds from then until all had ended.
        failed_launcher: The launcher across nodes whose command failed; None where it did not.
    """
    empty = Run(
        configuration=request.configuration,
        gpus=request.gpus,
        index=request.index,
        started_at_s=started_at_s,
        batch_per_gpu=request.batch_per_gpu,
        sample_shape=request.sample_shape,
        wall_s=wall_s,
        failure=Failure(kind="launch", message="the run has not ended"),
    )
    if timed_out:
        return replace(empty, failure=timeout_failure(request, directory))
    if exit_codes:
        return replace(empty, failure=crash_failure(request, directory, exit_codes))
    if failed_launcher is not None:
        return replace(empty, failure=lost_failure(request, directory, failed_launcher))
    try:
        outcomes = [
            from_json(RankOutcome, directory.outcome(rank).read_text(encoding="utf-8"))
            for rank in range(request.processes)
        ]
    except (OSError, DecodeError) as error:
        return replace(empty, failure=_no_outcome(error))
    run = _join(empty, outcomes)
    failure = invalidity(run) or unsteadiness(run)
    return (
        with_measured(replace(run, failure=None))
        if failure is None
        else replace(run, failure=failure)
    )


def collect_overhead(
    request: RunRequest, directory: RunDirectory, *, exit_codes: dict[int, int], timed_out: bool
) -> OverheadRun:
    """The trial of the overhead that the ranks made, or the reason why there is none."""
    empty = OverheadRun(
        configuration=request.configuration, gpus=request.gpus, steps_per_window=None, pairs=()
    )
    if timed_out:
        return replace(empty, failure=timeout_failure(request, directory))
    if exit_codes:
        return replace(empty, failure=crash_failure(request, directory, exit_codes))
    try:
        outcomes = [
            from_json(OverheadOutcome, directory.outcome(rank).read_text(encoding="utf-8"))
            for rank in range(request.processes)
        ]
    except (OSError, DecodeError) as error:
        return replace(empty, failure=_no_outcome(error))
    pairs = tuple(
        OverheadPair(
            measured_s=max(pair.measured_s for pair in seen),
            bare_s=max(pair.bare_s for pair in seen),
        )
        for seen in zip(*(outcome.pairs for outcome in outcomes), strict=True)
    )
    return replace(empty, steps_per_window=outcomes[0].steps_per_window, pairs=pairs)


def _no_outcome(error: Exception) -> Failure:
    message = f"a rank ended without leaving its measurement ({error})"
    return Failure(kind="launch", message=message)


def invalidity(run: Run) -> Failure | None:
    """Why a run that ended has no valid result: its ranks did not train together."""
    for rank in run.ranks:
        if rank.final_loss is None:
            return Failure(
                kind="invalid",
                message=f"the loss or a parameter of rank {rank.rank} is not a finite number",
                rank=rank.rank,
                host=rank.host,
            )
    digests = {rank.parameter_digest for rank in run.ranks}
    if len(digests) > 1:
        groups = "\n".join(
            f"rank {r.rank}: {(r.parameter_digest or 'none')[:16]}" for r in run.ranks
        )
        return Failure(
            kind="invalid",
            message=(
                f"the parameters of {len(run.ranks)} ranks differ after training: their gradients "
                "were not synchronised, so this speedup is none"
            ),
            detail=groups,
        )
    return None


def unsteadiness(run: Run) -> Failure | None:
    """Why the windows of a run are no repetitions of one step time; they are kept as evidence."""
    times_s = [window.time_s for window in run.windows]
    if statistics.median(times_s) < _SHORTEST_JUDGED_S:
        return None
    found = steadiness(times_s)
    return None if found is None else Failure(kind="unsteady", message=f"not steady: {found.text}")


def _join(empty: Run, outcomes: list[RankOutcome]) -> Run:
    first = outcomes[0]
    slowest = slowest_by_pace(outcomes)
    windows = [
        (_window(seen, slowest), seen[0].synchronized)
        for seen in zip(*(outcome.windows for outcome in outcomes), strict=True)
    ]
    return replace(
        empty,
        steps_per_window=first.steps_per_window,
        windows=tuple(window for window, synchronized in windows if synchronized),
        unsynced_windows=tuple(window for window, synchronized in windows if not synchronized),
        ranks=tuple(outcome.report for outcome in outcomes),
        warmup_steps=first.warmup_steps,
        warmup_s=first.warmup_s,
        startup_s=_startup_s(empty, outcomes),
    )


def slowest_by_pace(outcomes: Sequence[RankOutcome]) -> int:
    """The position of the rank that the others wait for, told by the ranks' own paces."""
    paces_s = [outcome.report.pace_s or 0.0 for outcome in outcomes]
    return paces_s.index(max(paces_s))


def _window(seen: tuple[RankWindow, ...], slowest: int) -> Window:
    """One window out of what each rank saw of it.

    In synchronised windows all ranks take as long as the slowest, so which of them took longest
    by a hair is chance: the phases are those of one and the same rank of the run. What another
    took longer is a wait, and in training that lies in the next backward pass.
    """
    time_s = max(window.busy_s for window in seen)
    shown = seen[slowest]
    return Window(
        time_s=time_s,
        started_at_s=seen[0].started_at_s,
        busy_s=tuple(window.busy_s for window in seen),
        phases=replace(shown.phases, backward_s=shown.phases.backward_s + time_s - shown.busy_s),
    )


def _startup_s(run: Run, outcomes: list[RankOutcome]) -> float | None:
    startup_s = max(outcome.joined_at_s for outcome in outcomes) - (run.started_at_s or 0.0)
    # The wall clock was set back meanwhile: nobody knows how long it took.
    return startup_s if startup_s >= 0 else None
