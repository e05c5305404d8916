"""`gpuscale probe`: measure for a minute how fast each device, link and storage of a job is."""

import argparse
import os
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

from gpuscale import __version__
from gpuscale.base.errors import ExitCode, UsageError
from gpuscale.campaigns.probing import probe_nodes, request_of
from gpuscale.cli.inputs import add_device
from gpuscale.judge.diagnose.pairs import find_slow
from gpuscale.measure.launch import LAUNCHERS, launcher_by_name
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.measure.schedulers.slurm_nodes import leaf_switches
from gpuscale.records import Results
from gpuscale.records.probe import PROBES
from gpuscale.reports.machine_text import probes_text
from gpuscale.store import RESULTS_FOLDER, default_results_path, read_results
from gpuscale.store.results import PROBES_ENDING, ResultsWriter, validate_new
from gpuscale.workload.injections import parse_injections

_LAUNCHES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure for about a minute how fast each device of the job's nodes computes and copies, "
        "how fast storage is read, and how fast nodes communicate. A comparison of the results "
        "says under a cause whether the probes confirm it; a passing probe acquits nobody."
    )
    parser.epilog = "Exit codes: 0 no node stands out, 1 one does, 2 it could not be measured."
    add, choices = parser.add_argument, ("fp32", "tf32", "bf16", "fp16")
    text = "results beside which the probes are kept, measured in the precision of their runs"
    add("results", metavar="RESULTS", nargs="?", type=Path, help=text)
    add("--only", metavar="NAME,…", help=f"only these probes, of: {', '.join(PROBES)}")
    text = "how to reach the nodes (default: as in RESULTS, or as this job's scheduler does)"
    add("--launcher", choices=LAUNCHERS, help=text)
    add_device(parser)
    add("--precision", choices=choices, help="of the products (default: as in RESULTS, or fp32)")
    add("--data-root", metavar="DIR", help="read the files in this folder, as training would")
    text = f"time limit for the products in each of {_LAUNCHES} launches (default: 4)"
    add("--seconds", metavar="S", type=float, default=4.0, help=text)
    text = "make a fault on purpose, to see that it is found: compute=1.2, slow-rank=1:1.2"
    add("--inject", metavar="FAULT", action="append", default=[], help=text)


def run(arguments: argparse.Namespace) -> int:
    """Probe the nodes, store the probes in a separate file, and print the findings."""
    names = None if arguments.only is None else arguments.only.split(",")
    if unknown := [name for name in names or () if name not in PROBES]:
        raise UsageError(f"--only: there is no '{unknown[0]}'; there is {', '.join(PROBES)}")
    parse_injections(arguments.inject)
    now, injections = datetime.now().astimezone(), tuple(arguments.inject)
    of, device, scheduler = None, arguments.device, scheduler_of_job(os.environ)
    name = scheduler.name if scheduler and scheduler.name in LAUNCHERS else LAUNCHERS[0]
    path = arguments.results or default_results_path(RESULTS_FOLDER, now)
    if arguments.results is not None:
        of = read_results(path)
        name = of.environment.launcher or name
        device = of.environment.device if device == "auto" else device
    path = path.with_suffix(PROBES_ENDING)
    validate_new(path)
    folder = Path.cwd() / RESULTS_FOLDER
    name = arguments.launcher or name
    with closing(launcher_by_name(name, device=device, folder=folder)) as launcher:
        request = request_of(
            launcher,
            names,
            seconds=arguments.seconds,
            precision=arguments.precision,
            configurations=[run.configuration for run in of.runs] if of else (),
            data_root=arguments.data_root,
            injections=injections,
        )
        nodes = probe_nodes(launcher, request, launches=_LAUNCHES)
        probes = tuple(probe for node in nodes for probe in node.probes)
        head = Results(
            created_at=now.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=launcher.environment,
            injections=injections,
            probes=probes,
        )
    ResultsWriter(path, head).close()
    findings = find_slow(nodes, leaf_switches())
    sys.stdout.write(f"{probes_text(nodes, findings)}\nkept in {path}\n")
    return ExitCode.REGRESSED if findings else ExitCode.OK
