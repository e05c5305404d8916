"""`gpuscale.report`, with which a training loop reports its steps to `gpuscale run`."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Protocol, SupportsFloat

PREFIX = "GPUSCALE "
ASKED_BY = "GPUSCALE_REPORT"
"""Environment variable that `gpuscale run` sets to 1; if it is not set, `report` prints nothing."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_BETWEEN_LINES_S = 0.05
_epochs = count()


class StepDone(Protocol):
    """Function that the training loop calls once after each step."""

    def __call__(self, loss: SupportsFloat | None = None) -> None:
        """Count a step; `loss` is read (which waits for the GPU) only when a line is printed."""


@contextmanager
def report(
    samples: int | None = None,
    *,
    rank: int | None = None,
    synchronize: Callable[[], object] | None = None,
) -> Iterator[StepDone]:
    """Yield a function to call after each step, so that `gpuscale run` can time the steps.

        with report(samples=batch_size * world_size) as step_done:
            for inputs, targets in loader:
                ...
                step_done(loss)

    Call `report` again for each epoch: the time between epochs is not measured. Only rank 0 prints,
    only under `gpuscale run`, and at most 20 lines per second.

    A training loop can run ahead of its GPUs until their queues are full. With a loss, or with
    `synchronize=torch.cuda.synchronize`, each line is printed only after the step has finished;
    without either, only windows much longer than the queued steps are timed correctly.

    Args:
        samples: Samples per step over all ranks; None if an option of `gpuscale run` sets them.
        rank: Rank of this process; by default from the variables of torchrun, Slurm or MPI, or 0.
        synchronize: Function to call before each line is printed.
    """
    if os.environ.get(ASKED_BY) != "1" or (_rank() if rank is None else rank) != 0:
        yield lambda loss=None: None
        return
    epoch = next(_epochs)
    steps = reported = 0
    next_line_s = 0.0

    def print_line(loss: SupportsFloat | None) -> None:
        nonlocal reported, next_line_s
        line: dict[str, object] = {"epoch": epoch, "step": steps}
        if samples is not None:
            line["samples"] = samples
        if loss is not None:
            # float() of a tensor with a gradient makes torch warn, unlike item().
            number = float(loss.item() if hasattr(loss, "item") else loss)
            line["loss"] = number if math.isfinite(number) else str(number)
        if synchronize is not None:
            synchronize()
        # One system call per line, so that lines of processes that share a pipe do not mix.
        os.write(1, f"{PREFIX}{json.dumps(line)}\n".encode())
        reported, next_line_s = steps, time.perf_counter() + _BETWEEN_LINES_S

    def step_done(loss: SupportsFloat | None = None) -> None:
        nonlocal steps
        steps += 1
        if time.perf_counter() >= next_line_s:
            print_line(loss)

    yield step_done
    if reported < steps:
        print_line(None)


def _rank() -> int:
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name)), 0)
