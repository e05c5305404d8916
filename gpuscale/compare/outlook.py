"""How many further runs would settle a row, and whether that number can be believed."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuscale.statistics.estimates import FURTHER_RUNS

CREDIBLE = 3
"""Runs tell their own spread too badly to foresee more than so many times their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What further runs would do, were they like those that there are."""

    needed: int | None
    """About the fewest that settle the row; None where none of the numbers tried does."""
    made: int
    """Runs now, of the end that has the fewest."""

    @property
    def further_runs(self) -> int | None:
        """The number, where it can be believed."""
        if self.needed is None or self.needed > CREDIBLE * self.made:
            return None
        return self.needed

    @property
    def text(self) -> str:
        """The advice, for a row that runs can settle."""
        if self.further_runs is None:
            runs = "1 run is" if self.made == 1 else f"{self.made} runs are"
            return f"more runs may settle it; {runs} too few to tell how many"
        more = f"{self.needed} further run{'' if self.needed == 1 else 's'}"
        return f"about {more} would settle it"


def outlook(settles: Callable[[int], bool], *, made: int) -> Outlook:
    """The outlook on a row that is inconclusive now.

    Args:
        settles: Whether so many further runs would settle it. More settle what fewer do, but
            for rare rows; so the numbers are halved, not tried all.
        made: Runs now, of the end that has the fewest.
    """
    low, high = 0, len(FURTHER_RUNS) - 1
    if not settles(FURTHER_RUNS[high]):
        return Outlook(needed=None, made=made)
    while low < high:
        middle = (low + high) // 2
        if settles(FURTHER_RUNS[middle]):
            high = middle
        else:
            low = middle + 1
    return Outlook(needed=FURTHER_RUNS[high], made=made)
