"""`gpuscale probe`: spend a minute measuring each device, link and storage of a job."""

import argparse
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from gpuscale import __version__
from gpuscale.base.errors import ExitCode, FileError, UsageError
from gpuscale.base.host import is_gpu
from gpuscale.base.text import no_such
from gpuscale.cli.inputs import add_device, say
from gpuscale.judge.diagnose.slow_links import find_slow, retest_rounds, round_robin
from gpuscale.measure.launch import LAUNCHERS
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.measure.schedulers import scheduler_of_job
from gpuscale.measure.schedulers.slurm import leaf_switches
from gpuscale.records import NodeProbe, Results
from gpuscale.records.probes import PAIR, PROBES, SEND, NodeProbeRequest, merged_probes
from gpuscale.reports.doctor_text import probes_text
from gpuscale.store import results as store

_LAUNCHES = 3
"""Number of times to launch the probes: each new process may place its memory differently."""
_CPU_RANKS = 2
_MIB = 1024**2
_DDP_BUCKET_MB, _FIRST_BUCKET_MB = 25, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure for about a minute how fast each device of the job's nodes computes and copies, "
        "how fast storage is read, and how fast nodes communicate. A comparison of the results "
        "then says under each cause whether the probes confirm it. A device that passes may still "
        "be at fault."
    )
    parser.epilog = "Exit codes: 0 no node stands out, 1 one does, 2 it could not be measured."
    add = parser.add_argument
    text = "results to probe for: in the precision of their runs, and kept in a file beside them"
    add("results", metavar="RESULTS", nargs="?", type=Path, help=text)
    add("--only", metavar="NAME,…", help=f"only these probes, of: {', '.join(PROBES)}")
    text = "how to reach the nodes (default: as in RESULTS, or as this job's scheduler does)"
    add("--launcher", choices=LAUNCHERS, help=text)
    add_device(parser)
    add("--data-root", metavar="DIR", help="read the files in this folder, as training would")
    text = f"time limit for the products in each of {_LAUNCHES} launches (default: 4)"
    add("--seconds", metavar="S", type=float, default=4.0, help=text)


def run(arguments: argparse.Namespace) -> int:
    names = tuple(PROBES) if arguments.only is None else arguments.only.split(",")
    if unknown := [name for name in names if name not in PROBES]:
        raise UsageError(f"--only: {no_such(unknown[0], PROBES)}")
    now, scheduler = datetime.now().astimezone(), scheduler_of_job(os.environ)
    of, device = None, arguments.device
    name = scheduler.name if scheduler and scheduler.name in LAUNCHERS else LAUNCHERS[0]
    path = arguments.results or store.default_results_path(store.RESULTS_FOLDER, now)
    if arguments.results is not None:
        of = store.read_results(path)
        name = of.environment.launcher or name
        device = of.environment.device if device == "auto" else device
    path = path.with_suffix(store.PROBES_ENDING)
    if path.exists():
        raise FileError(path, "exists already and is not overwritten; delete it, or name others")
    folder, name = Path.cwd() / store.RESULTS_FOLDER, arguments.launcher or name
    with closing(Launcher(name, device=device, folder=folder)) as launcher:
        nodes = probe_nodes(
            launcher,
            names,
            seconds=arguments.seconds,
            launches=_LAUNCHES,
            results=of,
            data_root=arguments.data_root,
        )
        head = Results(
            created_at=now.isoformat(timespec="milliseconds"),
            gpuscale_version=__version__,
            environment=launcher.environment,
            probes=tuple(probe for node in nodes for probe in node.probes),
        )
    store.create_results(path, head).close()
    findings = find_slow(nodes, leaf_switches())
    say(f"{probes_text(nodes, findings)}\nkept in {path}")
    return ExitCode.REGRESSED if findings else ExitCode.OK


def probe_nodes(
    launcher: Launcher,
    names: Sequence[str],
    *,
    seconds: float,
    launches: int,
    results: Results | None = None,
    data_root: str | None = None,
) -> tuple[NodeProbe, ...]:
    """Run these probes on all nodes, with the precision and DDP buckets that most results have."""
    where = launcher.environment
    configurations = [run.configuration for run in results.runs] if results else []
    usual = Counter(each.precision for each in configurations).most_common(1)
    options = " ".join(each.strategy_options or "" for each in configurations)
    buckets = {*map(int, re.findall(r"bucket_cap_mb=(\d+)", options))} or {_DDP_BUCKET_MB}
    cpu_ranks = min(_CPU_RANKS, where.cores_per_node)
    request = NodeProbeRequest(
        device=where.device,
        names=tuple(name for name in PROBES if name in names),
        ranks_per_node=where.gpus_per_node if is_gpu(where.device) else cpu_ranks,
        seconds=seconds,
        message_bytes=tuple(size * _MIB for size in sorted({_FIRST_BUCKET_MB, *buckets})),
        rounds=round_robin(where.node_count),
        precision=usual[0][0] if usual else None,
        data_root=data_root,
    )
    found = [launcher.probe(request)]
    if again := retest_rounds(found[0]):
        pairs = tuple(name for name in request.names if name in (SEND, PAIR))
        found.append(launcher.probe(replace(request, names=pairs, rounds=again)))
    found += (launcher.probe(replace(request, rounds=())) for _ in range(launches - 1))
    return tuple(merged_probes(parts) for parts in zip(*found, strict=True))
