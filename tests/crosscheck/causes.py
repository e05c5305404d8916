"""How often is the first cause the right one, where the truth is known?

    python tests/crosscheck/causes.py

Prints the table of docs/evidence/rates.md: faults of a fifth of the step, on 2 and 4 GPUs, three
runs against six, with 0.3, 1, 2 and 5% between runs and 1% between nights. Takes two minutes.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from builders.causes import FAULTS, tally

TRIALS = 250
DEVIATIONS = (0.003, 0.01, 0.02, 0.05)


def main() -> None:
    """Print a row of the table for each fault."""
    sys.stdout.write(
        "| fault | called worse | right cause first | further causes |\n|---|---|---|---|\n"
    )
    rng = np.random.default_rng(7)
    for name, known in FAULTS.items():
        found = [
            tally(rng, known, gpus, deviation=deviation, runs=3, trials=TRIALS)
            for gpus in (2, 4)
            for deviation in DEVIATIONS
        ]
        trials, losses = sum(t.trials for t in found), sum(t.losses for t in found)
        right, others = sum(t.right for t in found), sum(t.others for t in found)
        sys.stdout.write(f"| {name} | {losses} of {trials} | {right} of {losses} | {others} |\n")


if __name__ == "__main__":
    main()
