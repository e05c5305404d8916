"""`gpuscale selftest`: measure the overhead of gpuscale's measurements on this machine."""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from gpuscale.analysis.estimates import difference, log_sample
from gpuscale.base.errors import ExitCode, GpuscaleError, UsageError
from gpuscale.base.host import GPU_KINDS, is_gpu
from gpuscale.base.text import format_seconds
from gpuscale.cli.inputs import add_device, add_text_or_json, gpu_counts, remark, say
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.requests import run_request
from gpuscale.records import Estimate, Failure
from gpuscale.records.campaigns import OverheadOutcome, OverheadResult, SelfTest
from gpuscale.records.record import document_text
from gpuscale.reports.doctor_text import selftest_text
from gpuscale.reports.screen import can_redraw, progress_text, redrawn
from gpuscale.workload.cases import TrainingCase, case_class

_DEFAULT_CASES = {
    **dict.fromkeys(GPU_KINDS, "bench_cases/test_resnet50.py::Resnet50"),
    "cpu": "bench_cases/test_mnist_cnn.py::MnistCnn",
}
OVERHEAD_PAIRS = 40
"""Number of pairs of windows in a run: one window is timed by gpuscale, one by a bare loop."""
_LIMITS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(GPU_KINDS, (1.005, 0.0)),
    "cpu": (1.01, 0.020),
}
"""For each device: largest accepted overhead ratio, and shortest step (s) to which it applies."""
_MOST_EVIDENCE_S = 0.05
"""Longest time, in seconds, that collecting the evidence for a run may take on a node."""
_TRIMMED = 0.2
"""Fraction of a run's sorted log ratios trimmed at each end."""

OverheadRun = Sequence[OverheadOutcome] | Failure
"""Result of an overhead run: the outcomes of all ranks, or the failure of the run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure the overhead of gpuscale on this machine: its windows in turn with those of a "
        "bare training loop. It took 14 minutes on two busy CPU cores, and takes less on an idle "
        "host."
    )
    parser.epilog = "Exit codes: 0 within the limit, 1 above it, 2 usage, 3 not decided."
    add = parser.add_argument
    text = "the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)"
    add("--case", metavar="FILE::CLASS", help=text)
    add(
        "--gpus",
        metavar="N,N,…",
        type=gpu_counts,
        help="numbers of GPUs, or of CPU ranks (default: 1,2)",
    )
    add_device(parser)
    text = "fresh starts on each number of GPUs (default: 8)"
    add("--runs", metavar="N", type=int, default=8, help=text)
    add_text_or_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print how much gpuscale itself slows down a step, on each number of GPUs."""
    if arguments.runs < 2:
        raise UsageError(f"--runs: {arguments.runs} is too few; give at least 2")
    started_s = time.monotonic()
    launcher = Launcher(device=arguments.device, folder=Path.cwd())
    here = launcher.environment
    case = load_case_class(arguments.case, here.device)
    most = here.gpus_per_node if is_gpu(here.device) else here.cores_per_node
    gpus = sorted(arguments.gpus or {1, min(2, most)})
    if gpus[-1] > most:
        raise UsageError(f"--gpus: {gpus[-1]} is more than the {most} that are here; leave it out")
    made: dict[int, list[OverheadRun]] = {number: [] for number in gpus}
    total = arguments.runs * len(gpus)
    remark(f"{total} runs of {case.name()} on {here.hardware_label}")

    def drawn() -> str:
        return progress_text("run", sum(map(len, made.values())), total)

    with redrawn(sys.stderr if can_redraw(sys.stderr) else None, drawn):
        for index, number in product(range(1, arguments.runs + 1), gpus):
            plan = ItemPlan(case=case, strategy=case.default_strategy(), gpus=number, run=index)
            request = run_request(plan, here, MeasureOptions())
            request = replace(request, overhead_pairs=OVERHEAD_PAIRS)
            made[number].append(launcher.compare_with_bare_loop(request))
        results = tuple(judge_overhead(here.device, number, runs) for number, runs in made.items())
    report = SelfTest(
        configuration=request.configuration,
        environment=here,
        results=results,
        wall_s=time.monotonic() - started_s,
    )
    text = selftest_text(report)
    if arguments.format == "json":
        text = document_text("gpuscale-selftest", **msgspec.to_builtins(report))
    say(text)
    verdicts = {result.verdict for result in results}
    if "above" in verdicts:
        return ExitCode.REGRESSED
    return ExitCode.INCONCLUSIVE if "not decided" in verdicts else ExitCode.OK


def load_case_class(text: str | None, device: str) -> type[TrainingCase]:
    """Return the case given as `FILE::Class`; by default, a case that suits the device."""
    file = _DEFAULT_CASES[device].partition("::")[0]
    if text is None and not Path(file).is_file():
        raise UsageError(
            f"there is no {file} here; go to the folder that has bench_cases ('gpuscale init "
            "DIR' makes one), or name a case of your own with --case FILE::Class"
        )
    return case_class(text or _DEFAULT_CASES[device])


def judge_overhead(device: str, gpus: int, runs: Sequence[OverheadRun]) -> OverheadResult:
    """Return the overhead of measuring on one number of GPUs; `runs` must not be empty.

    Windows with and without measuring are paired; each pair yields the log ratio of the times of
    the slowest ranks. The value of a run is the trimmed mean of its log ratios, and the confidence
    interval reflects the spread between runs.
    """
    valid = [run for run in runs if not isinstance(run, Failure)]
    if not valid and isinstance(runs[0], Failure):
        raise GpuscaleError(f"every run on {gpus} GPUs failed: {runs[0].message}")
    means, step_times_s = [], []
    for run in valid:
        logs = []
        for pair_of_ranks in zip(*(rank.pairs for rank in run), strict=True):
            bare_s = max(pair.bare_s for pair in pair_of_ranks)
            step_times_s.append(bare_s / run[0].steps_per_window)
            logs.append(math.log(max(pair.measured_s for pair in pair_of_ranks) / bare_s))
        cut = int(_TRIMMED * len(logs))
        means.append(statistics.fmean(sorted(logs)[cut : len(logs) - cut]))
    sample = log_sample(means)
    ratio = difference(sample.mean, [sample.term()]).exponential()
    step_time_s = statistics.median(step_times_s)
    evidence_s = statistics.median(max(rank.evidence_s for rank in run) for run in valid)
    verdict, reason = _verdict(ratio, step_time_s, evidence_s, device)
    return OverheadResult(
        gpus=gpus,
        runs=len(valid),
        pairs=len(step_times_s),
        step_time_s=step_time_s,
        ratio=ratio,
        evidence_s=evidence_s,
        limit=_LIMITS[device][0],
        verdict=verdict,
        reason=reason,
    )


def _verdict(
    ratio: Estimate, step_time_s: float, evidence_s: float, device: str
) -> tuple[Literal["within", "above", "not decided"], str]:
    limit, shortest_s = _LIMITS[device]
    if evidence_s > _MOST_EVIDENCE_S:
        return "above", f"evidence may take {format_seconds(_MOST_EVIDENCE_S)} a run"
    if ratio.low is None or ratio.high is None:
        return "not decided", "one run gives no interval; make more with --runs"
    if ratio.high <= limit:
        return "within", ""
    if step_time_s < shortest_s:
        return "not decided", (
            f"the limit is meant for steps of {format_seconds(shortest_s)} and more; "
            "name a larger case with --case"
        )
    if ratio.low > limit:
        return "above", ""
    return "not decided", "the limit lies inside the interval; make it narrower with more --runs"
