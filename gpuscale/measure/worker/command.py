"""The process that starts the command of a run, times its lines, and ends all that it started."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from gpuscale.base.errors import GpuscaleError
from gpuscale.base.foreign_texts import LOST_PEER_LINES
from gpuscale.base.host import adopt_orphans, descendants, end_at_interrupt, signal_at_parent_death
from gpuscale.base.units import counted
from gpuscale.measure.run_directory import RunDirectory, write_atomically
from gpuscale.measure.worker.last_words import LastWords
from gpuscale.measure.worker.log_reader import FEWEST_WINDOWS, CommandError, LogReader
from gpuscale.measure.worker.output import OF_COMMAND, Output
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.request import RankFailure
from gpuscale.workload.command_case import fields_of, filled, starter_of

_LOOK_S = 0.2
_DRAIN_S = 1.0
_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""
_WAIT_FOR_OTHERS_S = 3.0
_RANK_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables by which torchrun, DeepSpeed, Open MPI and MPICH say how many ranks there are."""
_RANK_PYTHON = """\
#!/bin/sh
# What torchrun starts as Python for each rank: the output goes into pipes of the rank's own. If a
# shell or torchrun has sent it elsewhere, as in `torchrun … | tee log`, it goes there as well.
copy() {
    [ -p "$1.copy" ] || mkfifo "$1.copy"
    # No child of Python's, and not ended with it: the last lines count most.
    (trap '' HUP INT TERM; exec tee "$1" <"$1.copy" &)
}
is_copied() {
    case " $GPUSCALE_OUTPUT " in *" $(readlink "/proc/$$/fd/$1") "*) return 1 ;; esac
    command -v tee >/dev/null && command -v mkfifo >/dev/null && command -v readlink >/dev/null
}
pipe=$GPUSCALE_PIPES/$RANK
if [ -p "$pipe.out" ]; then
    if is_copied 1; then copy "$pipe.out"; exec >"$pipe.out.copy"; else exec >"$pipe.out"; fi
    if is_copied 2; then copy "$pipe.err" >&2; exec 2>"$pipe.err.copy"; else exec 2>"$pipe.err"; fi
fi
python=${GPUSCALE_PYTHON_EXEC:-$(tr '\\0' '\\n' <"/proc/$PPID/cmdline" | head -n 1)}
exec "$python" "$@"
"""


class _Ended(BaseException):
    """Whoever waited for the command does not wait any more."""


def main(folder: str) -> None:
    """Start the command that a run's folder asks for, and leave its windows or why it has none."""
    signal_at_parent_death(signal.SIGTERM)
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    directory = RunDirectory(path=Path(folder))
    request = directory.request.read()
    rank = int(os.environ["RANK"]) if directory.hosts.exists() else None
    try:
        if (error := _measure_or_error(request, directory, rank)) is not None:
            _tell_failure(error, directory, rank)
            raise SystemExit(1)
    except _Ended:
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        _end_descendants()


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended


def _measure_or_error(
    request: RunRequest, directory: RunDirectory, rank: int | None
) -> CommandError | None:
    """Measure; the reason why there is no result, None where there is one."""
    try:
        _measure(request, directory, rank)
    except CommandError as error:
        return error
    except GpuscaleError as error:
        # Such as of a pattern that takes something else than a number from a line.
        return CommandError(Failure(kind="invalid", message=str(error)))
    return None


def _tell_failure(error: CommandError, directory: RunDirectory, rank: int | None) -> None:
    """Leave why there is no result, and time for those who know more of it."""
    own_rank = error.failure.rank if rank is None else rank
    failure = replace(error.failure, rank=own_rank, host=socket.gethostname())
    is_end = failure.kind in ("raised", "killed")
    lost_peer = is_end and LOST_PEER_LINES.search(failure.detail) is not None
    report = RankFailure(failure=failure, lost_peer=lost_peer, steps_told=error.steps_told)
    directory.failure(rank or 0).write(report)
    if rank is not None and (lost_peer or failure.kind == "timeout"):
        # When one task has failed the scheduler ends the others.
        time.sleep(_WAIT_FOR_OTHERS_S)


def _measure(request: RunRequest, directory: RunDirectory, rank: int | None) -> None:
    """Watch the command until it has told enough, or ended; CommandError where it cannot."""
    assert request.command is not None
    output, pipes = Output(), _pipes(request, directory, rank)
    reader = LogReader(request, shared_pipe=request.gpus > 1 and rank is None)
    clock_s, started_s = time.time() - time.monotonic(), time.monotonic()
    deadline_s = started_s + request.timeout_s
    for descriptor, source in pipes:
        output.listen(descriptor, source)
    processes = list(_started(request, directory, rank, output))
    looked_s, has_counted_ranks = started_s, rank is not None
    while True:
        reader.take(output.lines(_LOOK_S))
        now_s = time.monotonic()
        if now_s - looked_s < _LOOK_S:
            continue
        looked_s, windows = now_s, reader.windows
        reader.validate_lines(rank or 0, is_late=now_s > deadline_s)
        has_counted_ranks = has_counted_ranks or _count_ranks(request, reader)
        codes = [process.poll() for process in processes]
        is_over = None not in codes or any(codes)
        if is_over:
            # Not for ever: what it left in the background may go on printing.
            while (lines := output.lines(0)) and time.monotonic() < now_s + _DRAIN_S:
                reader.take(lines)
            windows = reader.windows
        found = 0 if windows is None else len(windows.spans)
        if windows is not None and (
            found >= windows.wanted or (is_over and not any(codes) and found >= FEWEST_WINDOWS)
        ):
            _tell(directory, windows.wanted, windows.wanted, knows=True)
            outcome = reader.outcome(windows, started_s=started_s, clock_s=clock_s)
            directory.command_outcome(rank or 0).write(outcome)
            write_atomically(directory.enough, f"rank {rank}")
            return
        if rank is not None and directory.enough.exists():
            return
        if is_over:
            _refuse_end(codes, reader, directory, rank)
            return
        if now_s > deadline_s:
            why = reader.standstill(now_s) or (
                f"the command was not done after {request.timeout_s:g} s: {reader.told_so_far()}"
            )
            remedy = f"{reader.use_of_time}, or see below what it printed last"
            raise reader.failed(f"{why}. {remedy}", "timeout")
        wanted = FEWEST_WINDOWS if windows is None else windows.wanted
        _tell(directory, found, wanted, knows=rank is None or reader.has_steps())


def _count_ranks(request: RunRequest, reader: LogReader) -> bool:
    """Return True once a step was told and there are as many ranks as GPUs; else CommandError.

    Processes that do not show how many ranks there are are not doubted.
    """
    command, gpus = request.command, request.gpus
    assert command is not None
    if not reader.has_steps():
        return False
    counts = set[int]()
    for process in descendants():
        # It may have ended, or be another user's.
        with suppress(OSError):
            text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
            variables = dict(each.partition("=")[::2] for each in text.split("\0"))
            for name in _RANK_COUNTS:
                if (count := variables.get(name, "")).isdigit() and count != os.environ.get(name):
                    counts.add(int(count))
    if not (counts or request.devices or any(name in os.environ for name in _RANK_COUNTS)):
        # Without GPUs, each rank that a starter makes has such a variable; else it made none.
        # Those that have just failed can no longer be asked for it.
        made_none = starter_of(command.words) and not reader.has_heard_ranks()
        counts = {1} if made_none else counts
    if not counts or gpus in counts:
        return True
    has_number = "gpus" in fields_of(command.words)
    remedy = (
        "see why, since it has {gpus}"
        if has_number
        else "write {gpus} where the command has their number"
    )
    ranks, on = max(counts), counted(gpus, "GPU" if request.devices else "CPU rank")
    # A rank may drive several GPUs, if their number depends on what was asked for.
    if request.devices and gpus % ranks == 0 and has_number:
        return True
    raise reader.failed(f"the command started {counted(ranks, 'rank')} in a run on {on}; {remedy}")


def _refuse_end(
    codes: list[int | None], reader: LogReader, directory: RunDirectory, rank: int | None
) -> None:
    """Raise CommandError for a command that ended too early, unless another node's told enough."""
    failed = {f"rank {number}": code for number, code in enumerate(codes) if code}
    code = next(iter(failed.values()), 0)
    if len(codes) == 1:
        # What a killed command started may have survived its exceptions.
        failed = {OF_COMMAND: code} if code < 0 else {}
    words = reader.last_words(failed)
    # That of a rank also if the command ended well, as a shell does that pipes torchrun's output.
    if code := code if words.exit_code is None else words.exit_code:
        raise _failed_end(code, words, reader, rank)
    deadline_s = time.monotonic() + _WAIT_FOR_OTHERS_S
    while rank is not None and time.monotonic() < deadline_s:
        if directory.enough.exists():
            return
        time.sleep(_LOOK_S)
    if not rank or reader.has_steps():
        left = " (processes that it left in the background do not count)" if _living() else ""
        kind: FailureKind = "invalid" if reader.has_steps() else "unread"
        raise reader.failed(f"the command ended too early{left}: {reader.told_so_far()}", kind)


def _failed_end(code: int, words: LastWords, reader: LogReader, rank: int | None) -> CommandError:
    """The error of a command, or of the rank that ended it, with an exit code other than 0."""
    kind: FailureKind = "raised"
    who = words.source
    if words.exception is not None:
        who = who if rank is None else f"rank {rank} on {socket.gethostname()}"
        end = f"raised {words.exception}"
    elif code < 0:
        kind = "killed"
        reason = " (out of memory?)" if -code == signal.SIGKILL else ""
        end = f"was killed by {signal.Signals(-code).name}{_place(rank)}{reason}"
    else:
        end = f"ended with exit code {code}{_place(rank)}"
    shown = "its last lines are below"
    if not words.lines:
        shown = "it printed nothing, and the last lines of others are below"
    error = reader.failed(f"{who} {end}; {shown}", kind, lines=words.lines)
    number = words.source.removeprefix("rank ")
    error.failure = replace(error.failure, rank=int(number) if number.isdigit() else rank)
    return error


def _place(rank: int | None) -> str:
    return "" if rank is None else f" as rank {rank} on {socket.gethostname()}"


def _tell(directory: RunDirectory, done: int, total: int, *, knows: bool) -> None:
    """Tell how far the run is, unless it is a rank that knows no steps: others do."""
    if knows:
        write_atomically(directory.progress, f"window\t{min(done, total)}\t{total}")


def _pipes(
    request: RunRequest, directory: RunDirectory, rank: int | None
) -> Iterator[tuple[int, str]]:
    """The ends of named pipes for each rank that torchrun may start on this node."""
    python = directory.path / "python"
    if rank is not None:
        return
    python.write_text(_RANK_PYTHON)
    python.chmod(0o755)
    for number in range(request.gpus):
        for kind in ("out", "err"):
            path = directory.path / f"{number}.{kind}"
            os.mkfifo(path)
            # Writing too, or the pipe would end whenever nobody else writes.
            yield os.open(path, os.O_RDWR | os.O_NONBLOCK), f"rank {number}"


def _started(
    request: RunRequest, directory: RunDirectory, rank: int | None, output: Output
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the command as often as it is asked for; its pipes are listened to."""
    command = request.command
    assert command is not None
    port = os.environ["MASTER_PORT"] if rank is not None else str(_free_port())
    values = {
        "gpus": request.gpus,
        "nodes": 1 if rank is None else len(directory.host_names()),
        "batch": request.batch_per_gpu,
        # Refused among the words where nobody but the lines tells it.
        "global_batch": (request.batch_per_gpu or 0) * request.gpus,
        "master_port": port,
    }
    words = filled(command.words, values)
    given = {**os.environ, **_variables(request, directory, rank)}
    places: list[dict[str, str]] = [{}]
    if rank is None and command.launch == "torchrun":
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(request.gpus)}
        places = [
            {**shared, "RANK": str(n), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(request.gpus)}
            for n in range(request.gpus)
        ]
    for place in places:
        source = f"rank {place['RANK']}" if place else OF_COMMAND
        pipes = {stream: os.pipe() for stream in ("stdout", "stderr")}
        try:
            yield subprocess.Popen(
                words,
                cwd=command.folder,
                env={**given, **place, "GPUSCALE_OUTPUT": _links_of(pipes)},
                stdin=subprocess.DEVNULL,
                stdout=pipes["stdout"][1],
                stderr=pipes["stderr"][1],
                start_new_session=True,
                preexec_fn=_prepare,
            )
        except OSError as error:
            # Another node may lack the program, or the folder of the session.
            problem = f"'{error.filename or words[0]}'{_place(rank)}: {error.strerror}"
            problem = f"the command cannot be started: {problem}"
            raise CommandError(Failure(kind="launch", message=problem)) from None
        for reading, writing in pipes.values():
            os.close(writing)
            output.listen(reading, source)


def _links_of(pipes: dict[str, tuple[int, int]]) -> str:
    """The names by which Linux shows where the command writes: `pipe:[17] pipe:[18]`."""
    ends = (Path(f"/proc/self/fd/{writing}") for _, writing in pipes.values())
    return " ".join(str(end.readlink()) for end in ends if end.is_symlink())


def _variables(request: RunRequest, directory: RunDirectory, rank: int | None) -> dict[str, str]:
    """What a command is told in its environment beside what this process has."""
    variables = {"PYTHONUNBUFFERED": "1", "GPUSCALE_REPORT": "1"}
    # On AMD's GPUs HIP's goes before CUDA's. Both are empty on CPU ranks: what is recorded as `cpu`
    # must not use a GPU.
    hip = [name for name in ("HIP_VISIBLE_DEVICES",) if os.environ.get(name)]
    for name in ("CUDA_VISIBLE_DEVICES", *hip):
        visible = dict(enumerate(filter(None, os.environ.get(name, "").split(","))))
        devices = dict.fromkeys(request.devices)
        variables[name] = ",".join(visible.get(device, str(device)) for device in devices)
    if rank is not None:
        # Ranks lie on their hosts in blocks, of which the last may be smaller.
        block = directory.ranks_per_host(request.gpus)
        on_this_host = min(block, request.gpus - rank // block * block)
        return {**variables, "LOCAL_WORLD_SIZE": str(on_this_host)}
    return {
        **variables,
        "PYTHON_EXEC": str(directory.path / "python"),
        "GPUSCALE_PIPES": str(directory.path),
        "GPUSCALE_PYTHON_EXEC": os.environ.get("PYTHON_EXEC", ""),
    }


def _prepare() -> None:
    """In the command's process, before it becomes the command."""
    signal_at_parent_death(signal.SIGKILL)
    end_at_interrupt()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _end_descendants() -> None:
    """End all that was started, also in sessions of their own: first politely, then by force."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    deadline_s = time.monotonic() + _GRACE_S
    _signal_all(descendants(), signal.SIGTERM)
    while left := _living():
        if time.monotonic() > deadline_s:
            _signal_all(left, signal.SIGKILL)
        time.sleep(0.02)


def _living() -> set[int]:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants()


def _signal_all(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
