"""`gpuscale doctor`: what this machine offers for measuring, what it lacks, and what is wrong."""

import argparse
import json
import sys
from typing import Any

import msgspec

from gpuscale.launch import ACROSS_NODES
from gpuscale.telemetry.doctor import Machine, examine, find_problems
from gpuscale.telemetry.fields import MOMENTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = (
        "Look at this machine, GPU by GPU: which telemetry it offers, the state of its links "
        "and memory, and one sentence for each problem."
    )
    parser.epilog = (
        "Exit codes: 0 no problem found or no GPU here, 1 a problem was found, 2 wrong usage, "
        "or the nodes could not be looked at."
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text (default) or json"
    )
    parser.add_argument(
        "--nodes",
        action="store_true",
        help="look at all nodes of the job: how each computes, how each pair communicates",
    )
    parser.add_argument(
        "--launcher",
        choices=tuple(ACROSS_NODES),
        default=next(iter(ACROSS_NODES)),
        help=f"for --nodes, what reaches them: {' (default) or '.join(ACROSS_NODES)}",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="for --nodes: auto (default: CUDA where there is one), cuda or cpu",
    )


def run(arguments: argparse.Namespace) -> int:
    """Look at the machine and print it; 1 where a problem was found, 0 also without a GPU."""
    if arguments.nodes:
        from gpuscale.cli.doctor_nodes import run_doctor_nodes

        return run_doctor_nodes(arguments)
    machine = examine()
    problems = find_problems(machine)
    if arguments.format == "json":
        head = {"format": "gpuscale-doctor", "version": 1}
        document = {**head, **_document(machine), "problems": list(problems)}
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    else:
        from gpuscale.report.doctor_text import doctor_text

        text = doctor_text(machine, problems)
    sys.stdout.write(f"{text}\n")
    return 1 if problems else 0


def _document(machine: Machine) -> dict[str, Any]:
    """Every field, with null for the unknown."""
    document: dict[str, Any] = msgspec.to_builtins(machine)
    for gpu in document["gpus"]:
        reading = gpu.pop("reading")
        for part, is_often in (("reading", True), ("condition", False)):
            moments = [m for m, field in MOMENTS.items() if (field.when == "windows") is is_often]
            absent = {m: reading["absent"][m] for m in moments if m in reading["absent"]}
            gpu[part] = {**{m: reading["answers"].get(m) for m in moments}, "absent": absent}
    return document
