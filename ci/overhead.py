"""Measure the overhead of gpuscale on this machine: its windows in turn with a bare training loop.

`python ci/overhead.py [--case FILE::CLASS] [--gpus 1,2]` ends with 0 if the overhead is within its
limit, 1 above it, 2 for wrong usage, and 3 if undecided. It took 14 minutes on two busy CPU cores.
The request of each run names `measure_pairs`, which the ranks call in place of gpuscale's own loop.
"""

import argparse
import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec
import torch
from msgspec.structs import replace

from gpuscale.analysis.estimates import difference, log_sample
from gpuscale.base.errors import ExitCode, GpuscaleError, UsageError
from gpuscale.base.host import GPU_KINDS, device_word, is_gpu
from gpuscale.base.text import format_seconds
from gpuscale.cli.inputs import add_device, gpu_counts, remark, say
from gpuscale.measure.evidence.node import SAMPLER_VARIABLE
from gpuscale.measure.evidence.software import own_software
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.measure.worker import loop
from gpuscale.measure.worker.data import on_device
from gpuscale.measure.worker.training import Training
from gpuscale.measure.worker.windows import window_plan
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.requests import run_request
from gpuscale.records import Configuration, Environment, Estimate, Failure, RunRequest, TimingPlan
from gpuscale.records.record import document_text
from gpuscale.records.request import Measurement
from gpuscale.reports.phrases import bounds_text, devices_text
from gpuscale.reports.screen import can_redraw, progress_text, redrawn, table
from gpuscale.workload.cases import case_class

CASES = Path(__file__).resolve().parent.parent / "bench_cases"
DEFAULT_CASES = {
    **dict.fromkeys(GPU_KINDS, f"{CASES}/test_resnet50.py::Resnet50"),
    "cpu": f"{CASES}/test_mnist_cnn.py::MnistCnn",
}
LIMITS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(GPU_KINDS, (1.005, 0.0)),
    "cpu": (1.01, 0.020),
}
"""For each device: largest accepted overhead ratio, and shortest step (s) to which it applies."""
MOST_EVIDENCE_S = 0.05
"""Longest time, in seconds, that collecting the evidence for a run may take on a node."""
TRIMMED = 0.2
"""Fraction of a run's sorted log ratios trimmed at each end."""
FOLDER_VARIABLE = "OVERHEAD_FOLDER"
"""Environment variable that names the folder into which each rank writes its times."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the same number of steps, with and without gpuscale's measurement."""

    measured_s: float
    """Seconds for one window, including all of gpuscale's work before and during it."""
    bare_s: float
    """Seconds for the same steps in a bare training loop."""


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times that one rank measured in one run."""

    steps_per_window: int
    pairs: tuple[Pair, ...]
    evidence_s: float = 0.0
    """Seconds spent collecting evidence of the node and this rank, outside of the pairs."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Overhead of gpuscale's measurement for one number of GPUs."""

    gpus: int
    runs: int
    pairs: int
    """Number of pairs of windows in all runs together."""
    step_time_s: float
    """Median seconds per step of the bare training loop."""
    ratio: Estimate
    """Time with gpuscale, divided by the time of the bare training loop."""
    evidence_s: float
    """Seconds per run spent collecting evidence outside of windows; median over the runs."""
    limit: float
    """Documented upper limit of the ratio."""
    verdict: Literal["within", "above", "not decided"]
    reason: str = ""
    """Reason for the verdict; empty if the ratio alone determines the verdict."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The overhead on one machine."""

    configuration: Configuration
    environment: Environment
    results: tuple[Overhead, ...]
    """Overhead for each number of GPUs."""
    wall_s: float


OverheadRun = Sequence[RankTimes] | Failure
"""Result of one run: the times of all ranks, or the failure of the run."""


def main(words: Sequence[str]) -> int:
    """Measure and print how much gpuscale itself slows down a step, on each number of GPUs."""
    arguments = _parser().parse_args(words)
    if arguments.runs < 2:
        raise UsageError(f"--runs: {arguments.runs} is too few; give at least 2")
    if arguments.pairs < 1:
        raise UsageError(f"--pairs: {arguments.pairs} is too few; give at least 1")
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # The ranks inherit this.
        os.environ[FOLDER_VARIABLE] = folder
        launcher = Launcher(device=arguments.device, folder=Path.cwd())
        here = launcher.environment
        case = case_class(arguments.case or DEFAULT_CASES[here.device])
        most = here.gpus_per_node if is_gpu(here.device) else here.cores_per_node
        gpus = sorted(arguments.gpus or {1, min(2, most)})
        if gpus[-1] > most:
            raise UsageError(f"--gpus: {gpus[-1]} is more than the {most} that are here")
        made: dict[int, list[OverheadRun]] = {number: [] for number in gpus}
        total = arguments.runs * len(gpus)
        remark(f"{total} runs of {case.name()} on {here.hardware_label}")

        def drawn() -> str:
            return progress_text("run", sum(map(len, made.values())), total)

        with redrawn(sys.stderr if can_redraw(sys.stderr) else None, drawn):
            for index, number in product(range(1, arguments.runs + 1), gpus):
                plan = ItemPlan(case=case, strategy=case.default_strategy(), gpus=number, run=index)
                request = run_request(plan, here, MeasureOptions())
                timing = replace(request.timing, windows=arguments.pairs)
                request = replace(request, timing=timing, measured_by="overhead:measure_pairs")
                made[number].append(times_of(launcher, request, Path(folder)))
    report = Report(
        configuration=request.configuration,
        environment=here,
        results=tuple(judge_overhead(here.device, number, runs) for number, runs in made.items()),
        wall_s=time.monotonic() - started_s,
    )
    text = report_text(report)
    if arguments.format == "json":
        text = document_text("gpuscale-overhead", **msgspec.to_builtins(report))
    say(text)
    verdicts = {result.verdict for result in report.results}
    if "above" in verdicts:
        return ExitCode.REGRESSED
    return ExitCode.INCONCLUSIVE if "not decided" in verdicts else ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    text = "the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)"
    add("--case", metavar="FILE::CLASS", help=text)
    text = "numbers of GPUs, or of CPU ranks (default: 1,2)"
    add("--gpus", metavar="N,N,…", type=gpu_counts, help=text)
    add_device(parser)
    text = "fresh starts on each number of GPUs (default: 8)"
    add("--runs", metavar="N", type=int, default=8, help=text)
    text = "pairs of windows in each run: one timed by gpuscale, one by a bare loop (default: 40)"
    add("--pairs", metavar="N", type=int, default=40, help=text)
    add("--format", choices=("text", "json"), default="text", help="text (default) or json")
    return parser


def times_of(launcher: Launcher, request: RunRequest, folder: Path) -> OverheadRun:
    """Execute a run, and return the times that its ranks have written into the folder."""
    run = launcher.run(request)
    # Pairs need no single pace: each window is compared only with the bare loop next to it.
    if run.failure is not None and run.failure.kind != "unsteady":
        return run.failure
    node_s = sum(node.cost_s or 0.0 for node in run.nodes)
    left = [_file_of(folder, rank).read_bytes() for rank in range(request.processes)]
    ranks = (msgspec.json.decode(text, type=RankTimes) for text in left)
    return [replace(rank, evidence_s=rank.evidence_s + node_s) for rank in ranks]


def _file_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def judge_overhead(device: str, gpus: int, runs: Sequence[OverheadRun]) -> Overhead:
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
        cut = int(TRIMMED * len(logs))
        means.append(statistics.fmean(sorted(logs)[cut : len(logs) - cut]))
    sample = log_sample(means)
    ratio = difference(sample.mean, [sample.term()]).exponential()
    step_time_s = statistics.median(step_times_s)
    evidence_s = statistics.median(max(rank.evidence_s for rank in run) for run in valid)
    verdict, reason = _verdict(ratio, step_time_s, evidence_s, device)
    return Overhead(
        gpus=gpus,
        runs=len(valid),
        pairs=len(step_times_s),
        step_time_s=step_time_s,
        ratio=ratio,
        evidence_s=evidence_s,
        limit=LIMITS[device][0],
        verdict=verdict,
        reason=reason,
    )


def _verdict(
    ratio: Estimate, step_time_s: float, evidence_s: float, device: str
) -> tuple[Literal["within", "above", "not decided"], str]:
    limit, shortest_s = LIMITS[device]
    if evidence_s > MOST_EVIDENCE_S:
        return "above", f"evidence may take {format_seconds(MOST_EVIDENCE_S)} a run"
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


def report_text(report: Report) -> str:
    """Describe the overhead of measuring, without a final line break."""
    configuration, device = report.configuration, report.configuration.device
    measured = ("runs × pairs", "step, bare", "measured / bare", "limit", "verdict")
    headers = [f"{device_word(device)}s", *measured]
    rows = [
        [
            str(result.gpus),
            f"{result.runs} × {result.pairs // result.runs}",
            format_seconds(result.step_time_s),
            f"{result.ratio.value:.4f} {bounds_text(result.ratio, '{:.4f}'.format)}",
            f"{result.limit:.3f}",
            result.verdict,
        ]
        for result in report.results
    ]
    lines = [
        f"overhead with {configuration.label} ({configuration.size}, {configuration.precision}) on "
        f"{report.environment.hardware_label}\n",
        f"{table(headers, rows, left=('verdict',))}\n",
        "measured: windows as gpuscale makes them; bare: a plain loop",
    ]
    for result in report.results:
        reason = f"; {result.reason}" if result.reason else ""
        lines.append(
            f"{devices_text(device, result.gpus)}: evidence of the node "
            f"{format_seconds(result.evidence_s)} a run outside of windows{reason}"
        )
    lines.append(f"took {format_seconds(report.wall_s)}; intervals: 95 %")
    return "\n".join(lines)


def measure_pairs(
    training: Training, timing: TimingPlan, report: loop.Report, *, pausing: bool, loaders: int
) -> Measurement:
    """Time `timing.windows` windows in turn with a bare loop; write the times of this rank.

    The ranks of a run call this in place of `loop.measure`, whose further arguments do not matter
    here.
    """
    strategy = training.strategy
    step_time_s, warmup_steps = loop.warm_up(training, timing, report)
    marked_every = loop.steps_per_mark(step_time_s, training.clock.events_per_step)
    steps, _ = window_plan(step_time_s, timing, pausing=False)
    sampler = os.environ.get(SAMPLER_VARIABLE) if strategy.rank == 0 else None
    sampler_pid = int(sampler) if sampler else None
    pairs, windows = [], []
    for number in range(timing.windows):
        if number % 2:
            bare_s = _bare_s(training, steps, sampler_pid)
        # Time from a common start to the end of a window, with a barrier and progress report.
        training.synchronize()
        strategy.barrier()
        opened = time.perf_counter()
        report("pair", number, timing.windows)
        windows.append(loop.timed_window(training, steps, marked_every=marked_every))
        measured_s = time.perf_counter() - opened
        if not number % 2:
            # The order alternates, so that a drift of the machine cancels.
            bare_s = _bare_s(training, steps, sampler_pid)
        pairs.append(Pair(measured_s=measured_s, bare_s=bare_s))
    began_s = time.monotonic()
    # Time the calls with which a rank of an ordinary run collects evidence.
    own_software()
    evidence_s = time.monotonic() - began_s
    times = RankTimes(steps_per_window=steps, pairs=tuple(pairs), evidence_s=evidence_s)
    file = _file_of(Path(os.environ[FOLDER_VARIABLE]), strategy.rank)
    file.write_bytes(msgspec.json.encode(times))
    return Measurement(
        warmup_steps=warmup_steps, warmup_s=0.0, steps_per_window=steps, windows=tuple(windows)
    )


def bare_loop(training: Training, steps: int) -> None:
    """Run fp32 training steps with the model and batches of a case, without measuring anything."""
    case, model, optimizer = training.case, training.forward_model, training.optimizer
    device, memory_format = training.strategy.device, training.memory_format
    for _ in range(steps):
        inputs, targets = on_device(next(training.batches), device, memory_format)
        optimizer.zero_grad(set_to_none=True)
        loss = case.loss(case.forward(model, inputs), targets)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _bare_s(training: Training, steps: int, sampler_pid: int | None) -> float:
    """Return the seconds that training steps take in a loop without gpuscale's measurements.

    The time includes a barrier, like the time of the window with which it is compared.
    """
    training.synchronize()
    with paused(sampler_pid):
        training.strategy.barrier()
        opened = time.perf_counter()
        training.strategy.barrier()
        bare_loop(training, steps)
        return time.perf_counter() - opened


@contextlib.contextmanager
def paused(pid: int | None) -> Iterator[None]:
    """Suspend the process `pid`, unless it is None, while the context lasts."""
    if pid is None:
        yield
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GpuscaleError as error:
        remark(str(error))
        sys.exit(ExitCode.USAGE)
