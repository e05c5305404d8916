"""From what the ranks left in the run's directory to one Run."""

import signal
import statistics
from dataclasses import replace
from pathlib import Path

from gpuscale.errors import DecodeError
from gpuscale.formats.exchange import from_json
from gpuscale.records import Failure, RankOutcome, RankWindow, Run, RunRequest, Window
from gpuscale.run_directory import RunDirectory
from gpuscale.steadiness import steadiness

_OUTPUT_TAIL_CHARS = 4000
_SHORTEST_JUDGED_S = 0.12
"""Windows below this length show what else the machine does from one moment to the next: a
single turn of its scheduler is a tenth of them. The default windows are longer."""
_FAULT_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)


def collect_run(
    request: RunRequest,
    directory: RunDirectory,
    *,
    exit_codes: dict[int, int],
    timed_out: bool,
    started_at_s: float,
    wall_s: float,
) -> Run:
    """The run that the ranks made, or the reason why there is none."""
    empty = Run(
        configuration=request.configuration,
        gpus=request.gpus,
        index=request.index,
        started_at_s=started_at_s,
        batch_per_gpu=request.batch_per_gpu,
        sample_shape=request.sample_shape,
        steps_per_window=None,
        windows=(),
        ranks=(),
        warmup_steps=None,
        warmup_s=None,
        startup_s=None,
        wall_s=wall_s,
    )
    if timed_out:
        return replace(empty, failure=_timeout(request, directory))
    if exit_codes:
        return replace(empty, failure=_crash(directory, exit_codes))
    try:
        outcomes = [
            from_json(RankOutcome, directory.outcome(rank).read_text(encoding="utf-8"))
            for rank in range(request.processes)
        ]
    except (OSError, DecodeError) as error:
        message = f"a rank ended without leaving its measurement ({error})"
        return replace(empty, failure=Failure(kind="launch", message=message))
    run = _join(empty, outcomes)
    return replace(run, failure=invalidity(run) or unsteadiness(run))


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
        groups = "\n".join(f"rank {r.rank}: {r.parameter_digest[:16]}" for r in run.ranks)
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
    windows = [
        (_window(seen), seen[0].synchronized)
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


def _window(seen: tuple[RankWindow, ...]) -> Window:
    """One window out of what each rank saw of it."""
    slowest = max(seen, key=lambda window: window.busy_s)
    return Window(
        time_s=slowest.busy_s,
        started_at_s=seen[0].started_at_s,
        busy_s=tuple(window.busy_s for window in seen),
        phases=slowest.phases,
    )


def _startup_s(run: Run, outcomes: list[RankOutcome]) -> float | None:
    startup_s = max(outcome.joined_at_s for outcome in outcomes) - run.started_at_s
    # The wall clock was set back meanwhile: nobody knows how long it took.
    return startup_s if startup_s >= 0 else None


def _timeout(request: RunRequest, directory: RunDirectory) -> Failure:
    stacks = []
    for rank in range(request.processes):
        text = (
            _read(directory.stacks(rank)).strip() or "(it left no stack: not started, or stopped)"
        )
        stacks.append(f"rank {rank} was here:\n{text}")
    stage = " ".join(_read(directory.progress).split("\t")[:2]) or "start-up"
    return Failure(
        kind="timeout",
        message=(
            f"not done after {request.timeout_s:g} s, in {stage}; all ranks were ended. "
            "Give it more with --timeout, or see below where each rank was"
        ),
        detail="\n\n".join(stacks),
    )


def _crash(directory: RunDirectory, exit_codes: dict[int, int]) -> Failure:
    """The first cause: a rank killed by a signal, else the rank that raised first."""
    for rank, code in sorted(exit_codes.items()):
        # A peer's death makes the others raise; a signal is nobody's consequence.
        if -code in _FAULT_SIGNALS:
            return Failure(
                kind="killed",
                message=f"rank {rank} was killed by {signal.Signals(-code).name}"
                + (" (out of memory?)" if -code == signal.SIGKILL else ""),
                rank=rank,
                detail=_output_tail(directory, rank),
            )
    reports = sorted(
        directory.path.glob("rank-*.failure.json"), key=lambda path: path.stat().st_mtime_ns
    )
    for path in reports:
        failure = from_json(Failure, path.read_text(encoding="utf-8"))
        return replace(failure, message=f"rank {failure.rank} raised {failure.message}")
    rank, code = next(iter(sorted(exit_codes.items())))
    return Failure(
        kind="launch",
        message=f"rank {rank} ended with exit code {code} and left no message",
        rank=rank,
        detail=_output_tail(directory, rank),
    )


def _output_tail(directory: RunDirectory, rank: int) -> str:
    logs = sorted(directory.path.glob(f"**/{rank}/stderr.log"))
    return _read(logs[-1])[-_OUTPUT_TAIL_CHARS:].strip() if logs else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
