"""The largest batch that fits into memory: powers of two until one does not, then bisection."""

from collections.abc import Callable, Iterator

import msgspec

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.foreign_texts import NO_ENGINE
from gpuscale.records import Run, TimingPlan

FEW_STEPS = TimingPlan(warmup_steps=1, warmup_s=0.0, windows=2, window_s=1e-3, run_seconds=1e-3)
"""Steps with and without synchronisation, as measuring makes them, and as few as it can."""
_FITS = (None, "unsteady")


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh start of all ranks at a batch; None is what is not known of it."""

    batch: int
    """Samples per GPU, or over all GPUs under strong scaling, as `--batch` takes them."""
    fits: bool
    failed_rank: int | None
    """The rank that ran out of memory first."""
    peak_memory_bytes: int | None
    """The largest of any rank: of the CUDA allocator, or on CPU the resident set."""
    wall_s: float | None


def tries(make_run: Callable[[int], Run], *, first: int, unit: int, most: int) -> Iterator[Try]:
    """Each try in turn, until the largest that fits lies a unit below one that does not.

    It begins with the largest power of two up to `first`. Batches are multiples of the unit, and
    at most `most`. A run that fails for another reason than memory is a GpuscaleError.
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
    """The largest up to a number."""
    return 1 << (number.bit_length() - 1)


def _tried(run: Run, batch: int, fitted: int) -> Try:
    failure = run.failure
    kind = None if failure is None else failure.kind
    # Where a smaller batch was computed, memory is what no engine had.
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
