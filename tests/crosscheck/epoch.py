"""What does an answer cost, and is it the one that whole epochs give?

    python tests/crosscheck/epoch.py

Trains mnist_cnn/ddp for one epoch of 51,000 synthetic images on 1 and on 2 CPU ranks with plain
torchrun, measures the same case with `--runs 3:8 --target-ci 2%`, and prints the seconds and the
speedups of both. The epochs are trained in quarters, each a fresh start, on 1 and 2 ranks in turn
and with the measurement in their middle, so that all see the same machine and the epochs' speedup
has an interval too. Takes about eight minutes on two quiet cores; a benchmark and not a test.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpuscale.analysis.scaling import scaling_points
from gpuscale.analysis.statistics.estimates import difference, log_sample
from gpuscale.records import Estimate
from gpuscale.store import read_results

REPOSITORY = Path(__file__).parent.parent.parent
QUARTERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarter:
    """A quarter of the epoch, trained on 1 rank and on 2."""

    one_s: float
    two_s: float

    @property
    def log_speedup(self) -> float:
        """Logarithm of how much sooner two ranks were through with it."""
        return math.log(self.one_s / self.two_s)


def quarter(number: int) -> Quarter:
    """Train the quarter both ways, in turn first on one rank and first on two."""
    first, second = (1, 2) if number % 2 else (2, 1)
    seconds = {ranks: trained_s(ranks) for ranks in (first, second)}
    return Quarter(one_s=seconds[1], two_s=seconds[2])


def trained_s(ranks: int) -> float:
    """Seconds of the steps of a quarter on this number of ranks, without start-up."""
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *(str(Path(__file__).parent / "plain_ddp.py"), "--part", str(QUARTERS)),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    step_time_s, steps = answer.stdout.split()
    return float(step_time_s) * int(steps)


def gpuscale_speedup() -> Estimate:
    """The speedup that a session finds."""
    case = str(REPOSITORY / "bench_cases" / "test_mnist_cnn.py")
    options = ["--gpus", "1,2", "--strategy", "ddp", "--device", "cpu", "--data", "loader"]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", case, *options),
                *("--runs", "3:8", "--target-ci", "2%", "--results", str(results)),
            ],
            stdout=subprocess.DEVNULL,
            cwd=folder,
            check=True,
        )
        points = scaling_points(read_results(results).runs)
    (speedup,) = [point.speedup for point in points if point.key.gpus == 2]
    if speedup is None:
        sys.exit("gpuscale measured no speedup")
    return speedup


def main() -> int:
    """Half of the epochs, gpuscale, the other half; 0 where both find the same speedup."""
    half = QUARTERS // 2
    began = time.monotonic()
    before = [quarter(number) for number in range(half)]
    paused = time.monotonic()
    measured = gpuscale_speedup()
    resumed = time.monotonic()
    after = [quarter(number) for number in range(half, QUARTERS)]
    epochs_s = (paused - began) + (time.monotonic() - resumed)
    sample = log_sample([its.log_speedup for its in (*before, *after)])
    trained = difference(sample.mean, [sample.term()]).exponential()
    parts = " ".join(f"{math.exp(its.log_speedup):.3f}" for its in (*before, *after))
    sys.stdout.write(
        f"epochs    {epochs_s:.0f} s  S(2) {in_words(trained)}  quarters {parts}\n"
        f"gpuscale  {resumed - paused:.0f} s  S(2) {in_words(measured)}\n"
    )
    return 0 if overlap(trained, measured) else 1


def bounds(estimate: Estimate) -> tuple[float, float]:
    """The ends of an interval."""
    if estimate.low is None or estimate.high is None:
        sys.exit("a speedup has no interval")
    return estimate.low, estimate.high


def in_words(estimate: Estimate) -> str:
    """Value and interval."""
    low, high = bounds(estimate)
    return f"{estimate.value:.3f} [{low:.3f}, {high:.3f}]"


def overlap(one: Estimate, other: Estimate) -> bool:
    """True if two intervals have a value in common."""
    (low, high), (other_low, other_high) = bounds(one), bounds(other)
    return low <= other_high and other_low <= high


if __name__ == "__main__":
    sys.exit(main())
