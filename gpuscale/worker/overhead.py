"""gpuscale's windows in turn with a bare loop, in one process: what measuring costs."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import torch

from gpuscale.records import RunRequest
from gpuscale.records.selftest import OverheadOutcome, OverheadPair
from gpuscale.worker.entry import RankFiles, be_rank, keep_to_the_end, prepare
from gpuscale.worker.faults import Faults
from gpuscale.worker.loop import steps_per_mark, timed_window, warm_up, window_plan
from gpuscale.worker.training import Parts, Training


def main(directory: str) -> None:
    """Be a rank of the trial that the directory's request and plan ask for."""
    be_rank(directory, _measure)


def bare_loop(parts: Parts, steps: int) -> None:
    """Make so many steps in fp32 with what `Training` has, and nothing else around them."""
    case, model, optimizer = parts.case, parts.forward_model, parts.optimizer
    device, memory_format = parts.strategy.device, parts.memory_format
    for _ in range(steps):
        inputs, targets = next(parts.batches)
        inputs = inputs.to(device, non_blocking=True, memory_format=memory_format)
        targets = targets.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = case.loss(case.forward(model, inputs), targets)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure(request: RunRequest, files: RankFiles) -> None:
    plan = files.directory.overhead_plan.read()
    parts, _ = prepare(request)
    strategy = parts.strategy
    training = Training(parts, Faults([], rank=strategy.rank, device=strategy.device))
    step_time_s, _ = warm_up(training, strategy, request.timing, files.report)
    steps, _ = window_plan(step_time_s, request.timing, pausing=False)
    sampler_pid = plan.sampler_pid if strategy.rank == 0 else None
    pairs = []
    for number in range(plan.pairs):
        if number % 2:
            bare_s = _bare_s(training, parts, steps, sampler_pid)
        # Seconds from a common start to a window's end, its own barrier and reports included.
        training.synchronize()
        strategy.barrier()
        opened = time.perf_counter()
        files.report("pair", number, plan.pairs)
        timed_window(training, strategy, steps, marked_every=steps_per_mark(step_time_s))
        measured_s = time.perf_counter() - opened
        if not number % 2:
            # In turn first and second, so that a drift cancels.
            bare_s = _bare_s(training, parts, steps, sampler_pid)
        pairs.append(OverheadPair(measured_s=measured_s, bare_s=bare_s))
    strategy.barrier()
    keep_to_the_end(training, strategy)
    outcome = OverheadOutcome(steps_per_window=steps, pairs=tuple(pairs))
    files.directory.overhead(files.rank).write(outcome)


def _bare_s(training: Training, parts: Parts, steps: int, sampler_pid: int | None) -> float:
    """Seconds from a common start until a bare loop has made its steps.

    It opens with a barrier as a window does: the loop is timed as ours is, and a barrier lies
    before the clock of a step time, not in it.
    """
    training.synchronize()
    with paused(sampler_pid):
        parts.strategy.barrier()
        opened = time.perf_counter()
        parts.strategy.barrier()
        bare_loop(parts, steps)
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
