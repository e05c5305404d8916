"""`gpuscale run`: measure a training script or benchmark command without changing it."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscale.base.errors import CaseError, UsageError
from gpuscale.base.text import joined
from gpuscale.cli.inputs import direction
from gpuscale.plugin.option_types import words_for_pytest
from gpuscale.plugin.options import OPTIONS, MeasureOptions, parse_options
from gpuscale.records import Environment
from gpuscale.workload import command_case
from gpuscale.workload.printed_figures import KNOWN_FIGURES

_SCRIPT_ENDINGS = (".py", ".sh")
_OF_CASES = ("--strategy", "--size", "--data-root")
_OPTIONS = [
    option for option in OPTIONS.values() if not option.in_training and option.flag not in _OF_CASES
]
"""Options that gpuscale adds to pytest and that also apply to commands."""
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(f"{{{name}}}" for name in command_case.PLACEHOLDERS)
    parser.usage = "gpuscale run --gpus N,N,… [options] -- COMMAND …"
    parser.description = (
        "Measure an unchanged training script by the lines that it prints; speedup, telemetry "
        f"and verdict are those of any case. Each run starts COMMAND with {names} filled in."
    )
    add = parser.add_argument
    add("--name", metavar="NAME", help="name of the case (default: that of the script)")
    text = "number of samples in a step over all GPUs, if it is the same on any number of GPUs"
    add("--samples-per-step", dest="global_batch", metavar="N", type=int, help=text)
    text = "format of the lines that the command prints (default: detected)"
    add("--log-format", metavar="FORMAT", help=text)
    text = "a format of your own: a regular expression with a group 'step'"
    add("--step-regex", metavar="REGEX", help=text)
    text = (
        "instead of steps, measure figures that the command prints: a regular expression with a "
        f"named group for each figure, or {', '.join(KNOWN_FIGURES)}"
    )
    add("--figure", metavar="REGEX", help=text)
    text = "whether more or less of a figure is better, if the unit in its name does not say so"
    add("--better", metavar="METRIC=more|less", type=direction, action="append", help=text)
    text = "for a figure that is a time: the same work on each GPU (weak), or in all (strong)"
    add("--scaling", choices=("weak", "strong"), help=text)
    text = "start it for each rank (also: torchrun), on each node, or once; plain (default) chooses"
    add("--launch", choices=command_case.LAUNCHES, default="plain", help=text)
    for option in _OPTIONS:
        add(option.flag, **option.settings())
    add("words", metavar="COMMAND", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.gpus is None:
        raise UsageError("give the numbers of GPUs, e.g. --gpus 1,2")
    options = parse_options(vars(arguments))
    if options.batches and arguments.global_batch:
        raise UsageError("--batch and --samples-per-step both set the batch; leave out one")
    case = _case(arguments, options)
    words = words_for_pytest(_OPTIONS, vars(arguments))
    # Imported here, since it is slow, and mistyped options should fail at once.
    from gpuscale.plugin.items import measured_in_session

    return measured_in_session(case, words)


def _case(arguments: argparse.Namespace, options: MeasureOptions) -> type[command_case.CommandCase]:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise UsageError("there is no command; give one after --, such as -- python train.py")
    name = arguments.name or name_of_command(words)
    attributes: dict[str, Any] = {
        "name": classmethod(lambda cls: name),
        "__module__": __name__,
        "command": joined(words),
        "batch": next(iter(options.batches or ()), None),
        "global_batch": arguments.global_batch,
        "launch": arguments.launch,
        "log_format": arguments.log_format,
        "step_regex": arguments.step_regex,
        "figure": arguments.figure,
        "better": dict(arguments.better or ()),
        "scaling": arguments.scaling,
    }
    case: type[command_case.CommandCase] = type("Command", (command_case.CommandCase,), attributes)
    try:
        command_case.validate_command(case)
        # Validate all counts now, not after others have been measured for hours.
        for number in options.gpus:
            for batch in options.batches or (None,):
                case.batch_per_gpu(number, batch)
        if options.launcher == "local":
            # The session detects the actual GPUs later.
            here = Environment(device="cpu" if options.device == "cpu" else "cuda")
            command_case.validate_scaling(case, {*options.gpus}, here)
    except CaseError as error:
        raise UsageError(str(error)) from None
    return case


def name_of_command(words: Sequence[str]) -> str:
    """Return the first script's name, else the program's; raise UsageError if that is a shell."""
    parts = (part for word in words for part in re.split(r"[\s;|&()'\"]+", word))
    scripts = (Path(part).stem for part in parts if part.endswith(_SCRIPT_ENDINGS))
    program = Path(words[0]).name
    name = next(scripts, program)
    if name == program and program in _SHELLS:
        raise UsageError(f"{program} starts no script ending in .py or .sh; give the case a --name")
    return name
