"""`gpuscale doctor`: what this machine offers for measuring, what it lacks, and what is wrong."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.diagnose.slow_nodes import find_slow
from gpuscale.launch import ACROSS_NODES
from gpuscale.launch.nodes import NodesLauncher
from gpuscale.records import NodeProbeRequest
from gpuscale.store import RESULTS_FOLDER
from gpuscale.telemetry.doctor import Machine, examine, find_problems
from gpuscale.telemetry.fields import MOMENTS

_ON_GPU = NodeProbeRequest(device="cuda", message_bytes=32 * 1024**2, repeats=10, timeout_s=300.0)
_ON_CPU = NodeProbeRequest(device="cpu", message_bytes=1024**2, repeats=5, timeout_s=300.0)


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
    look = _look_at_nodes if arguments.nodes else _look_at_machine
    text, has_problems = look(arguments)
    sys.stdout.write(f"{text}\n")
    return 1 if has_problems else 0


def _look_at_machine(arguments: argparse.Namespace) -> tuple[str, bool]:
    machine = examine()
    problems = find_problems(machine)
    if arguments.format == "json":
        document = {**_document(machine), "problems": list(problems)}
        return _json("gpuscale-doctor", document), bool(problems)
    from gpuscale.report.machine_text import doctor_text

    return doctor_text(machine, problems), bool(problems)


def _look_at_nodes(arguments: argparse.Namespace) -> tuple[str, bool]:
    launcher = NodesLauncher(
        arguments.launcher, device=arguments.device, folder=Path.cwd() / RESULTS_FOLDER
    )
    request = _ON_GPU if launcher.environment.device == "cuda" else _ON_CPU
    probes = launcher.probe(request)
    findings = find_slow(probes)
    if arguments.format == "json":
        document = {
            "message_bytes": request.message_bytes,
            "nodes": msgspec.to_builtins(probes),
            "findings": msgspec.to_builtins(findings),
        }
        return _json("gpuscale-doctor-nodes", document), bool(findings)
    from gpuscale.report.machine_text import nodes_text

    return nodes_text(probes, findings, message_bytes=request.message_bytes), bool(findings)


def _json(name: str, document: dict[str, Any]) -> str:
    head = {"format": name, "version": 1}
    return json.dumps({**head, **document}, indent=2, ensure_ascii=False, allow_nan=False)


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
