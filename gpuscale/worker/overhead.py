"""gpuscale's windows in turn with a bare loop, in one process: what measuring costs."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpuscale.encoding import from_json
from gpuscale.records import OverheadOutcome, OverheadPair, OverheadPlan, RunRequest
from gpuscale.run_directory import RunDirectory
from gpuscale.worker.bare_loop import BareLoop
from gpuscale.worker.entry import be_rank, keep_to_the_end, prepare
from gpuscale.worker.faults import Faults
from gpuscale.worker.measurement import Progress, timed_window, warm_up, window_plan
from gpuscale.worker.reporting import RankFiles
from gpuscale.worker.strategies import Strategy
from gpuscale.worker.training import Training


def main(directory: str) -> None:
    """Be a rank of the trial that the directory's request and plan ask for."""
    plan_file = RunDirectory(path=Path(directory)).overhead_plan

    def work(request: RunRequest, files: RankFiles) -> OverheadOutcome:
        plan = from_json(OverheadPlan, plan_file.read_text(encoding="utf-8"))
        return _compare(request, plan, files)

    be_rank(directory, work)


def _compare(request: RunRequest, plan: OverheadPlan, progress: Progress) -> OverheadOutcome:
    prepared = prepare(request)
    strategy = prepared.strategy
    faults = Faults([], rank=strategy.rank, device=strategy.device)
    training = Training(prepared.parts, request.configuration.precision, strategy, faults)
    bare = BareLoop(prepared.parts)
    step_time_s, _ = warm_up(training, strategy, request.pacing, progress)
    steps, _ = window_plan(step_time_s, request.pacing, pausing=False)
    sampler_pid = plan.sampler_pid if strategy.rank == 0 else None
    pairs = []
    for number in range(plan.pairs):
        if number % 2:
            bare_s = _bare_s(training, bare, strategy, steps, sampler_pid)
        measured_s = _measured_s(training, strategy, steps, progress, number, plan.pairs)
        if not number % 2:
            # In turn first and second, so that a drift cancels.
            bare_s = _bare_s(training, bare, strategy, steps, sampler_pid)
        pairs.append(OverheadPair(measured_s=measured_s, bare_s=bare_s))
    strategy.barrier()
    keep_to_the_end(training, strategy)
    return OverheadOutcome(rank=strategy.rank, steps_per_window=steps, pairs=tuple(pairs))


def _measured_s(
    training: Training,
    strategy: Strategy,
    steps: int,
    progress: Progress,
    number: int,
    total: int,
) -> float:
    """Seconds from a common start to a window's end, its own barrier and reports included."""
    training.synchronize()
    strategy.barrier()
    opened = time.perf_counter()
    progress.report("pair", number, total)
    timed_window(training, strategy, steps, synchronized=True)
    return time.perf_counter() - opened


def _bare_s(
    training: Training, bare: BareLoop, strategy: Strategy, steps: int, sampler_pid: int | None
) -> float:
    """Seconds from a common start until a bare loop has made its steps.

    It opens with a barrier as a window does: the loop is timed as ours is, and a barrier lies
    before the clock of a step time, not in it.
    """
    training.synchronize()
    with paused(sampler_pid):
        strategy.barrier()
        opened = time.perf_counter()
        strategy.barrier()
        bare.run(steps)
        return time.perf_counter() - opened


@contextlib.contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """Stop a process for as long as the context lasts."""
    if pid is None:
        yield
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
