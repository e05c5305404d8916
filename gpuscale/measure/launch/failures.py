"""Find out why a run has no result: the root cause, where it occurred, and a remedy."""

import signal
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from gpuscale.base.foreign_texts import LOST_NODE, OUT_OF_MEMORY
from gpuscale.base.host import FAULT_SIGNALS, text_of
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.request import RankFailure

_OUTPUT_TAIL_CHARS = 4000
_ENDED = 128 + signal.SIGTERM
"""Exit code of a process that watches a command and was ended by SIGTERM."""
_FROM_OUTSIDE = (
    "the job was cancelled, its time was up, or a node of it failed; see what the scheduler says "
    "of the job"
)


def failure_of(
    request: RunRequest,
    directory: RunDirectory,
    exit_codes: dict[int, int],
    *,
    timed_out: bool = False,
    launcher: str | None = None,
) -> Failure | None:
    """Return the reason why the ranks of a run did not end normally, or None if they did.

    Args:
        request: The request for the run.
        directory: The folder with the files of the ranks.
        exit_codes: Exit codes of the ranks known to have ended, in the order in which they ended:
            negative signal number if a signal killed the rank, 0 also if the launcher ended it.
        timed_out: True if the launcher ended the ranks because the run took too long.
        launcher: Name of the launcher across nodes if some exit codes are unknown, or else None.
    """
    failed = {rank: code for rank, code in exit_codes.items() if code}
    if request.command is not None and (found := _command_failure(request, directory, exit_codes)):
        return found
    if timed_out:
        return _timeout(request, directory)
    if failed:
        return _crash(request, directory, exit_codes)
    if launcher is None:
        return None
    started = directory.host_of_ranks()
    absent = [rank for rank in range(request.processes) if rank not in started]
    if absent:
        rank, what = _named(request, absent)
        message = f"{launcher} did not start {what}; see what it said below"
        log = text_of(directory.launcher_log)
        return Failure(kind="launch", message=message, rank=rank, detail=log)
    silent = _silent(request, directory, exit_codes) or range(request.processes)
    return _vanished(request, directory, silent)


def _command_failure(
    request: RunRequest, directory: RunDirectory, exit_codes: dict[int, int]
) -> Failure | None:
    """Return a command's failure, from the reports or exit codes of the processes watching it."""
    failed = {rank: code for rank, code in exit_codes.items() if code}
    reports = directory.failures()
    own = [report for report in reports if not report.lost_peer]
    if not own and (died := {r: code for r, code in failed.items() if -code in FAULT_SIGNALS}):
        return _unwatched(request, directory, died)
    if reports and not own and (silent := _silent(request, directory, exit_codes)):
        return _vanished(request, directory, silent)
    if reports:
        first = (own or reports)[0].failure
        return _hang(own) if first.kind == "timeout" else first
    # If a node fails, the scheduler ends the others.
    if {*failed.values()} == {_ENDED} and (silent := _silent(request, directory, exit_codes)):
        return _vanished(request, directory, silent)
    return _unwatched(request, directory, failed) if failed else None


def _hang(reports: Sequence[RankFailure]) -> Failure:
    """Return the failure of a command that timed out, with the last output of every rank."""
    by_rank = sorted(reports, key=lambda one: (one.failure.rank or 0, one.failure.host or ""))
    best = max(by_rank, key=lambda report: report.steps_told).failure
    if best.rank is None and len(by_rank) == 1:
        return best
    last_words = (
        f"{'the command' if failure.rank is None else f'rank {failure.rank}'} on {failure.host} "
        f"printed last:\n{failure.detail}"
        for failure in (report.failure for report in by_rank)
    )
    return Failure(kind="timeout", message=best.message, detail="\n\n".join(last_words))


def _unwatched(request: RunRequest, directory: RunDirectory, exit_codes: dict[int, int]) -> Failure:
    """Return the failure of a run whose process for watching the command ended unexpectedly."""
    rank, code = next(iter(exit_codes.items()))
    if code == _ENDED:
        message = f"the command was ended by SIGTERM{_on_host(directory, rank)}: {_FROM_OUTSIDE}"
        failure = _ended(directory, rank, "launch", message)
        return failure if request.launch == "per-rank" else replace(failure, rank=None)
    end = f"ended with exit code {code}"
    if code < 0:
        end = f"was killed by {signal.Signals(-code).name}"
    message = f"the process that watches the command{_on_host(directory, rank)} {end}"
    return _ended(directory, rank, "killed" if code < 0 else "launch", message)


def _timeout(request: RunRequest, directory: RunDirectory) -> Failure:
    """Return the failure of a run that timed out, with the stack trace of each rank."""
    stacks, hosts = [], directory.host_of_ranks()
    for rank in range(request.processes):
        text = text_of(directory.stacks(rank)) or "(it left no stack: not started, or stopped)"
        place = f" on {hosts[rank]}" if rank in hosts else ""
        stacks.append(f"rank {rank}{place} was here:\n{text}")
    stage = " ".join(text_of(directory.progress).split("\t")[:2]) or "start-up"
    message = (
        f"not done after {request.timeout_s:g} s, in {stage}; all ranks were ended. "
        "Give it more with --timeout, or see below where each rank was"
    )
    return Failure(kind="timeout", message=message, detail="\n\n".join(stacks))


def _crash(request: RunRequest, directory: RunDirectory, exit_codes: dict[int, int]) -> Failure:
    """Return the cause of a crash: a rank killed by a signal, or else the first exception."""
    reports = directory.failures()
    own = [report for report in reports if not report.lost_peer]
    # A peer's death makes the others raise, so a rank that a signal killed is the cause. SIGABRT is
    # an exception: NCCL's watchdog aborts a rank whose peer has failed, and a rank that has raised
    # can abort on its way out.
    for signals in (FAULT_SIGNALS, () if own else (signal.SIGABRT,)):
        for rank, code in exit_codes.items():
            if -code in signals:
                reason = " (out of memory?)" if -code == signal.SIGKILL else ""
                end = f"was killed by {signal.Signals(-code).name}{_on_host(directory, rank)}"
                return _ended(directory, rank, "killed", f"rank {rank} {end}{reason}")
    if reports and not own and (silent := _silent(request, directory, exit_codes)):
        return _vanished(request, directory, silent)
    if reports:
        return _raised(request, directory, own[0] if own else reports[0])
    rank, code = next((rank, code) for rank, code in exit_codes.items() if code)
    end = f"ended with exit code {code} and left no message"
    if code < 0:
        end = f"was ended by {signal.Signals(-code).name}: {_FROM_OUTSIDE}"
    return _ended(directory, rank, "launch", f"rank {rank}{_on_host(directory, rank)} {end}")


def _ended(directory: RunDirectory, rank: int, kind: FailureKind, message: str) -> Failure:
    """Return the failure of a rank that left no report, with the end of the rank's output."""
    tail = text_of(directory.output(rank))[-_OUTPUT_TAIL_CHARS:].strip()
    host = directory.host_of_ranks().get(rank)
    if OUT_OF_MEMORY.search(tail):
        kind, message = "out_of_memory", f"{message}, out of memory"
    return Failure(kind=kind, message=message, rank=rank, host=host, detail=tail)


def _raised(request: RunRequest, directory: RunDirectory, report: RankFailure) -> Failure:
    failure = report.failure
    if not failure.detail:
        # The message is written for the user and complete.
        return failure
    line = "" if report.line is None else f"{report.line}: "
    message = (
        f"{line}rank {failure.rank}{_on_host(directory, failure.rank)} raised {failure.message}"
    )
    if OUT_OF_MEMORY.search(failure.message):
        # The message says which memory: a GPU's allocator reports how much it has.
        message = (
            f"rank {failure.rank} on {failure.host} ran out of memory with a batch of "
            f"{request.batch_per_gpu} per GPU; give it more, or each node fewer ranks, or choose "
            f"a smaller --size or batch: {failure.message}"
        )
        failure = replace(failure, kind="out_of_memory")
    return replace(failure, message=message)


def _silent(request: RunRequest, directory: RunDirectory, told: Collection[int]) -> list[int]:
    """Return the started ranks whose exit codes are unknown, because their keepers ended first.

    If possible, only ranks on hosts without any known exit code are returned: on other hosts the
    scheduler may have ended the keepers because of the failure elsewhere.
    """
    hosts = directory.host_of_ranks()
    silent = [rank for rank in hosts if rank not in told]
    heard = {hosts.get(rank) for rank in told}
    return [rank for rank in silent if hosts[rank] not in heard] or silent


def _vanished(request: RunRequest, directory: RunDirectory, ranks: Sequence[int]) -> Failure:
    started, log = directory.host_of_ranks(), text_of(directory.launcher_log)
    # The launcher ends the processes on other nodes, whose last words may be lost too.
    lost = {name.partition(".")[0] for name in LOST_NODE.findall(log)}
    on_lost = [rank for rank in ranks if started.get(rank, "").partition(".")[0] in lost]
    ranks = on_lost or ranks
    hosts = [started.get(rank) for rank in ranks]
    places = ", ".join(dict.fromkeys(host or "?" for host in hosts))
    rank, what = _named(request, ranks)
    message = (
        f"{what} ended without a word on {places}: a node or its daemon failed, or "
        "the job was cancelled; see what the scheduler says of the node, and leave it out"
    )
    return Failure(kind="launch", message=message, rank=rank, host=hosts[0], detail=log)


def _named(request: RunRequest, processes: Sequence[int]) -> tuple[int | None, str]:
    """Return the rank of the first process (None if not a rank), and words for all processes."""
    if request.launch != "per-rank":
        return None, "the command"
    plural = "" if len(processes) == 1 else "s"
    return processes[0], f"rank{plural} {', '.join(map(str, processes))}"


def _on_host(directory: RunDirectory, rank: int | None) -> str:
    host = None if rank is None else directory.host_of_ranks().get(rank)
    return "" if host is None else f" on {host}"
