"""`gpuscale history` beside Otava's and asv's detectors, on the same simulated nights.

Not part of the test suite, since it needs the tools themselves:

    pip install apache-otava==0.8.0 asv
    PYTHONPATH=. python tests/crosscheck/change_points.py 200

Each detector sees a series as a team does: every night anew, up to that night. Printed is the
table of docs/evidence/rates.md.
"""

import logging
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_levels import nights

from gpuscale.analysis.statistics.levels import FEWEST_NIGHTS, level_changes
from gpuscale.base.units import format_percent

NIGHTS, BEGUN = 60, 30
STEP = math.log(1.03)
DRIFT = 0.004
BEFORE_4_PERCENT = 10
"""Nights of that drift."""
SLACK = 2
"""Nights by which a detector may date a change too early."""

Onsets = Callable[[Sequence[float]], Iterable[int]]
"""The nights from which a series, of logarithms of step times, is slower."""


def ours(series: Sequence[float]) -> Iterable[int]:
    """The changes that `gpuscale history` shows."""
    return [change.onset for change in level_changes(series) if change.change > 0]


def otava(smallest: float) -> Onsets:
    """`otava analyze` with its defaults, except for the smallest change."""
    analysis: Any = import_module("otava.analysis")

    def onsets(series: Sequence[float]) -> Iterable[int]:
        times_s = [math.exp(value) for value in series]
        found, _ = analysis.compute_change_points(
            times_s, window_len=50, max_pvalue=0.001, min_magnitude=smallest
        )
        return [point.index for point in found if point.stats.mean_2 > point.stats.mean_1]

    return onsets


def asv(threshold: float) -> Onsets:
    """`asv publish`, whose default threshold is 5%."""
    detect: Any = import_module("asv.step_detect")

    def onsets(series: Sequence[float]) -> Iterable[int]:
        steps = detect.detect_steps([math.exp(value) for value in series])
        *_, positions = detect.detect_regressions(steps, threshold)
        return [after for _, after, *_ in positions or ()]

    return onsets


def nights_until_found(onsets: Onsets, series: Sequence[float], first: int) -> float:
    """Nights from the first on, itself included, until a change about it or later is shown."""
    for seen in range(max(first, FEWEST_NIGHTS), len(series)):
        if any(onset >= first - SLACK for onset in onsets(series[: seen + 1])):
            return seen - first + 1
    return math.inf


def share(found: Sequence[float], within: float) -> str:
    """The share of changes found within this number of nights."""
    return format_percent(sum(each <= within for each in found) / len(found))


def row(onsets: Onsets, deviation: float, count: int) -> Iterable[str]:
    """False alarms, then what is found of steps and drifts; the same series for each detector."""

    def found(
        seed: int, length: int, first: int, truth: Callable[[int], float] = lambda _: 0.0
    ) -> list[float]:
        rng = random.Random(seed)
        made = (nights(rng, length, deviation=deviation, truth=truth) for _ in range(count))
        return [nights_until_found(onsets, series, first) for series in made]

    yield share(found(1, NIGHTS, 0), NIGHTS)
    rng = random.Random(1)
    at_the_end = [
        bool(list(onsets(nights(rng, NIGHTS, deviation=deviation)))) for _ in range(count)
    ]
    yield format_percent(sum(at_the_end) / count)
    steps = found(2, BEGUN + 10, BEGUN, lambda i: STEP if i >= BEGUN else 0.0)
    yield from (share(steps, within) for within in (2, 5, 10))
    drifts = found(3, BEGUN + BEFORE_4_PERCENT, BEGUN, lambda i: DRIFT * max(0, i - BEGUN + 1))
    yield share(drifts, BEFORE_4_PERCENT)


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1])
    logging.disable()
    detectors: dict[str, Onsets] = {
        "gpuscale": ours,
        "Otava": otava(0.0),
        "Otava, changes of 1.5 %": otava(0.015),
        "asv": asv(0.05),
        "asv, changes of 1.5 %": asv(0.015),
    }
    sys.stdout.write(f"Otava {version('apache-otava')}, asv {version('asv')}, {count} series\n\n")
    sys.stdout.write(
        "| between nights | detector | rows falsely alarmed in 60 nights | still so at the end | 3 "
        "% step found within 2 nights | 5 | 10 | 0.4 % a night found before it costs 4 % |\n"
        f"|{'---|' * 8}\n"
    )
    for deviation in (0.003, 0.005, 0.01, 0.02):
        for name, onsets in detectors.items():
            cells = (format_percent(deviation), name, *row(onsets, deviation, count))
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
