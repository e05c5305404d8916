"""`gpuscale baseline import`: a table that people keep by hand becomes published figures."""

import argparse
import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuscale.cli.baseline import add_output, new_baseline
from gpuscale.errors import ExitCode
from gpuscale.records import Baseline, Hardware, Source
from gpuscale.store import write_baseline
from gpuscale.store.files import read_with
from gpuscale.store.table import TableDefaults, figures_from_table

_R = TypeVar("_R", bound=msgspec.Struct)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Make a baseline of published figures from a table: a column of GPUs ('gpus' or 'n') "
        "and one of times or throughput, as CSV or in Markdown (docs/baselines.md). The "
        "options say what the table does not."
    )
    add = parser.add_argument
    add("table", metavar="TABLE", help="a .csv or .md file")
    add_output(parser)
    text = "where the figures come from"
    add("--source", dest="title", metavar="TEXT", required=True, help=text)
    add("--url", help="where that can be read")
    add("--published", metavar="DATE", help="when it was published")
    add("--note", metavar="TEXT", help="what a reader must know of the figures")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--gpu-name", metavar="NAME", help="the model of the GPUs, such as V100")
    add("--gpus-per-node", metavar="N", type=int, help="GPUs of each node")
    add("--cpu-model", metavar="NAME", help="the model of the CPUs")
    add("--case", help="the case of rows that do not name theirs")
    add("--strategy", help="their strategy, such as ddp")
    add("--batch-per-gpu", metavar="N", type=int, help="their batch per GPU")
    text = "their nodes (default: by --gpus-per-node, else 1)"
    add("--nodes", metavar="N", type=int, help=text)
    add("--timed", choices=("job", "training_loop", "epoch"), help="what the times span")
    text = "how many first times of each row the source leaves out (default: 0)"
    add("--discard-first", metavar="N", type=int, default=0, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Write the baseline file and say what is in it."""
    output, name = new_baseline(arguments)
    hardware = _asked_for(Hardware, arguments)
    defaults = _asked_for(TableDefaults, arguments)
    figures, left_out = read_with(
        Path(arguments.table), lambda text: figures_from_table(text, defaults, hardware)
    )
    baseline = Baseline(
        name=name,
        cluster=arguments.cluster,
        hardware=hardware,
        published=figures,
        source=_asked_for(Source, arguments),
    )
    write_baseline(output, baseline)
    count = "1 published figure" if len(figures) == 1 else f"{len(figures)} published figures"
    sys.stdout.write(f"{output}: {count}\n")
    if left_out:
        names = ", ".join(f"'{header}'" for header in left_out)
        sys.stdout.write(f"note: left out, since it follows from the figures: {names}\n")
    return ExitCode.OK


def _asked_for(record: type[_R], arguments: argparse.Namespace) -> _R:
    """The record whose every field is an option of its name."""
    return record(**{name: getattr(arguments, name) for name in record.__struct_fields__})
