"""What measuring costs (ci/overhead.py): judged from known ratios, and measured against a loop."""

import json
import math
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import CNN, request
from changing import replace
from hosts import within_limit
from measuring import BENCH_CASES, run_script, write_case
from nccl_speaks import CASE
from statements import known

from ci.overhead import Overhead, OverheadRun, Pair, RankTimes, bare_loop, judge_overhead, paused
from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.worker.data import training_batches
from gpuscale.measure.worker.entry import parameter_digest
from gpuscale.measure.worker.strategies.data_parallel import DataParallelStrategy
from gpuscale.measure.worker.training import Training
from gpuscale.records import Failure, RunRequest
from gpuscale.records.request import TIMING_PLANS

SCRIPT = BENCH_CASES.parent / "ci" / "overhead.py"
ON_CPU = replace(CNN, device="cpu", strategy="dp", size="smoke")


def run_of(ratios: list[float], *, step_s: float = 0.05) -> OverheadRun:
    bare_s = 4 * step_s
    pairs = tuple(Pair(measured_s=bare_s * ratio, bare_s=bare_s) for ratio in ratios)
    fast = tuple(Pair(measured_s=bare_s / 2, bare_s=bare_s / 2) for _ in ratios)
    return [RankTimes(steps_per_window=4, pairs=its) for its in (fast, pairs)]


def noisy_runs(truth: float, noise: float, *, runs: int, seed: int) -> list[OverheadRun]:
    draw = random.Random(seed)
    ratios = ([truth * math.exp(draw.gauss(0, noise)) for _ in range(20)] for _ in range(runs))
    return [*map(run_of, ratios)]


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(400):
        ratio = judge_overhead("cpu", 1, noisy_runs(1.007, 0.05, runs=5, seed=seed)).ratio
        covered += known(ratio.low) <= 1.007 <= known(ratio.high)
    # 95% of 400 is 380; fewer than 365 or more than 394 are less likely than 1 in 1000.
    assert 365 <= covered <= 394


def test_pairs_that_the_machine_disturbed_do_not_move_the_ratio() -> None:
    quiet = [1.002] * 17
    disturbed = run_of([*quiet, 1.9, 2.5, 0.4])
    assert judge_overhead("cpu", 1, [disturbed, disturbed]).ratio.value == pytest.approx(1.002)


@pytest.mark.parametrize(
    ("ratios", "step_s", "verdict", "reason"),
    [
        ((1.001, 1.002, 1.003), 0.05, "within", ""),
        ((1.001, 1.002, 1.003), 0.001, "within", ""),
        ((1.049, 1.05, 1.051), 0.05, "above", ""),
        ((1.049, 1.05, 1.051), 0.001, "not decided", "meant for steps of 20.0 ms and more"),
        ((0.98, 1.01, 1.04), 0.05, "not decided", "more --runs"),
        ((1.001,), 0.05, "not decided", "one run gives no interval"),
    ],
)
def test_the_verdict_follows_from_the_interval_and_the_limit(
    ratios: tuple[float, ...], step_s: float, verdict: str, reason: str
) -> None:
    result = judge_overhead("cpu", 1, [run_of([ratio] * 20, step_s=step_s) for ratio in ratios])
    assert (result.verdict, result.limit) == (verdict, 1.01)
    assert reason in result.reason
    assert result.step_time_s == pytest.approx(step_s)


def test_a_failed_run_does_not_count_and_only_failed_ones_are_an_error() -> None:
    failed = Failure(kind="killed", message="rank 0 was killed by SIGKILL")
    assert judge_overhead("cpu", 1, [failed, *noisy_runs(1.0, 0.01, runs=2, seed=1)]).runs == 2
    with pytest.raises(GpuscaleError, match="every run on 1 GPUs failed: rank 0 was killed"):
        judge_overhead("cpu", 1, [failed, failed])


def test_the_bare_loop_trains_bit_for_bit_as_gpuscale_does() -> None:
    # Only here, for torchvision, which takes as long as torch to import.
    from bench_cases.test_mnist_cnn import MnistCnn

    def digest_after(train: Callable[[Training], None]) -> str:
        torch.manual_seed(42)
        request = request_for_cpu()
        case = MnistCnn()
        case.size = case.named_size("smoke")
        batches = training_batches(case, request, batch=4, rank=0, world_size=1)
        training = Training(case, request, DataParallelStrategy(request), batches)
        train(training)
        return parameter_digest(training.model)

    def four_steps(training: Training) -> None:
        for _ in range(4):
            training.step()

    measured = digest_after(four_steps)
    bare = digest_after(lambda training: bare_loop(training, 4))
    fewer = digest_after(lambda training: bare_loop(training, 3))
    assert measured == bare
    assert measured != fewer


def request_for_cpu() -> RunRequest:
    path, timing = BENCH_CASES / "test_mnist_cnn.py", TIMING_PLANS["cpu"]
    asked = request(configuration=ON_CPU, batch_per_gpu=4, timing=timing)
    return replace(asked, case_module=path.stem, case_file=str(path), case_class="MnistCnn")


def test_a_sampler_stands_still_while_the_bare_loop_runs() -> None:
    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    process = subprocess.Popen(["sleep", "60"])
    try:
        with paused(process.pid):
            assert within_limit(lambda: state() == "T")
        assert within_limit(lambda: state() in "RS")
    finally:
        process.kill()
        process.wait()


def test_the_script_measures_the_overhead_on_two_ranks(tmp_path: Path) -> None:
    write_case(tmp_path, CASE)
    asked = ("--case", "test_tiny.py::Case", "--gpus", "2", "--runs", "2", "--device", "cpu")
    # All 40 pairs of a run would keep two cores busy for half a minute.
    few = ("--format", "json", "--pairs", "6")
    session = run_script(tmp_path, SCRIPT, *few, *asked)
    said, begin, report = session.output.partition("{\n")
    (result,) = json.loads(begin + report)["results"]
    assert (result["gpus"], result["runs"], result["pairs"]) == (2, 2, 12)
    assert result["evidence_s"] > 0
    # A step of a tenth of a millisecond has its overhead; that of ten steps would be a bug.
    assert 0.1 < result["ratio"]["value"] < 10
    assert session.exit_code == {"within": 0, "above": 1, "not decided": 3}[result["verdict"]]
    assert "2 runs of case on" in said


def test_evidence_that_takes_too_long_is_above_its_limit() -> None:
    def judged(evidence_s: float) -> Overhead:
        runs = [
            [replace(rank, evidence_s=evidence_s * number) for rank in run]
            for number, run in enumerate(noisy_runs(1.0, 0.001, runs=3, seed=1))
            if not isinstance(run, Failure)
        ]
        return judge_overhead("cpu", 1, runs)

    quick, slow = judged(0.04), judged(0.06)
    assert (quick.verdict, quick.evidence_s) == ("within", 0.04)
    assert (slow.verdict, slow.reason) == ("above", "evidence may take 50.0 ms a run")
