"""The rules by which other tools call a row slower, implemented from their definitions.

Each rule sees seconds per step of every window, run by run, of the baseline and of tonight, for one
case on one number of GPUs. No rule considers speedups.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import scipy

Runs = Sequence[Sequence[float]]
"""Seconds per step of the windows of each run."""


def percentage_check(baseline: Runs, tonight: Runs, *, percentage: int) -> bool:
    """pytest-benchmark's `--benchmark-compare-fail=median:5%`.

    `PercentageRegressionCheck` (pytest_benchmark/utils.py, 5.3): fails where
    `current / compared * 100 - 100 > percentage`. The medians are over all rounds; here the
    windows of all runs are the rounds.
    """
    return _median(tonight) / _median(baseline) * 100 - 100 > percentage


def asv_worse(baseline: Runs, tonight: Runs, *, factor: float, p_threshold: float) -> bool:
    """`asv compare` with its defaults: worse by the factor, and significantly different.

    `_is_result_better` (asv/commands/compare.py) asks for `is_different` and for
    `before < after / factor`; the results are the medians of all samples, over all processes.
    `is_different` (asv/_stats.py) is a two-sided Mann-Whitney U test on all samples, exact up to 20
    samples a side, by the normal distribution without continuity correction beyond. Raise
    ValueError for so few windows that asv would compare intervals instead.
    """
    before = [time_s for run in baseline for time_s in run]
    after = [time_s for run in tonight for time_s in run]
    if 1 / math.comb(len(before) + len(after), len(before)) >= p_threshold:
        raise ValueError(f"{len(before)} and {len(after)} windows are too few for asv's test")
    if not _median(baseline) < _median(tonight) / factor:
        return False
    test = scipy.stats.mannwhitneyu(
        before,
        after,
        use_continuity=False,
        alternative="two-sided",
        method="exact" if max(len(before), len(after)) <= 20 else "asymptotic",
    )
    return bool(test.pvalue < p_threshold)


def out_of_reference(baseline: Runs, tonight: Runs, *, tolerance: float) -> bool:
    """ReFrame's `reference = {…: (T, -tolerance, tolerance, 's')}`, checked for every run.

    `assert_reference` (reframe/utility/sanity.py) fails outside `ref * (1 ± tolerance)`. A
    repetition (`--repeat`) is a test of its own, so the session fails where any run does. The
    reference is the median over the baseline's runs of each run's median.
    """
    reference = statistics.median(statistics.median(run) for run in baseline)
    low, high = reference * (1 - tolerance), reference * (1 + tolerance)
    return any(not low <= statistics.median(run) <= high for run in tonight)


def _median(runs: Runs) -> float:
    return statistics.median(time_s for run in runs for time_s in run)


USUAL_RULES: dict[str, Callable[[Runs, Runs], bool]] = {
    "pytest-benchmark, median:5%": partial(percentage_check, percentage=5),
    "asv, p < 0.002 and factor 1.1": partial(asv_worse, factor=1.1, p_threshold=0.002),
    "ReFrame, reference ±5%": partial(out_of_reference, tolerance=0.05),
    "ReFrame, reference ±10%": partial(out_of_reference, tolerance=0.10),
}
"""Whether a tool calls the runs of tonight worse than those of the baseline, by its name."""
