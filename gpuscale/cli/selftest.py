"""`gpuscale selftest`: measure false alarms, missed faults and overhead on this machine."""

import argparse
import sys
from pathlib import Path

import msgspec

from gpuscale.base.devices import GPU_KINDS
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.units import counted, format_seconds
from gpuscale.campaigns import trials
from gpuscale.cli.inputs import add_device, add_text_or_json, case_class, gpu_counts, remark
from gpuscale.measure.launch.local import LocalLauncher
from gpuscale.records import Environment
from gpuscale.records.json_text import document_text
from gpuscale.records.trial_report import OverheadReport, TrialsReport
from gpuscale.reports.machine_text import overhead_text, trials_text
from gpuscale.reports.screen import can_redraw, progress_text, redrawn
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.run_defaults import TIMING_PLANS, default_request

_DEFAULT_CASES = {
    **dict.fromkeys(GPU_KINDS, "bench_cases/test_resnet50.py::Resnet50"),
    "cpu": "bench_cases/test_mnist_cnn.py::MnistCnn",
}
_PROMISED_ALARMS = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Test gpuscale itself: identical measurements on this machine must raise no alarm, "
        "injected faults must be found, and measuring must cost little."
    )
    parser.epilog = (
        "Exit codes: 0 gpuscale keeps its promises, 1 it does not, 2 usage, 3 not decided, "
        "4 nothing could be judged."
    )
    add = parser.add_argument
    text = "measure only the overhead: gpuscale's windows in turn with a bare training loop"
    add("--overhead", action="store_true", help=text)
    text = "the case to train (default: ResNet-50 of bench_cases on GPUs, mnist_cnn on CPU)"
    add("--case", metavar="FILE::CLASS", help=text)
    add("--gpus", metavar="N,N,…", help="numbers of GPUs, or of CPU ranks (default: 1,2)")
    add_device(parser)
    for option, default, what in (
        ("--runs", 8, "fresh starts on each number of GPUs, for the overhead"),
        ("--pairs", 10, "identical measurements, each compared with those before it"),
        ("--trials", 5, "trials of each fault at each size"),
    ):
        text = f"{what} (default: {default})"
        add(option, metavar="N", type=int, default=default, help=text)
    add_text_or_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Count false alarms and missed faults (not with --overhead), then measure the overhead."""
    fewest = {"runs": 2} if arguments.overhead else {"pairs": 1, "trials": 1, "runs": 2}
    for option, least in fewest.items():
        if (number := getattr(arguments, option)) < least:
            raise UsageError(f"--{option}: {number} is too few; give at least {least}")
    launcher = LocalLauncher(device=arguments.device)
    here, runs = launcher.environment, arguments.runs
    gpus = _numbers_of_gpus(arguments.gpus, here)
    case = load_case_class(arguments.case, here.device)
    configuration = default_request(case, here, gpus=max(gpus), run=1).configuration
    faults, not_tried = trials.possible_faults(configuration, gpus)
    planned = trials.blocks(faults, pairs=arguments.pairs, trials=arguments.trials)
    plan = [] if arguments.overhead else list(planned)
    total = (len(plan) * trials.RUNS_PER_BLOCK + runs) * len(gpus)
    timing = TIMING_PLANS[here.device]
    # An estimate for short steps.
    run_s = 1.5 + timing.warmup_s + min(timing.run_seconds, timing.most_windows_s)
    overhead_run_s = 3.0 + timing.warmup_s + 2 * trials.OVERHEAD_PAIRS * timing.window_s
    about_s = len(gpus) * (len(plan) * trials.RUNS_PER_BLOCK * run_s + runs * overhead_run_s)
    about = format_seconds(about_s)
    remark(f"{total} runs of {case.name()} on {here.hardware_label}; this takes about {about}")
    tried = trials.Trials(launcher.run, case, here, gpus)

    def drawn() -> str:
        stage = launcher.progress()
        inside = "" if stage is None else f", {stage[0]} {stage[1]}/{stage[2]}"
        return progress_text("run", tried.runs_made, total) + inside

    with redrawn(sys.stderr if can_redraw(sys.stderr) else None, drawn):
        for fault in plan:
            tried.make(fault)
        measured = tried.measure_overhead(launcher.compare_with_bare_loop, runs)
    if arguments.overhead:
        _write(arguments.format, "overhead", measured, overhead_text(measured))
        return _overhead_code(measured)
    report = tried.report(faults, not_tried, measured)
    _write(arguments.format, "trials", report, trials_text(report))
    alarms = report.false_alarms
    if alarms is None:
        return ExitCode.NOTHING_COMPARABLE
    if alarms.rate.low is not None and alarms.rate.low > _PROMISED_ALARMS:
        # More than chance explains at the promised rate.
        return 1
    return _overhead_code(measured)


def load_case_class(text: str | None, device: str) -> type[TrainingCase]:
    """Return the case given as `FILE::Class`; by default, a case that suits the device."""
    default = _DEFAULT_CASES[device]
    file = default.partition("::")[0]
    if text is None and not Path(file).is_file():
        raise UsageError(
            f"there is no {file} here; go to the folder that has bench_cases ('gpuscale init "
            "DIR' makes one), or name a case of your own with --case FILE::Class"
        )
    return case_class(text or default)


def _numbers_of_gpus(asked: str | None, environment: Environment) -> tuple[int, ...]:
    """Return the numbers of GPUs or CPU ranks to test: by default 1, and also 2 if available."""
    on_cpu = environment.device == "cpu"
    here = (environment.cpu_count or 1) if on_cpu else len(environment.gpus)
    if asked is None:
        return tuple(gpus for gpus in (1, 2) if gpus <= here)
    counts = tuple(sorted(gpu_counts(asked)))
    if counts[-1] > here:
        found = counted(here, "CPU core" if on_cpu else "GPU")
        raise UsageError(
            f"--gpus: {counts[-1]} is more than there are here ({found}); leave it out"
        )
    return counts


def _write(form: str, kind: str, report: OverheadReport | TrialsReport, text: str) -> None:
    if form == "json":
        text = document_text(f"gpuscale-selftest-{kind}", **msgspec.to_builtins(report))
    sys.stdout.write(f"{text}\n")


def _overhead_code(report: OverheadReport) -> int:
    verdicts = {result.verdict for result in report.results}
    if "above" in verdicts:
        return 1
    return ExitCode.INCONCLUSIVE if "not decided" in verdicts else ExitCode.OK
