"""`gpuscale batch`: find the largest batch size of a case that fits into GPU memory."""

import argparse
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, GpuscaleError, UsageError
from gpuscale.base.host import is_gpu
from gpuscale.base.known_error_messages import NO_ENGINE
from gpuscale.base.text import format_bytes, parse_count
from gpuscale.cli.inputs import say
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.plugin.items import ItemPlan, skip_reason
from gpuscale.plugin.options import OPTIONS, MeasureOptions, parse_options
from gpuscale.plugin.requests import run_request, validate_precision
from gpuscale.records import Environment, Run, RunRequest, TimingPlan
from gpuscale.reports.phrases import configurations_text, devices_text
from gpuscale.workload.cases import TrainingCase, case_class

_FEW_STEPS = TimingPlan(warmup_steps=1, warmup_s=0.0, windows=2, window_s=1e-3, run_seconds=1e-3)
_OPTIONS = [OPTIONS[name] for name in ("strategies", "size", "precision", "device")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the largest batch of a case that fits into the memory of GPUs. New ranks train a few "
        "steps with each power of two, then with batches between the last two; a batch must fit on "
        "every rank."
    )
    parser.epilog = "Exit codes: 0 found, 2 wrong usage, or the case fails for another reason."
    add = parser.add_argument
    add("case", metavar="FILE[::CLASS]", help="the case; with its class if the file has several")
    add("--gpus", metavar="N", type=parse_count, default=1, help="number of GPUs (default: 1)")
    for option in _OPTIONS:
        add(option.flag, **option.settings())


def run(arguments: argparse.Namespace) -> int:
    case = case_class(arguments.case)
    options = parse_options({option.dest: vars(arguments)[option.dest] for option in _OPTIONS})
    launcher = Launcher(device=options.device, folder=Path.cwd())
    environment = launcher.environment
    plan = _plan(case, arguments.gpus, options, environment)

    def request(batch: int | None) -> RunRequest:
        asked = run_request(replace(plan, batch=batch), environment, options)
        return replace(asked, timing=_FEW_STEPS)

    def does_fit(batch: int, fitted: int) -> bool:
        made = launcher.run(request(batch))
        fits = has_fitted(made, batch, fitted)
        outcome = "out of memory"
        if fits:
            peak_bytes = max((rank.peak_memory_bytes or 0 for rank in made.ranks), default=0)
            outcome = f"fits, peak {format_bytes(peak_bytes)}"
        say(f"batch {batch:>6}  {outcome}")
        return fits

    first = request(None)
    say(f"{first.label}: {configurations_text([first.configuration])}")
    strong = case.scaling == "strong"
    largest = largest_batch(
        does_fit,
        first=case().named_size(first.configuration.size).batch,
        unit=plan.gpus if strong else 1,
        most=case.training_samples if strong else case.training_samples // plan.gpus,
    )
    if not largest:
        raise UsageError(f"{first.label}: not even the smallest batch fits into memory")
    devices = devices_text(first.configuration.device, plan.gpus)
    say(
        f"the largest batch that fits on {devices} is {largest} "
        f"{'over all' if strong else 'on each'}; measure at it with --batch {largest}"
    )
    return ExitCode.OK


def _plan(
    case: type[TrainingCase], gpus: int, options: MeasureOptions, environment: Environment
) -> ItemPlan:
    if not is_gpu(environment.device):
        # CPU ranks would fill the host's memory, so the kernel might kill other processes.
        raise UsageError("gpuscale batch fills the memory of GPUs, and no GPU can be used here")
    validate_precision(options, environment)
    if options.strategies and not set(options.strategies) <= set(case.strategies):
        known = ", ".join(case.strategies)
        raise UsageError(f"--strategy {','.join(options.strategies)}: {case.name()} has {known}")
    strategy, *_ = options.strategies or (case.default_strategy(),)
    plan = ItemPlan(case=case, strategy=strategy, gpus=gpus, run=1)
    if reason := skip_reason(plan, environment, options):
        raise UsageError(reason.removesuffix(" (--oversubscribe measures all the same)"))
    return plan


def largest_batch(does_fit: Callable[[int, int], bool], *, first: int, unit: int, most: int) -> int:
    """Return the largest multiple of `unit` up to `most` that fits into memory; 0 if none fits.

    `does_fit` takes a batch and the largest that has fitted so far; the search begins near `first`.
    """
    fitted, too_large = 0, most // unit + 1
    number = min(_power_of_two(max(1, first // unit)), too_large - 1)
    while too_large - fitted > 1:
        if does_fit(number * unit, fitted * unit):
            fitted = number
        else:
            too_large = number
        if fitted == 0:
            number = _power_of_two(max(1, too_large - 1))
        elif too_large > most // unit:
            number = min(2 * fitted, most // unit)
        else:
            number = (fitted + too_large) // 2
    return fitted * unit


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def has_fitted(run: Run, batch: int, fitted: int) -> bool:
    """True if `batch` fits, False if out of memory, else raise; `fitted` is the largest so far."""
    failure = run.failure
    if failure is None or failure.kind == "unsteady":
        return True
    # If a smaller batch has fitted, no cuDNN engine works now for lack of memory.
    if failure.kind == "out_of_memory" or (fitted and NO_ENGINE.search(failure.message)):
        return False
    until = f", after {fitted} had fitted" if fitted else ""
    raise GpuscaleError(
        f"a batch of {batch}{until}: {failure.message}; details: pytest … --runs 1 --batch {batch}"
    )
