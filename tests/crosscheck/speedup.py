"""Does plain torchrun timing give the speedup that gpuscale reports?

    python tests/crosscheck/speedup.py

Measures mnist_cnn/ddp on 1 and 2 CPU ranks both ways, alternating, so that both see the same
machine. Takes about three minutes; a benchmark and not a test, because machines have bad minutes.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpuscale.analysis.scaling import scaling_points
from gpuscale.analysis.statistics.estimates import difference, log_sample
from gpuscale.records import Run
from gpuscale.store import read_results

REPOSITORY = Path(__file__).parent.parent.parent
ROUNDS = 6


def torchrun_step_time_s(ranks: int) -> float:
    """Seconds per step of the plain loop on this number of ranks."""
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), str(Path(__file__).parent / "plain_ddp.py")),
        ],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return float(answer.stdout.strip())


def gpuscale_runs(folder: Path, number: int) -> Path:
    """A results file with one run on 1 and one on 2 ranks."""
    results = folder / f"{number}.jsonl"
    case = str(REPOSITORY / "bench_cases" / "test_mnist_cnn.py")
    options = [
        "--gpus",
        "1,2",
        "--runs",
        "1",
        "--strategy",
        "ddp",
        "--device",
        "cpu",
        "--data",
        "loader",
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", case, *options, "--results", str(results)],
        stdout=subprocess.DEVNULL,
        cwd=folder,
        check=True,
    )
    return results


def main() -> int:
    """Measure both ways; 0 where the plain speedup lies in gpuscale's interval."""
    plain_logs: list[float] = []
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            one, two = torchrun_step_time_s(1), torchrun_step_time_s(2)
            plain_logs.append(math.log(2 * one / two))
            runs += read_results(gpuscale_runs(Path(folder), number)).runs
    (speedup,) = [point.speedup for point in scaling_points(runs) if point.key.gpus == 2]
    plain = difference(statistics.fmean(plain_logs), [log_sample(plain_logs).term()]).exponential()
    if speedup is None or speedup.low is None or speedup.high is None:
        sys.stdout.write("gpuscale measured no speedup\n")
        return 1
    inside = speedup.low <= plain.value <= speedup.high
    sys.stdout.write(
        f"gpuscale  S(2) {speedup.value:.3f} [{speedup.low:.3f}, {speedup.high:.3f}]\n"
        f"torchrun  S(2) {plain.value:.3f} [{plain.low:.3f}, {plain.high:.3f}]: "
        f"{'inside' if inside else 'OUTSIDE'} gpuscale's interval\n"
    )
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
