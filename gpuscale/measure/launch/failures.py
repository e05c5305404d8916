"""Find out why a run has no result: the root cause, where it occurred, and a remedy."""

import re
import signal
from collections.abc import Collection, Sequence
from pathlib import Path

from gpuscale.base.host import text_of
from gpuscale.base.known_error_messages import LOST_NODE, OUT_OF_MEMORY
from gpuscale.base.process_ends import FAULT_SIGNALS
from gpuscale.measure.launch.keeper_orders import Outcome
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.request import RankFailure

_OUTPUT_TAIL_CHARS = 4000
_ENDED = 128 + signal.SIGTERM
"""Exit code of a command's watcher that was ended by SIGTERM."""
_PACKAGE = re.escape(str(Path(__file__).parents[2]))
_OUTER_FRAMES = re.compile(rf'^( +File "{_PACKAGE}/.*)(\n +File "{_PACKAGE}/.*)+', re.MULTILINE)
"""Pattern for consecutive stack frames of gpuscale, of which only the first, innermost is shown."""


def failure_of(
    request: RunRequest, directory: RunDirectory, outcome: Outcome, *, launcher: str = "local"
) -> Failure | None:
    """Return the reason why the ranks of a run did not end normally, or None if they did."""
    exit_codes = outcome.exit_codes
    reports = directory.failures()
    own = [report for report in reports if not report.lost_peer]
    is_command = request.command is not None
    failed = {rank: code for rank, code in exit_codes.items() if code}
    if outcome.timed_out and not is_command:
        return _timeout(request, directory)
    # A peer's death makes the others raise, so a rank that a signal killed is the cause. SIGABRT is
    # an exception: NCCL aborts a rank whose peer has failed, and a rank that raised may abort.
    for signals in (FAULT_SIGNALS, () if own else (signal.SIGABRT,)):
        killed = [rank for rank, code in failed.items() if -code in signals]
        if killed and not (is_command and own):
            return _exited(request, directory, killed[0], failed[killed[0]])
    # If a node fails, the scheduler ends the processes on the others.
    is_of_others = bool(reports and not own) or {*failed.values()} == {_ENDED}
    if is_of_others and (unreported := _unreported(directory, exit_codes)):
        return _vanished(request, directory, unreported)
    if reports:
        first = (own or reports)[0].failure
        return _hang(own or reports) if is_command and first.kind == "timeout" else first
    if failed:
        return _exited(request, directory, *next(iter(failed.items())))
    if outcome.timed_out:
        return _timeout(request, directory)
    is_complete = len(exit_codes) == request.processes
    return None if is_complete else _lost(request, directory, exit_codes, launcher)


def _lost(
    request: RunRequest, directory: RunDirectory, exited: Collection[int], launcher: str
) -> Failure:
    """Return the failure of a run in which a process left neither an exit code nor a report."""
    if launcher == "local":
        message = (
            "the process that forks the ranks ended, and the ranks with it; see the system's log, "
            "which says so if memory ran out"
        )
        return Failure(kind="launch", message=message)
    started = directory.host_of_ranks()
    if absent := [rank for rank in range(request.processes) if rank not in started]:
        rank, what = _named(request, absent)
        message = f"{launcher} did not start {what}; see what it said below"
        log = text_of(directory.launcher_log)
        return Failure(kind="launch", message=message, rank=rank, detail=log)
    return _vanished(request, directory, _unreported(directory, exited))


def _hang(reports: Sequence[RankFailure]) -> Failure:
    """Return the failure of a command that timed out, with the last output of every rank."""
    by_rank = sorted(reports, key=lambda one: (one.failure.rank or 0, one.failure.host or ""))
    best = max(by_rank, key=lambda report: report.steps_reported).failure
    if best.rank is None and len(by_rank) == 1:
        return best
    last_words = (
        f"{'the command' if failure.rank is None else f'rank {failure.rank}'} on {failure.host} "
        f"printed last:\n{failure.detail or '(nothing)'}"
        for failure in (report.failure for report in by_rank)
    )
    return Failure(kind="timeout", message=best.message, detail="\n\n".join(last_words))


def _timeout(request: RunRequest, directory: RunDirectory) -> Failure:
    stacks, hosts = [], directory.host_of_ranks()
    for rank in range(request.processes):
        text = _OUTER_FRAMES.sub(r"\1", text_of(directory.stacks(rank)))
        place = f" on {hosts[rank]}" if rank in hosts else ""
        text = text or "(it left no stack: not started, or stopped)"
        stacks.append(f"rank {rank}{place} was here:\n{text}")
    stage = " ".join(text_of(directory.progress).split("\t")[:2]) or "start-up"
    message = (
        f"not done after {request.timeout_s:g} s, in {stage}; all ranks were ended. "
        "Give it more with --timeout, or see in the stacks where each rank was"
    )
    return Failure(kind="timeout", message=message, detail="\n\n".join(stacks))


def _exited(request: RunRequest, directory: RunDirectory, rank: int, code: int) -> Failure:
    who = f"rank {rank}" if request.command is None else "the process that watches the command"
    host = directory.host_of_ranks().get(rank)
    place = "" if host is None else f" on {host}"
    kind: FailureKind = "launch"
    if -code in (*FAULT_SIGNALS, signal.SIGABRT):
        reason = " (out of memory?)" if -code == signal.SIGKILL else ""
        kind, message = "killed", f"{who} was killed by {signal.Signals(-code).name}{place}{reason}"
    elif code < 0 or code == _ENDED:
        number = signal.SIGTERM if code == _ENDED else signal.Signals(-code)
        message = (
            f"{who} was ended by {number.name}{place}: the job was cancelled, its time was up, or "
            "a node of it failed; see what the scheduler says of the job"
        )
    else:
        message = f"{who} ended with exit code {code}{place} and left no message"
    tail = text_of(directory.output(rank))[-_OUTPUT_TAIL_CHARS:].strip()
    if OUT_OF_MEMORY.search(tail):
        kind, message = "out_of_memory", f"{message}, out of memory"
    own, _ = _named(request, [rank])
    return Failure(kind=kind, message=message, rank=own, host=host, detail=tail)


def _unreported(directory: RunDirectory, exited: Collection[int]) -> list[int]:
    """Return ranks not in `exited`, but only those on hosts where no rank exited, if there are any.

    A host that reported exit codes still worked when its ranks ended. The scheduler has probably
    ended its remaining ranks because another host failed.
    """
    hosts = directory.host_of_ranks()
    unreported = [rank for rank in hosts if rank not in exited]
    exited_on = {hosts.get(rank) for rank in exited}
    return [rank for rank in unreported if hosts[rank] not in exited_on] or unreported


def _vanished(request: RunRequest, directory: RunDirectory, ranks: Sequence[int]) -> Failure:
    started, log = directory.host_of_ranks(), text_of(directory.launcher_log)
    # The launcher ends the processes on other nodes, whose last output may be lost too.
    lost = {name.partition(".")[0] for name in LOST_NODE.findall(log)}
    ranks = [rank for rank in ranks if started[rank].partition(".")[0] in lost] or ranks
    hosts = [*dict.fromkeys(started[rank] for rank in ranks)]
    rank, what = _named(request, ranks)
    message = (
        f"{what} ended without a word on {', '.join(hosts)}: a node or its daemon failed, or "
        "the job was cancelled; see what the scheduler says of the node, and leave it out"
    )
    # Any of several hosts may be the one that failed.
    host = hosts[0] if len(hosts) == 1 else None
    return Failure(kind="launch", message=message, rank=rank, host=host, detail=log)


def _named(request: RunRequest, processes: Sequence[int]) -> tuple[int | None, str]:
    """Return (1, 'ranks 1, 2') for ranks [1, 2]; (None, 'the command') for other `processes`."""
    if request.launch != "per-rank":
        return None, "the command"
    plural = "" if len(processes) == 1 else "s"
    return processes[0], f"rank{plural} {', '.join(map(str, processes))}"
