"""From what ranks and nodes left in a run's folder to one Run, or one Environment."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from gpuscale.environment_diff import ON_NODES, differences
from gpuscale.errors import DecodeError, GpuscaleError, MachineError, UsageError
from gpuscale.launch.failures import crash_failure, lost_failure, timeout_failure
from gpuscale.records import (
    Environment,
    Failure,
    Node,
    NodeProbe,
    OverheadOutcome,
    OverheadPair,
    RankOutcome,
    RankWindow,
    Run,
    RunRequest,
    Window,
    with_measured,
)
from gpuscale.run_directory import RecordFile, RunDirectory
from gpuscale.statistics.steadiness import steadiness
from gpuscale.strategies import STRATEGIES

R = TypeVar("R", bound=msgspec.Struct)

_LOG_TAIL_LINES = 3
_SHORTEST_JUDGED_S = 0.12
"""Windows below this length show what else the machine does from one moment to the next: a
single turn of its scheduler is a tenth of them. By default windows are longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the ranks of a run ended, as the launcher saw it."""

    exit_codes: dict[int, int]
    """Of the ranks that failed, in the order in which they did where that is known; minus the
    signal's number where one ended it."""
    timed_out: bool
    """They were ended because their time was up."""
    failed_launcher: str | None = None
    """The launcher across nodes whose command failed; None where it did not."""


def collect_run(
    request: RunRequest,
    directory: RunDirectory,
    ending: Ending,
    *,
    started_at_s: float,
    wall_s: float,
) -> Run:
    """The run that the ranks made, or the reason why there is none.

    It started at a Unix time, and all ranks had ended `wall_s` later.
    """
    empty = Run(
        configuration=request.configuration,
        gpus=request.gpus,
        index=request.index,
        started_at_s=started_at_s,
        batch_per_gpu=request.batch_per_gpu,
        sample_shape=request.sample_shape,
        wall_s=wall_s,
        failure=Failure(kind="launch", message="the run has not ended"),
    )
    left = _left_by_ranks(request, directory, ending, directory.outcome)
    if isinstance(left, Failure):
        return replace(empty, failure=left)
    run = _join(empty, left)
    failure = _invalidity(run) or _unsteadiness(run)
    run = replace(run, failure=failure)
    return with_measured(run) if failure is None else run


def collect_overhead(
    request: RunRequest, directory: RunDirectory, ending: Ending
) -> OverheadOutcome | Failure:
    """The times of the slowest rank of each pair, or the reason why there are none."""
    left = _left_by_ranks(request, directory, ending, directory.overhead)
    if isinstance(left, Failure):
        return left
    pairs = [
        OverheadPair(
            measured_s=max(pair.measured_s for pair in seen),
            bare_s=max(pair.bare_s for pair in seen),
        )
        for seen in zip(*(outcome.pairs for outcome in left), strict=True)
    ]
    return replace(left[0], pairs=tuple(pairs))


def _left_by_ranks(
    request: RunRequest,
    directory: RunDirectory,
    ending: Ending,
    file_of: Callable[[int], RecordFile[R]],
) -> list[R] | Failure:
    """The records that all ranks left, or why there are none."""
    if ending.timed_out:
        return timeout_failure(request, directory)
    if ending.exit_codes:
        return crash_failure(request, directory, ending.exit_codes)
    if ending.failed_launcher is not None:
        return lost_failure(request, directory, ending.failed_launcher)
    try:
        return [file_of(rank).read() for rank in range(request.processes)]
    except (OSError, DecodeError) as error:
        message = f"a rank ended without leaving its measurement ({error})"
        return Failure(kind="launch", message=message)


def _invalidity(run: Run) -> Failure | None:
    """The reason why a run that ended has no valid result: its ranks did not train together."""
    for rank in run.ranks:
        if rank.final_loss is None:
            return Failure(
                kind="invalid",
                message=f"the loss or a parameter of rank {rank.rank} is not a finite number",
                rank=rank.rank,
                host=rank.host,
            )
    digests = {rank.parameter_digest for rank in run.ranks}
    if STRATEGIES[run.configuration.strategy].ranks_agree and len(digests) > 1:
        groups = (f"rank {r.rank}: {(r.parameter_digest or 'none')[:16]}" for r in run.ranks)
        return Failure(
            kind="invalid",
            message=(
                f"the parameters of {len(run.ranks)} ranks differ after training: their gradients "
                "were not synchronised, so this speedup is none"
            ),
            detail="\n".join(groups),
        )
    return None


def _unsteadiness(run: Run) -> Failure | None:
    """The reason why the windows of a run, kept as evidence, do not repeat one step time."""
    times_s = [window.time_s for window in run.windows]
    found = None if statistics.median(times_s) < _SHORTEST_JUDGED_S else steadiness(times_s)
    return None if found is None else Failure(kind="unsteady", message=f"not steady: {found.text}")


def _join(empty: Run, outcomes: list[RankOutcome]) -> Run:
    first = outcomes[0].measurement
    # The rank that the others wait for is told by the ranks' own paces.
    paces_s = [outcome.report.pace_s or 0.0 for outcome in outcomes]
    slowest = paces_s.index(max(paces_s))
    windows = [
        (_window(seen, slowest), seen[0].synchronized)
        for seen in zip(*(outcome.measurement.windows for outcome in outcomes), strict=True)
    ]
    startup_s = max(outcome.joined_at_s for outcome in outcomes) - (empty.started_at_s or 0.0)
    return replace(
        empty,
        steps_per_window=first.steps_per_window,
        windows=tuple(window for window, synchronized in windows if synchronized),
        unsynced_windows=tuple(window for window, synchronized in windows if not synchronized),
        ranks=tuple(outcome.report for outcome in outcomes),
        warmup_steps=first.warmup_steps,
        warmup_s=first.warmup_s,
        # Where the wall clock was set back meanwhile, nobody knows how long it took.
        startup_s=startup_s if startup_s >= 0 else None,
    )


def _window(seen: tuple[RankWindow, ...], slowest: int) -> Window:
    """One window out of what each rank saw of it.

    In synchronised windows all ranks take as long as the slowest, so which of them took longest
    by a hair is chance: the phases are those of one and the same rank of the run. What another
    took longer is a wait, and in training that lies in the next backward pass.
    """
    time_s = max(window.busy_s for window in seen)
    shown = seen[slowest]
    return Window(
        time_s=time_s,
        started_at_s=seen[0].started_at_s,
        busy_s=tuple(window.busy_s for window in seen),
        phases=replace(shown.phases, backward_s=shown.phases.backward_s + time_s - shown.busy_s),
    )


def job_environment(
    hosts: Sequence[str], directory: RunDirectory, device: str, *, exit_code: int, timed_out: bool
) -> Environment:
    """The environment of a job on these hosts, as their descriptions in the directory say."""
    left = ((host, directory.environment(host).read_if_left()) for host in hosts)
    found = {host: environment for host, environment in left if environment is not None}
    missing = [host for host in hosts if host not in found]
    if not missing:
        return joined(found, device)
    nodes = ", ".join(missing)
    if timed_out:
        raise MachineError(
            f"{nodes} did not answer in time; see whether the scheduler still reaches them",
            hosts=missing,
        )
    said = directory.launcher_log.read_text(encoding="utf-8", errors="replace").strip()
    tail = " | ".join(said.splitlines()[-_LOG_TAIL_LINES:])
    if found:
        raise MachineError(
            f"{nodes}: does not see {directory.path.parent}, or cannot run there what the other "
            "nodes run; put the results on a file system that all nodes share, with --results "
            f"(exit code {exit_code}: {tail})",
            hosts=missing,
        )
    raise MachineError(
        f"no node could be looked at (exit code {exit_code}: {tail or 'no message'})"
    )


def joined(found: dict[str, Environment], device: str) -> Environment:
    """The environments of a job's nodes as one: the first one's, with all nodes in it.

    An error where only some nodes have GPUs, and where GPUs or software differ between them.
    """
    first_host, first = next(iter(found.items()))
    without = [host for host, environment in found.items() if not environment.gpus]
    if without and (device == "cuda" or len(without) < len(found)):
        raise MachineError(
            f"torch sees no GPU on {', '.join(without)}; ask the scheduler for GPUs on every node, "
            "or measure CPU ranks with --device cpu",
            hosts=without,
        )
    for host, environment in found.items():
        change = next(differences(first, environment, ON_NODES), None)
        if change is not None:
            raise UsageError(
                f"{change.name.replace('_', ' ')} is {change.before[0]} on {first_host} and "
                f"{change.after[0]} on {host}; measure on nodes of one kind"
            )
    nodes = (
        Node(
            host=each.host or name,
            cpu_model=each.cpu_model,
            cpu_count=each.cpu_count,
            gpus=each.gpus,
        )
        for name, each in found.items()
    )
    return replace(first, nodes=tuple(nodes))


def probes_left(
    directory: RunDirectory, hosts: Sequence[str], *, timed_out: bool
) -> tuple[NodeProbe, ...]:
    """The answers of the ranks that looked at their nodes and links, in the order of the hosts."""
    left = [directory.probe(rank).read_if_left() for rank in range(len(hosts))]
    if missing := [host for host, probe in zip(hosts, left, strict=True) if probe is None]:
        why = "in time " if timed_out else ""
        outputs = (directory.output(rank) for rank in range(len(hosts)))
        said = [
            output.read_text(encoding="utf-8", errors="replace").strip()[-300:]
            for output in outputs
            if output.exists()
        ]
        raise GpuscaleError(
            f"{', '.join(missing)} did not answer {why}when nodes were to talk to each other; see "
            f"whether they reach one another, and leave out one that does not: {' | '.join(said)}"
        )
    return tuple(probe for probe in left if probe is not None)
