"""`gpuscale selftest`: gpuscale tried on this machine."""

import argparse
import json
import sys

import msgspec

from gpuscale.cli.inputs import gpu_counts
from gpuscale.errors import ExitCode, UsageError
from gpuscale.launch import RunTerminated
from gpuscale.launch.local import LocalLauncher
from gpuscale.records import OverheadReport, TrialsReport
from gpuscale.report.machine_text import overhead_text, trials_text
from gpuscale.report.screen import counted_runs
from gpuscale.selftest.overhead import measure_overhead
from gpuscale.selftest.plan import (
    RUNS_PER_BLOCK,
    blocks,
    case_request,
    expected_s,
    load_case_class,
    numbers_of_gpus,
    possible_faults,
)
from gpuscale.selftest.trials import Trials
from gpuscale.units import format_seconds

_PROMISED_ALARMS = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Try gpuscale itself. Without --overhead: identical measurements on this machine must "
        "raise no alarm, faults made on purpose must be found, and then the overhead is "
        "measured as with --overhead."
    )
    parser.epilog = (
        "Exit codes: 0 gpuscale holds what it says, 1 it does not, 2 usage, 3 not decided, "
        "4 nothing could be judged."
    )
    parser.add_argument(
        "--overhead",
        action="store_true",
        help="only what measuring costs: gpuscale's windows in turn with a bare training loop",
    )
    parser.add_argument(
        "--case",
        metavar="FILE::CLASS",
        help="the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)",
    )
    parser.add_argument(
        "--gpus", metavar="N,N,…", help="numbers of GPUs, or of CPU ranks (default: 1,2)"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto (default: CUDA where there is one), cuda or cpu",
    )
    for option, default, what in (
        ("--runs", 8, "of the overhead: fresh starts on each number of GPUs"),
        ("--pairs", 10, "identical measurements that are compared with those before them"),
        ("--trials", 5, "of each fault at each size"),
    ):
        words = f"{what} (default: {default})"
        parser.add_argument(option, metavar="N", type=int, default=default, help=words)
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )


def run(arguments: argparse.Namespace) -> int:
    """Try false alarms and faults, unless only the overhead is asked for, and the overhead."""
    fewest = {"runs": 2} if arguments.overhead else {"pairs": 1, "trials": 1, "runs": 2}
    for option, least in fewest.items():
        if (number := getattr(arguments, option)) < least:
            raise UsageError(f"--{option}: {number} is too few; give at least {least}")
    launcher = LocalLauncher(device=arguments.device)
    here, runs = launcher.environment, arguments.runs
    gpus = numbers_of_gpus(None if arguments.gpus is None else gpu_counts(arguments.gpus), here)
    case = load_case_class(arguments.case, here.device)
    first = case_request(case, here, gpus=max(gpus), run=1)
    faults, not_tried = possible_faults(first.configuration, gpus)
    plan = list(blocks(faults, pairs=arguments.pairs, trials=arguments.trials))
    if arguments.overhead:
        plan = []
    total = (len(plan) * RUNS_PER_BLOCK + runs) * len(gpus)
    about_s = expected_s(here.device, blocks=len(plan), overhead_runs=runs, gpus=len(gpus))
    sys.stderr.write(
        f"{total} runs of {case.name()} on {here.hardware_label}; "
        f"this takes about {format_seconds(about_s)}\n"
    )
    sys.stderr.flush()
    try:
        with counted_runs(sys.stderr, total, launcher.progress) as advance:
            tried = Trials(launcher.run, case, here, gpus, after_run=advance)
            for fault in plan:
                tried.make(fault)
            measured = measure_overhead(
                launcher.compare_with_bare_loop, case, here, gpus, runs, after_run=advance
            )
    except RunTerminated as terminated:
        return 128 + terminated.number
    if arguments.overhead:
        _write(arguments.format, "overhead", measured, overhead_text(measured))
        return _overhead_code(measured)
    report = tried.report(faults, not_tried, measured)
    _write(arguments.format, "trials", report, trials_text(report))
    return _trials_code(report)


def _write(form: str, kind: str, report: OverheadReport | TrialsReport, text: str) -> None:
    if form == "json":
        head = {"format": f"gpuscale-selftest-{kind}", "version": 1}
        document = {**head, **msgspec.to_builtins(report)}
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(f"{text}\n")


def _overhead_code(report: OverheadReport) -> int:
    verdicts = {result.verdict for result in report.results}
    if "above" in verdicts:
        return 1
    return ExitCode.INCONCLUSIVE if "not decided" in verdicts else ExitCode.OK


def _trials_code(report: TrialsReport) -> int:
    """1 where more alarms were false than the promised rate gives by chance."""
    alarms = report.false_alarms
    if alarms is None:
        return ExitCode.NOTHING_COMPARABLE
    if alarms.rate.low is not None and alarms.rate.low > _PROMISED_ALARMS:
        return 1
    return _overhead_code(report.overhead)
