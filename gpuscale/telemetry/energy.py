"""Energy over a time from a device's counter, which is read at other moments."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class EnergyCounter:
    """The readings of one device's energy counter, in the order of their times."""

    def __init__(self, readings: Sequence[tuple[float, float]]) -> None:
        """Takes pairs of Unix time in seconds and joules."""
        self._times = [time_s for time_s, _ in readings]
        self._joules = [joules for _, joules in readings]

    def between(self, begin: float, end: float) -> float | None:
        """Joules from one Unix time to another.

        The counter is read every tenth of a second and a window is a few of these, so its
        value at either end is interpolated between the readings on both sides. None where
        there is none on one side, or where the counter began anew in between.
        """
        at_begin, at_end = self._at(begin), self._at(end)
        if at_begin is None or at_end is None or at_end < at_begin:
            return None
        return at_end - at_begin

    def _at(self, moment: float) -> float | None:
        before = bisect_right(self._times, moment) - 1
        after = bisect_left(self._times, moment)
        if before < 0 or after == len(self._times):
            return None
        if self._times[before] >= self._times[after]:
            return self._joules[before]
        elapsed = self._times[after] - self._times[before]
        share = (moment - self._times[before]) / elapsed
        return self._joules[before] + share * (self._joules[after] - self._joules[before])
