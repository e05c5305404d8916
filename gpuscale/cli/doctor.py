"""`gpuscale doctor`: show telemetry, links and faults of this machine or of a job's nodes."""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from gpuscale.base.counters import MOMENTS
from gpuscale.base.errors import require_packages
from gpuscale.campaigns.probing import probe_nodes, request_of
from gpuscale.cli.inputs import add_device, add_text_or_json
from gpuscale.judge.diagnose.pairs import find_slow
from gpuscale.judge.diagnose.ports import find_port_faults
from gpuscale.measure.launch import ACROSS_NODES
from gpuscale.measure.launch.nodes import NodesLauncher
from gpuscale.measure.schedulers.slurm_nodes import leaf_switches
from gpuscale.measure.telemetry.examination import Machine, examine, find_problems
from gpuscale.records import NodeProbe
from gpuscale.records.json_text import document_text
from gpuscale.records.probe import MATRIX, SEND
from gpuscale.reports.machine_text import doctor_text, probes_text
from gpuscale.store import RESULTS_FOLDER

_PROBES = (MATRIX, SEND)
_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Examine this machine GPU by GPU: its telemetry, the state of its links and memory, and "
        "one sentence for each problem."
    )
    parser.epilog = (
        "Exit codes: 0 no problem found or no GPU here, 1 a problem was found, 2 wrong usage, "
        "or the nodes could not be examined."
    )
    add, launchers = parser.add_argument, tuple(ACROSS_NODES)
    add_text_or_json(parser)
    text = "examine all nodes of the job: how fast each computes, and each pair communicates"
    add("--nodes", action="store_true", help=text)
    text = f"for --nodes, how to reach them: {' (default) or '.join(launchers)}"
    add("--launcher", choices=launchers, default=launchers[0], help=text)
    add_device(parser, "for --nodes: ")


def run(arguments: argparse.Namespace) -> int:
    """Print the machine's state; return 1 if a problem was found, not counting a lack of GPUs."""
    look = _look_at_nodes if arguments.nodes else _look_at_machine
    text, document, has_problems = look(arguments)
    sys.stdout.write(f"{document if arguments.format == 'json' else text}\n")
    return 1 if has_problems else 0


def _look_at_machine(_: argparse.Namespace) -> tuple[str, str, bool]:
    machine = examine()
    here = NodeProbe(
        host=machine.host,
        ports=machine.ports,
        gpu_numa_nodes=tuple(gpu.numa_node for gpu in machine.gpus),
        cpu_numa_nodes=machine.cpu_numa_nodes,
    )
    faults = find_port_faults([here])
    problems = (*find_problems(machine), *(fault.text for fault in faults))
    document = document_text("gpuscale-doctor", **_fields(machine), problems=problems)
    return doctor_text(machine, problems), document, bool(problems)


def _look_at_nodes(arguments: argparse.Namespace) -> tuple[str, str, bool]:
    require_packages("doctor --nodes", ("torch",))
    launcher = NodesLauncher(
        arguments.launcher, device=arguments.device, folder=Path.cwd() / RESULTS_FOLDER
    )
    with closing(launcher):
        nodes = probe_nodes(launcher, request_of(launcher, _PROBES, seconds=_SECONDS), launches=1)
    findings = (*find_slow(nodes, leaf_switches()), *find_port_faults(nodes))
    document = document_text("gpuscale-doctor-nodes", nodes=nodes, findings=findings)
    return probes_text(nodes, findings), document, bool(findings)


def _fields(machine: Machine) -> dict[str, Any]:
    """Return all fields of the JSON document; unknown values are null."""
    fields: dict[str, Any] = msgspec.to_builtins(machine)
    for gpu in fields["gpus"]:
        reading = gpu.pop("reading")
        for part, is_often in (("reading", True), ("condition", False)):
            moments = [m for m, field in MOMENTS.items() if (field.when == "windows") is is_often]
            absent = {m: reading["absent"][m] for m in moments if m in reading["absent"]}
            gpu[part] = {**{m: reading["answers"].get(m) for m in moments}, "absent": absent}
    return fields
