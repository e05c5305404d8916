"""`gpuscale doctor`: what this machine offers for measuring, what it lacks, and what is wrong."""

import argparse
import json
import sys

import msgspec

from gpuscale.telemetry.examination import examine
from gpuscale.telemetry.problems import find_problems


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
        choices=("slurm", "mpirun"),
        default="slurm",
        help="for --nodes, what reaches them: slurm (default) or mpirun",
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
        document = {**head, **msgspec.to_builtins(machine), "problems": list(problems)}
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    else:
        from gpuscale.report.doctor_text import doctor_text

        text = doctor_text(machine, problems)
    sys.stdout.write(f"{text}\n")
    return 1 if problems else 0
