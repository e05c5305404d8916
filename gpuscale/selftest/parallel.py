"""Work in portions on several processes, which end with the one that asked for it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import TypeVar

Portion = TypeVar("Portion")
Answer = TypeVar("Answer")


def in_parallel(
    work: Callable[[Portion], Answer], portions: Sequence[Portion], processes: int
) -> Iterator[tuple[Portion, Answer]]:
    """Each portion with its answer, in the order given.

    Args:
        work: a function of a module, called once for each portion.
        portions: what can be sent to another process.
        processes: 1 is this one alone.
    """
    if processes == 1:
        for portion in portions:
            yield portion, work(portion)
        return
    # Spawned, not forked: numpy's threads do not survive a fork.
    with ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        try:
            # The processes inherit the mask, also while they start: Ctrl-C is the parent's alone.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                answers = pool.map(work, portions)
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield from zip(portions, answers, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End when the parent ends, also when it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
