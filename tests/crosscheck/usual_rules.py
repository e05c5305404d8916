"""The rules of tests/validation/rules.py beside the tools that they come from.

Not part of the test suite, since it needs the tools themselves:

    pip install asv reframe-hpc
    python tests/crosscheck/usual_rules.py

Random rows, with and without a loss, are judged by both; 1 if they disagree on any.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from validation.rules import Runs, usual_rules

ROWS = 3000
LOSSES = (0.0, 0.05, 0.1, 0.2)

Original = Callable[[Runs, Runs], bool]


def asv_alarms(baseline: Runs, tonight: Runs) -> bool:
    """`asv compare` with its defaults (asv/commands/compare.py)."""
    compare: Any = import_module("asv.commands.compare")
    stats: Any = import_module("asv_runner.statistics")
    sides = []
    for runs in (baseline, tonight):
        samples = [time_s for run in runs for time_s in run]
        result, spread = stats.compute_stats(samples, 1)
        sides.append((result, (spread, samples)))
    (before, before_samples), (after, after_samples) = sides
    return bool(compare._is_result_better(before, after, before_samples, after_samples, 1.1))


def reframe_alarms(baseline: Runs, tonight: Runs, tolerance: float) -> bool:
    """True if `assert_reference` fails for any run."""
    sanity: Any = import_module("reframe.utility.sanity")
    errors: Any = import_module("reframe.core.exceptions")
    reference = statistics.median(statistics.median(run) for run in baseline)
    for run in tonight:
        check = sanity.assert_reference(statistics.median(run), reference, -tolerance, tolerance)
        try:
            sanity.evaluate(check)
        except errors.SanityError:
            return True
    return False


def main() -> int:
    """Judge random rows twice, and print how often each rule alarms and disagrees."""
    originals: dict[str, Original] = {
        "asv, p < 0.002 and factor 1.1": asv_alarms,
        "ReFrame, reference ±5%": lambda before, now: reframe_alarms(before, now, 0.05),
        "ReFrame, reference ±10%": lambda before, now: reframe_alarms(before, now, 0.10),
    }
    rng = np.random.default_rng(1)
    alarms, disagreements = Counter[str](), Counter[str]()
    for _ in range(ROWS):
        windows = int(rng.choice([3, 9]))
        loss = float(rng.choice(LOSSES))
        baseline = rng.lognormal(0, 0.08, (6, windows)).tolist()
        tonight = rng.lognormal(loss, 0.08, (int(rng.choice([2, 3, 5])), windows)).tolist()
        for rule in usual_rules():
            if rule.name in originals:
                own = rule.alarms(baseline, tonight)
                alarms[rule.name] += own
                disagreements[rule.name] += own != originals[rule.name](baseline, tonight)
    sys.stdout.write(f"asv {version('asv')}, ReFrame {version('reframe-hpc')}, {ROWS} rows\n")
    for name in originals:
        sys.stdout.write(f"{name}: {alarms[name]} alarms, {disagreements[name]} disagreements\n")
    return 1 if disagreements.total() else 0


if __name__ == "__main__":
    sys.exit(main())
