"""`gpuscale doctor`: what this machine offers for measuring, what it lacks, and what is wrong."""

import argparse
import json
import sys

import msgspec

from gpuscale.telemetry.examination import examine
from gpuscale.telemetry.problems import find_problems


def run_doctor(arguments: argparse.Namespace) -> int:
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
