"""Find the largest batch that fits into memory: by powers of two, then by bisection."""

from collections.abc import Callable, Iterator

import msgspec

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.foreign_texts import NO_ENGINE
from gpuscale.records import Run, TimingPlan

FEW_STEPS = TimingPlan(warmup_steps=1, warmup_s=0.0, windows=2, window_s=1e-3, run_seconds=1e-3)
"""Timing plan with as few steps as possible, for finding out whether a batch fits."""
_FITS = (None, "unsteady")


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run that tests whether a batch fits into memory; unknown values are None."""

    batch: int
    """Batch size as given to `--batch`: samples per GPU or, for strong scaling, over all GPUs."""
    fits: bool
    failed_rank: int | None
    """The rank that ran out of memory first; None if no rank did or the rank is unknown."""
    peak_memory_bytes: int | None
    """Highest peak memory of any rank: in the CUDA allocator or, on CPU, resident in RAM."""
    wall_s: float | None


def tries(make_run: Callable[[int], Run], *, first: int, unit: int, most: int) -> Iterator[Try]:
    """Search for the largest batch that fits into memory, and yield every try.

    Batches are multiples of `unit` up to `most`. The first is `unit` times a power of two, at most
    `first` if possible. Raises GpuscaleError if a run fails for a reason other than lack of memory.
    """
    fits, too_large = 0, most // unit + 1
    number = min(_power_of_two(max(1, first // unit)), too_large - 1)
    while too_large - fits > 1:
        made = _tried(make_run(number * unit), number * unit, fits * unit)
        yield made
        fits, too_large = (number, too_large) if made.fits else (fits, number)
        if fits == 0:
            number = _power_of_two(max(1, too_large - 1))
        elif too_large > most // unit:
            number = min(2 * fits, most // unit)
        else:
            number = (fits + too_large) // 2


def _power_of_two(number: int) -> int:
    """Return the largest power of two that does not exceed a number."""
    return 1 << (number.bit_length() - 1)


def _tried(run: Run, batch: int, fitted: int) -> Try:
    failure = run.failure
    kind = None if failure is None else failure.kind
    # A smaller batch worked, so every engine failed for lack of memory.
    if failure is not None and fitted and NO_ENGINE.search(failure.message):
        kind = "out_of_memory"
    if failure is not None and kind not in (*_FITS, "out_of_memory"):
        until = f", after {fitted} had fitted" if fitted else ""
        raise GpuscaleError(
            f"a batch of {batch}{until}: {failure.message}; 'pytest … --runs 1 --batch {batch}' "
            "says more"
        )
    peaks = (rank.peak_memory_bytes or rank.peak_host_memory_bytes for rank in run.ranks)
    return Try(
        batch=batch,
        fits=kind in _FITS,
        failed_rank=None if failure is None else failure.rank,
        peak_memory_bytes=max(filter(None, peaks), default=None),
        wall_s=run.wall_s,
    )
