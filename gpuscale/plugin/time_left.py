"""How long the rest of a session takes, by what its runs took so far."""

import statistics
from collections.abc import Sequence

from gpuscale.records import EntryKey, Run


def seconds_left(keys: Sequence[EntryKey], runs: Sequence[Run]) -> float | None:
    """Seconds for one run more of each key, which may repeat; None before a run has ended well.

    A row that was not run yet is taken for the mean of those that were.
    """
    took_s: dict[EntryKey, list[float]] = {}
    for run in runs:
        if run.is_valid and run.wall_s is not None:
            took_s.setdefault(run.key, []).append(run.wall_s)
    if not took_s:
        return None
    mean_s = {key: statistics.fmean(its) for key, its in took_s.items()}
    of_others_s = statistics.fmean(mean_s.values())
    return sum(mean_s.get(key, of_others_s) for key in keys)


def left_text(seconds: float | None, *, at_most: bool) -> str:
    """`, 4 min left` or `, at most 4 min left`; empty where nothing or nothing known is left."""
    if seconds is None or seconds < 1:
        return ""
    for unit, of_unit_s in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 1.5 * of_unit_s or unit == "s":
            break
    return f", {'at most ' if at_most else ''}{round(seconds / of_unit_s)} {unit} left"
