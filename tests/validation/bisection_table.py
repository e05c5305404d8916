"""Write the table of docs/evidence/rates.md that compares bisection with other rules.

Usage: python -m validation.bisection_table COUNT FIRST_SEED, in the folder `tests`.
"""

import math
import random
import sys

from bisecting import Machine, Tally, loss_of_a_culprit, plain_halving, search, triage, truth

_NOISES = (0.001, 0.01, 0.05)
_KINDS = ("one", "two", "three", "partial", "together", "helped")


def row(kind: str, noise: float, count: int, first: int, changes: int = 16) -> str:
    """Return a line of the table: right and wrong answers and runs of each rule, and our trials."""
    ours, runs = Tally(), [0, 0, 0]
    others = [[0, 0], [0, 0]]
    for seed in range(first, first + count):
        rng = random.Random(f"{kind} {noise} {seed}")
        true = truth(kind, changes, loss_of_a_culprit(noise), rng)
        machine = Machine(true.effect, noise, rng, drift=noise / 20)
        ours.add(search(machine, changes), true)
        runs[0] += machine.runs
        for at, rule in enumerate((triage, plain_halving)):
            machine = Machine(true.effect, noise, rng, drift=noise / 20)
            named = rule(machine, changes)
            others[at][0] += named == true.culprits
            others[at][1] += named is not None and not named <= true.culprits
            runs[at + 1] += machine.runs
    cells = [(ours.right, ours.wrong), *others]
    words = [
        f"{100 * right / count:.0f}, {100 * wrong / count:.0f} % ({made / count:.0f})"
        for (right, wrong), made in zip(cells, runs, strict=True)
    ]
    trials = f"{ours.trials / count:.1f} of {1.5 * len(true.culprits) * math.log2(changes):.0f}"
    return f"| {kind}, {100 * noise:g} % | {' | '.join(words)} | {trials} |"


if __name__ == "__main__":
    for kind in _KINDS:
        for noise in _NOISES:
            sys.stdout.write(f"{row(kind, noise, *map(int, sys.argv[1:]))}\n")
