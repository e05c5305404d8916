"""Combine the files that ranks or nodes wrote to a run's folder into a Run or an Environment."""

from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.analysis.steadiness import SHORTEST_JUDGED_S, steadiness
from gpuscale.base.errors import DecodeError, GpuscaleError, MachineError, UsageError
from gpuscale.base.host import GPU_KINDS, is_gpu, text_of
from gpuscale.base.strategies import STRATEGIES
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Environment, Node, NodeEvidence, NodeProbe, RunRequest
from gpuscale.records.environment import without_software
from gpuscale.records.environment_diff import ON_NODES, field_differences
from gpuscale.records.evidence import (
    Failure,
    ProcessSoftware,
    RankReport,
    Window,
    median_window_s,
    merged,
)
from gpuscale.records.probes import merged_probes
from gpuscale.records.request import FigureOutcome, window_of_ranks
from gpuscale.records.run import Run, with_measured

_LOG_TAIL_LINES = 3
_OUTPUT_TAIL_CHARS = 300
_UNMEASURED = Failure(kind="launch", message="the command ended without leaving its measurement")


def collect_run(
    request: RunRequest,
    directory: RunDirectory,
    failure: Failure | None,
    *,
    started_at_s: float,
    wall_s: float,
) -> Run:
    """Return the run that the ranks executed; the run's `failure` is set if the run is not valid.

    The argument `failure` is None if all ranks ended normally; `wall_s` is the run's duration.
    """
    empty = Run(
        configuration=request.configuration,
        gpus=request.gpus,
        index=request.index,
        started_at_s=started_at_s,
        batch_per_gpu=request.batch_per_gpu,
        sample_shape=request.sample_shape,
        samples_per_epoch=request.samples_per_epoch,
        wall_s=wall_s,
        nodes=directory.nodes(),
    )
    if request.command is not None:
        return _command_run(request, directory, failure, empty)
    if failure is not None:
        return replace(empty, failure=failure)
    try:
        outcomes = directory.outcomes.read()
    except (OSError, DecodeError) as error:
        message = f"the ranks ended without leaving their measurements ({error})"
        return replace(empty, failure=Failure(kind="launch", message=message))
    reports = tuple(outcome.report for outcome in outcomes)
    first = outcomes[0].measurement
    # The other ranks wait for the slowest one.
    paces_s = [report.pace_s or 0.0 for report in reports]
    slowest = paces_s.index(max(paces_s))
    windows: dict[bool, list[Window]] = {True: [], False: []}
    for seen in zip(*(outcome.measurement.windows for outcome in outcomes), strict=True):
        windows[seen[0].synchronized].append(window_of_ranks(seen, slowest))
    startup_s = max(outcome.joined_at_s for outcome in outcomes) - started_at_s
    agree = STRATEGIES[request.configuration.strategy].ranks_agree
    run = replace(
        empty,
        steps_per_window=first.steps_per_window,
        windows=tuple(windows[True]),
        unsynced_windows=tuple(windows[False]),
        ranks=reports,
        nodes=_with_processes(empty.nodes, [outcome.software for outcome in outcomes]),
        warmup_steps=first.warmup_steps,
        warmup_s=first.warmup_s,
        # Unknown if the wall clock was set back during start-up.
        startup_s=startup_s if startup_s >= 0 else None,
        failure=_invalidity(reports, agree=agree) or _unsteadiness(windows[True]),
    )
    return with_measured(run)


def _command_run(
    request: RunRequest, directory: RunDirectory, failure: Failure | None, empty: Run
) -> Run:
    """Return the run `empty` with its ranks, windows and failure, if any; metrics are not added."""
    found = (directory.software(rank).read_if_left() for rank in range(request.processes))
    empty = replace(empty, nodes=_with_processes(empty.nodes, [*filter(None, found)]))
    if request.command is not None and request.command.metrics:
        figures = command_figures(request, directory)
        failure = failure or (_UNMEASURED if figures is None else figures.failure)
        return replace(empty, ranks=_started_ranks(request, directory), failure=failure)
    left = map(directory.command_outcome, range(request.processes))
    outcome = next(filter(None, (file.read_if_left() for file in left)), None)
    if outcome is None or failure is not None:
        return replace(empty, failure=failure or _UNMEASURED)
    run = replace(
        empty,
        batch_per_gpu=outcome.batch_per_gpu,
        steps_per_window=outcome.steps_per_window,
        windows=outcome.windows,
        ranks=_started_ranks(request, directory),
        warmup_steps=outcome.warmup_steps,
        warmup_s=outcome.warmup_s,
        failure=_unsteadiness(outcome.windows),
    )
    return with_measured(run)


def command_figures(request: RunRequest, directory: RunDirectory) -> FigureOutcome | None:
    """Return the metrics, or else the failure, of one process; None if no process left either."""
    files = map(directory.figures, range(request.processes))
    left = [outcome for file in files if (outcome := file.read_if_left()) is not None]
    return min(left, key=lambda outcome: outcome.failure is not None, default=None)


def _with_processes(
    nodes: Sequence[NodeEvidence], found: Sequence[ProcessSoftware]
) -> tuple[NodeEvidence, ...]:
    """Return the nodes with the distinct libraries and CPUs of their processes, from `found`."""
    known = []
    for node in nodes:
        here = [processes for processes in found if processes.host == node.host]
        libraries = merged(library for processes in here for library in processes.libraries)
        reasons = filter(None, (processes.software.packages_absent for processes in here))
        reason = None if libraries else next(reasons, None)
        absent = {**node.absent, "libraries": reason} if reason else node.absent
        cpus = dict.fromkeys(filter(None, (text for processes in here for text in processes.cpus)))
        known.append(replace(node, libraries=libraries, cpus=tuple(cpus), absent=absent))
    return tuple(known)


def command_software(request: RunRequest, directory: RunDirectory) -> Environment | None:
    """Return the software of a command's Python interpreter; None if the run had no command."""
    if request.command is None:
        return None
    left = directory.software(0).read_if_left()
    reason = "the process that watched the command did not record it"
    return without_software(reason) if left is None else left.software


def _started_ranks(request: RunRequest, directory: RunDirectory) -> tuple[RankReport, ...]:
    """Return a command's ranks with their hosts; empty if ranks are local or a host is unknown."""
    hosts = directory.host_of_ranks()
    if request.launch != "per-rank":
        started = ((text_of(directory.started(number)), host) for number, host in hosts.items())
        hosts = {int(rank): host for ranks, host in started for rank in ranks.split()}
    known = tuple(RankReport(rank=rank, host=hosts[rank]) for rank in sorted(hosts))
    return known if len(known) == request.gpus else ()


def _invalidity(ranks: Sequence[RankReport], *, agree: bool) -> Failure | None:
    """Return a failure if the ranks' model parameters should agree but differ; None otherwise."""
    if not agree or len({rank.parameter_digest for rank in ranks}) == 1:
        return None
    groups = (f"rank {rank.rank}: {(rank.parameter_digest or 'none')[:16]}" for rank in ranks)
    message = (
        f"the parameters of {len(ranks)} ranks differ after training: their gradients "
        "were not synchronised, so the speedup is meaningless"
    )
    return Failure(kind="invalid", message=message, detail="\n".join(groups))


def _unsteadiness(windows: Sequence[Window]) -> Failure | None:
    if median_window_s(windows) < SHORTEST_JUDGED_S:
        return None
    found = steadiness([window.time_s for window in windows])
    return None if found is None else Failure(kind="unsteady", message=f"not steady: {found}")


def job_environment(
    hosts: Sequence[str], directory: RunDirectory, device: str, *, timed_out: bool
) -> Environment:
    """Return the environment of a job; raise MachineError if a host reported no environment."""
    left = ((host, directory.environment(host).read_if_left()) for host in hosts)
    found = {host: environment for host, environment in left if environment is not None}
    if not (missing := [host for host in hosts if host not in found]):
        return joined(found, device)
    # One failed host can prevent descriptions of all, so blame unreached hosts if any.
    reached = [hosts[rank] for rank in directory.host_of_ranks()]
    missing = [host for host in missing if host not in reached] or missing
    for host in missing:
        if output := text_of(directory.refusal(host)):
            raise MachineError(output if len(hosts) == 1 else f"{host}: {output}")
    said = " | ".join(text_of(directory.launcher_log).splitlines()[-_LOG_TAIL_LINES:])
    raise MachineError(
        f"{', '.join(missing)}: no answer{' in time' if timed_out else ''} about its GPUs "
        f"({said or 'no message'}); see whether 'nvidia-smi' or 'rocminfo' gives one there, or "
        "measure with --device cpu; all nodes must see the folder of the results (--results)"
    )


def joined(found: dict[str, Environment], device: str) -> Environment:
    """Merge the nodes' environments: return that of the first node, with all nodes listed in it.

    Raise MachineError if required GPUs are missing, UsageError if nodes differ in GPUs or software.
    """
    first_host, first = next(iter(found.items()))
    without = [host for host, environment in found.items() if not environment.gpus]
    if without and (is_gpu(device) or len(without) < len(found)):
        kind = GPU_KINDS.get(device, GPU_KINDS["cuda"])
        raise MachineError(
            f"torch sees no GPU on {', '.join(without)}; see '{kind.tool}' and {kind.variable} "
            "there, ask the scheduler for GPUs on every node, or measure CPU ranks with "
            "--device cpu"
        )
    for host, environment in found.items():
        for change in field_differences(first, environment, ON_NODES):
            raise UsageError(
                f"{change.name.replace('_', ' ')} is {change.before[0]} on {first_host} and "
                f"{change.after[0]} on {host}; measure on nodes of one kind"
            )
    nodes = (
        Node(host=of.host or name, cpu_model=of.cpu_model, cpu_count=of.cpu_count, gpus=of.gpus)
        for name, of in found.items()
    )
    return replace(first, nodes=tuple(nodes))


def probes_left(
    directory: RunDirectory, hosts: Sequence[str], ranks_per_node: int, *, timed_out: bool
) -> tuple[NodeProbe, ...]:
    """Return the probe results in the order of `hosts`; raise GpuscaleError if one is missing."""
    ranks = [range(n * ranks_per_node, (n + 1) * ranks_per_node) for n in range(len(hosts))]
    left = [[directory.probe(rank).read_if_left() for rank in of_host] for of_host in ranks]
    if missing := [host for host, parts in zip(hosts, left, strict=True) if None in parts]:
        why = "in time " if timed_out else ""
        outputs = (directory.output(rank) for of_host in ranks for rank in of_host)
        output = [text_of(path)[-_OUTPUT_TAIL_CHARS:] for path in outputs if path.exists()]
        raise GpuscaleError(
            f"{', '.join(missing)} did not answer {why}when nodes were to communicate; see "
            f"whether they reach one another, and leave out one that does not: {' | '.join(output)}"
        )
    return tuple(merged_probes([part for part in parts if part is not None]) for parts in left)
