"""`gpuscale doctor`: show telemetry, links and faults of this machine or of a job's nodes."""

import argparse
from contextlib import closing
from pathlib import Path

import msgspec

from gpuscale.base.errors import require_packages
from gpuscale.cli.inputs import add_device, say
from gpuscale.cli.probe import probe_nodes
from gpuscale.judge.diagnose.slow_links import find_slow
from gpuscale.judge.diagnose.symptoms import find_port_faults
from gpuscale.measure.launch import ACROSS_NODES
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.measure.schedulers.slurm import leaf_switches
from gpuscale.measure.telemetry.doctor import examine, find_problems
from gpuscale.records import NodeProbe
from gpuscale.records.probes import MATRIX, SEND
from gpuscale.records.record import document_text
from gpuscale.reports.doctor_text import doctor_text, probes_text
from gpuscale.store.results import RESULTS_FOLDER


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
    add("--format", choices=("text", "json"), default="text", help="text (default) or json")
    text = "examine all nodes of the job: how fast each computes, and each pair communicates"
    add("--nodes", action="store_true", help=text)
    text = f"for --nodes, how to reach them: {' (default) or '.join(launchers)}"
    add("--launcher", choices=launchers, default=launchers[0], help=text)
    add_device(parser, "for --nodes: ")


def run(arguments: argparse.Namespace) -> int:
    look = _look_at_nodes if arguments.nodes else _look_at_machine
    text, document, has_problems = look(arguments)
    say(document if arguments.format == "json" else text)
    return 1 if has_problems else 0


def _look_at_machine(_: argparse.Namespace) -> tuple[str, str, bool]:
    machine = examine()
    here = NodeProbe(
        host=machine.node.host,
        ports=machine.node.ports,
        gpu_numa_nodes=tuple(gpu.numa_node for gpu in machine.gpus),
        cpu_numa_nodes=machine.cpu_numa_nodes,
    )
    problems = (*find_problems(machine), *(fault.text for fault in find_port_faults([here])))
    document = document_text("gpuscale-doctor", **msgspec.to_builtins(machine), problems=problems)
    return doctor_text(machine, problems), document, bool(problems)


def _look_at_nodes(arguments: argparse.Namespace) -> tuple[str, str, bool]:
    require_packages("doctor --nodes", ("torch",))
    folder = Path.cwd() / RESULTS_FOLDER
    launcher = Launcher(arguments.launcher, device=arguments.device, folder=folder)
    with closing(launcher):
        nodes = probe_nodes(launcher, (MATRIX, SEND), seconds=1.0, launches=1)
    findings = (*find_slow(nodes, leaf_switches()), *find_port_faults(nodes))
    document = document_text("gpuscale-doctor-nodes", nodes=nodes, findings=findings)
    return probes_text(nodes, findings), document, bool(findings)
