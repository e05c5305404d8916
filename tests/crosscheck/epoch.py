"""What does an answer cost, and is it the one that whole epochs give?

    python tests/crosscheck/epoch.py

Trains mnist_cnn/ddp for one epoch of 51,000 synthetic images on 1 and on 2 CPU ranks with plain
torchrun, measures the same case with `--runs 3:8 --target-ci 2%`, and prints the seconds and the
speedups of both. Takes about five minutes on two quiet cores.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gpuscale.records import Estimate
from gpuscale.scaling import scaling_points
from gpuscale.store import read_results

REPOSITORY = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """One epoch on 1 rank and one on 2."""

    wall_s: float
    speedup: float


def epochs() -> Epochs:
    """Train both with torchrun, start-up included in the wall clock and not in the speedup."""
    started = time.monotonic()
    one, two = epoch_s(1), epoch_s(2)
    return Epochs(wall_s=time.monotonic() - started, speedup=one / two)


def epoch_s(ranks: int) -> float:
    """Seconds of the epoch's steps on so many ranks."""
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *(str(Path(__file__).parent / "plain_ddp.py"), "--epoch"),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    step_time_s, steps = answer.stdout.split()
    return float(step_time_s) * int(steps)


def gpuscale_answer() -> tuple[float, Estimate]:
    """Wall clock of the session, and the speedup that it found."""
    case = str(REPOSITORY / "bench_cases" / "test_mnist_cnn.py")
    options = ["--gpus", "1,2", "--strategy", "ddp", "--device", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        started = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", case, *options),
                *("--runs", "3:8", "--target-ci", "2%", "--results", str(results)),
            ],
            stdout=subprocess.DEVNULL,
            cwd=folder,
            check=True,
        )
        wall_s = time.monotonic() - started
        points = scaling_points(read_results(results).runs)
    (speedup,) = [point.speedup for point in points if point.key.gpus == 2]
    if speedup is None:
        sys.exit("gpuscale measured no speedup")
    return wall_s, speedup


def main() -> None:
    """The epochs, and gpuscale directly after them."""
    trained = epochs()
    wall_s, speedup = gpuscale_answer()
    sys.stdout.write(
        f"epochs    {trained.wall_s:.0f} s  S(2) {trained.speedup:.3f}\n"
        f"gpuscale  {wall_s:.0f} s  S(2) {speedup.value:.3f} [{speedup.low}, {speedup.high}]\n"
    )


if __name__ == "__main__":
    main()
