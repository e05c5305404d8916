"""`gpuscale selftest`: gpuscale tried on this machine."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec

from gpuscale.cases import TrainingCase
from gpuscale.cli.inputs import gpu_counts
from gpuscale.cli.progress import counted_progress
from gpuscale.errors import ExitCode, UsageError
from gpuscale.launch.local import LocalLauncher
from gpuscale.launch.termination import RunTerminated
from gpuscale.records import OverheadReport, TrialsReport
from gpuscale.report.selftest_text import overhead_text, trials_text
from gpuscale.selftest import overhead, trials
from gpuscale.selftest.case_choice import case_request, load_case_class, numbers_of_gpus
from gpuscale.selftest.plan import RUNS_PER_BLOCK, blocks, possible_faults
from gpuscale.units import format_seconds

_PROMISED_ALARMS = 0.01
_FEWEST_RUNS = 2


class _Machine:
    """What is tried: a case on some numbers of GPUs of this machine."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.launcher = LocalLauncher(device=arguments.device)
        self.environment = self.launcher.environment
        asked = None if arguments.gpus is None else tuple(sorted(gpu_counts(arguments.gpus)))
        self.gpus = numbers_of_gpus(asked, self.environment)
        self.case: type[TrainingCase] = load_case_class(arguments.case, self.environment.device)

    def announce(self, runs: int, about_s: float) -> None:
        """Say what is going to be made, and how long it takes."""
        sys.stderr.write(
            f"{runs} runs of {self.case.name()} on {self.environment.hardware_label}; "
            f"this takes about {format_seconds(about_s)}\n"
        )
        sys.stderr.flush()


def run_overhead(arguments: argparse.Namespace) -> int:
    """Measure the overhead and print it: 0 within the limit, 1 above it, 3 not decided."""
    _refuse_fewer(arguments.runs, "--runs", _FEWEST_RUNS)
    machine = _Machine(arguments)
    about_s = overhead.expected_s(
        machine.environment.device, runs=arguments.runs, gpus=len(machine.gpus)
    )
    total = arguments.runs * len(machine.gpus)
    machine.announce(total, about_s)
    try:
        with counted_progress(sys.stderr, total, machine.launcher.progress) as progress:
            report = _measured_overhead(machine, arguments.runs, progress.advance)
    except RunTerminated as terminated:
        return 128 + terminated.number
    _write(arguments.format, "overhead", report, overhead_text)
    return _overhead_code(report)


def run_trials(arguments: argparse.Namespace) -> int:
    """Try false alarms, faults and overhead, and print them."""
    for option in ("pairs", "trials"):
        _refuse_fewer(getattr(arguments, option), f"--{option}", 1)
    _refuse_fewer(arguments.runs, "--runs", _FEWEST_RUNS)
    machine = _Machine(arguments)
    first = case_request(machine.case, machine.environment, gpus=max(machine.gpus), run=1)
    faults, not_tried = possible_faults(first.configuration, machine.gpus)
    plan = list(blocks(faults, pairs=arguments.pairs, trials=arguments.trials))
    device, gpus = machine.environment.device, len(machine.gpus)
    total = (len(plan) * RUNS_PER_BLOCK + arguments.runs) * gpus
    machine.announce(
        total,
        trials.expected_s(device, blocks=len(plan), gpus=gpus)
        + overhead.expected_s(device, runs=arguments.runs, gpus=gpus),
    )
    try:
        with counted_progress(sys.stderr, total, machine.launcher.progress) as progress:
            tried = trials.Trials(
                machine.launcher, machine.case, machine.gpus, after_run=progress.advance
            )
            for block in plan:
                tried.make(block)
            measured = _measured_overhead(machine, arguments.runs, progress.advance)
    except RunTerminated as terminated:
        return 128 + terminated.number
    report = replace(tried.report(faults, not_tried), overhead=measured)
    _write(arguments.format, "trials", report, trials_text)
    return _trials_code(report, measured)


def _refuse_fewer(number: int, option: str, fewest: int) -> None:
    if number < fewest:
        raise UsageError(f"{option}: {number} is too few; give at least {fewest}")


def _measured_overhead(
    machine: _Machine, runs: int, after_run: Callable[[], None]
) -> OverheadReport:
    return overhead.measure_overhead(
        machine.launcher, machine.case, gpus=machine.gpus, runs=runs, after_run=after_run
    )


def _write(
    form: str,
    kind: str,
    report: OverheadReport | TrialsReport,
    as_text: Callable[..., str],
) -> None:
    if form == "json":
        head = {"format": f"gpuscale-selftest-{kind}", "version": 1}
        text = json.dumps(
            {**head, **msgspec.to_builtins(report)}, indent=2, ensure_ascii=False, allow_nan=False
        )
    else:
        text = as_text(report)
    sys.stdout.write(f"{text}\n")


def _overhead_code(report: OverheadReport) -> int:
    verdicts = {result.verdict for result in report.results}
    if "above" in verdicts:
        return 1
    return ExitCode.INCONCLUSIVE if "not decided" in verdicts else ExitCode.OK


def _trials_code(report: TrialsReport, measured: OverheadReport) -> int:
    """1 where more alarms were false than the promised rate gives by chance."""
    alarms = report.false_alarms
    if alarms is None:
        return ExitCode.NOTHING_COMPARABLE
    if alarms.rate.low is not None and alarms.rate.low > _PROMISED_ALARMS:
        return 1
    return _overhead_code(measured)
