"""`gpuscale batch`: find the largest batch of a case that fits into memory."""

import argparse
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import get_args

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.base.units import counted, format_bytes, format_seconds
from gpuscale.cli.inputs import add_device, add_text_or_json, case_class
from gpuscale.measure.largest_batch import FEW_STEPS, Try, tries
from gpuscale.measure.launch.local import LocalLauncher
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import parse_options
from gpuscale.plugin.requests import run_request, skip_reason, validate_precision
from gpuscale.records import Run, RunRequest
from gpuscale.records.configuration import Precision
from gpuscale.records.json_text import document_text
from gpuscale.reports.phrases import UNKNOWN, configuration_text, gpus_text
from gpuscale.reports.screen import can_redraw, progress_text, redrawn
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.run_defaults import default_strategy

_SIZE = re.compile(r"(\d+)\s*([KMGT]i?B)", re.IGNORECASE)
_UNITS = "KMGT"
_OF_PYTEST = ("strategy", "size", "precision", "device")
"""Options that mean the same as the options of the same names that gpuscale adds to pytest."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the largest batch of a case that fits into memory: powers of two, then exactly, "
        "each tried by a few steps in fresh ranks. It must fit on every rank."
    )
    parser.epilog = "Exit codes: 0 found, 2 usage, or the case fails for another reason."
    add = parser.add_argument
    add("case", metavar="FILE[::CLASS]", help="the case; with its class if the file has several")
    add("--gpus", metavar="N", type=int, default=1, help="GPUs, or CPU ranks (default: 1)")
    add("--strategy", metavar="S", help="one of the case's (default: one with a rank for each GPU)")
    add("--size", metavar="NAME", help="full (default on GPUs), smoke (on CPU) or one of the case")
    add("--precision", choices=get_args(Precision), default="fp32", help="default: fp32")
    add_device(parser)
    text = "for CPU ranks: memory that each may take beyond what its start needs, such as 2GiB"
    add("--memory-limit", metavar="SIZE", help=text)
    add_text_or_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Search for the largest batch that fits, and print a line for each attempt."""
    started = time.monotonic()
    case = case_class(arguments.case)
    launcher = LocalLauncher(device=arguments.device)
    first = _request(arguments, case, launcher, None)
    size = case().named_size(first.configuration.size)
    strong = case.scaling == "strong"
    samples = case.training_samples
    made: list[Try] = []

    def make_run(batch: int) -> Run:
        number = f"try {len(made) + 1}, batch {batch}"

        def drawn() -> str:
            stage = launcher.progress()
            return number if stage is None else f"{number}: {progress_text(*stage)}"

        with redrawn(sys.stderr if can_redraw(sys.stderr) else None, drawn):
            return launcher.run(_request(arguments, case, launcher, batch))

    limit = arguments.memory_limit
    # A peak is resident memory with that of the start, so it may exceed the limit.
    each_has = f", {limit} of address space each beyond its start; peaks: with it" if limit else ""
    _say(arguments, f"{first.key.label}: {configuration_text(first.configuration)}{each_has}")
    for attempt in tries(
        make_run,
        first=size.batch,
        unit=arguments.gpus if strong else 1,
        most=samples if strong else samples // arguments.gpus,
    ):
        made.append(attempt)
        _say(arguments, _line(attempt))
    fitting = [attempt.batch for attempt in made if attempt.fits]
    if not fitting:
        raise UsageError(f"{first.key.label}: not even the smallest batch fits into memory")
    _conclude(arguments, first, max(fitting), made, time.monotonic() - started)
    return ExitCode.OK


def _request(
    arguments: argparse.Namespace,
    case: type[TrainingCase],
    launcher: LocalLauncher,
    batch: int | None,
) -> RunRequest:
    """Return the request for one attempt; raise a UsageError if the options rule it out."""
    environment = launcher.environment
    on_cpu = environment.device == "cpu"
    if on_cpu != (arguments.memory_limit is not None):
        remedy = "give what each rank may take, such as 2GiB" if on_cpu else "leave it out on GPUs"
        raise UsageError(f"--memory-limit is for CPU ranks: {remedy}")
    given = vars(arguments)
    options = parse_options({name: given[name] for name in ("gpus", *_OF_PYTEST)})
    validate_precision(options, environment)
    if options.strategies and not set(options.strategies) <= set(case.strategies):
        known = ", ".join(case.strategies)
        raise UsageError(f"--strategy {arguments.strategy}: {case.name()} has {known}")
    (gpus,), (strategy, *_) = options.gpus, options.strategies or (default_strategy(case),)
    plan = ItemPlan(case=case, strategy=strategy, gpus=gpus, run=1, batch=batch)
    if reason := skip_reason(plan, environment, options):
        raise UsageError(reason.removesuffix(" (--oversubscribe measures all the same)"))
    limit = _bytes(arguments.memory_limit) if on_cpu else None
    request = run_request(plan, environment, options)
    return replace(request, timing=FEW_STEPS, memory_limit_bytes=limit)


def _bytes(text: str) -> int:
    size = _SIZE.fullmatch(text.strip())
    if size is None:
        raise UsageError(f"--memory-limit: '{text}' is not a size such as 400MiB or 2GiB")
    amount: int = int(size[1]) * 1024 ** (_UNITS.index(size[2][0].upper()) + 1)
    return amount


def _line(attempt: Try) -> str:
    peak = UNKNOWN if attempt.peak_memory_bytes is None else format_bytes(attempt.peak_memory_bytes)
    rank = f"out of memory on rank {attempt.failed_rank}"
    took = "" if attempt.wall_s is None else format_seconds(attempt.wall_s)
    return f"batch {attempt.batch:>6}  {f'fits, peak {peak}' if attempt.fits else rank:<26}  {took}"


def _say(arguments: argparse.Namespace, line: str) -> None:
    """Print a line at once, unless the output is JSON."""
    if arguments.format == "text":
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _conclude(
    arguments: argparse.Namespace, first: RunRequest, batch: int, made: Sequence[Try], took_s: float
) -> None:
    options = [
        f"--{name} {value}"
        for name in _OF_PYTEST
        if (value := getattr(arguments, name)) not in (None, "auto", "fp32")
    ]
    # Under strong scaling the batch of all GPUs may not fit on one.
    strong = first.configuration.scaling == "strong"
    gpus = f"{arguments.gpus}" if strong or arguments.gpus == 1 else f"1,{arguments.gpus}"
    file = shlex.quote(arguments.case.partition("::")[0])
    command = f"pytest {file} --gpus {gpus} {' '.join([*options, f'--batch {batch}'])}"
    if arguments.format == "json":
        text = document_text(
            "gpuscale-batch",
            configuration=first.configuration,
            gpus=arguments.gpus,
            batch=batch,
            tries=made,
            command=command,
        )
        sys.stdout.write(f"{text}\n")
    of = "over all GPUs" if strong else "per GPU"
    _say(
        arguments,
        f"the largest batch that fits on {gpus_text(arguments.gpus)} is {batch} {of} "
        f"({counted(len(made), 'try')} in {format_seconds(took_s)}); measure at it with\n"
        f"    {command}",
    )
