"""Start the processes of a command, with pipes for their output and variables for their ranks."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuscale.base.host import descendants, end_at_interrupt, signal_at_parent_death
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker.log_reader import CommandError
from gpuscale.measure.worker.output import COMMAND_SOURCE, Output
from gpuscale.records import Failure, RunRequest
from gpuscale.workload.command_case import filled

RANK_COUNT_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables in which torchrun, DeepSpeed, Open MPI and MPICH pass the number of ranks."""
_RANK_PYTHON = Path(__file__).with_name("rank_python.sh")
"""Script that torchrun starts in place of Python; it redirects a rank's output to pipes."""


def start_command(
    request: RunRequest, directory: RunDirectory, rank: int | None, output: Output
) -> list[subprocess.Popen[bytes]]:
    """Start the command once, or once per rank for `--launch torchrun`, and read the output."""
    command = request.command
    assert command is not None
    variables = {**os.environ, **_device_variables(request.devices)}
    variables |= {"PYTHONUNBUFFERED": "1", "GPUSCALE_REPORT": "1"}
    if rank is None:
        _make_rank_pipes(request.gpus, directory.path, output)
        port = str(_free_port())
        variables["GPUSCALE_PYTHON_EXEC"] = os.environ.get("PYTHON_EXEC", "")
        variables["GPUSCALE_PIPES"] = str(directory.path)
        variables["PYTHON_EXEC"] = str(directory.path / "python")
    else:
        port = os.environ["MASTER_PORT"]
        # Ranks lie on their hosts in blocks, of which the last may be smaller.
        block = directory.ranks_per_host(request.gpus)
        ranks_here = min(block, request.gpus - rank // block * block)
        variables["LOCAL_WORLD_SIZE"] = str(ranks_here)
    values = {
        "gpus": request.gpus,
        "nodes": 1 if rank is None else len(directory.host_names()),
        "batch": request.batch_per_gpu,
        # A command that has no batch cannot have this placeholder either.
        "global_batch": (request.batch_per_gpu or 0) * request.gpus,
        "master_port": port,
    }
    words = filled(command.words, values)
    ranks: dict[str, dict[str, str]] = {COMMAND_SOURCE: {}}
    if rank is None and command.launch == "torchrun":
        size = str(request.gpus)
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        numbers = map(str, range(request.gpus))
        ranks = {f"rank {number}": {"RANK": number, "LOCAL_RANK": number} for number in numbers}
    try:
        return [
            _start(words, command.folder, variables | own, source, output)
            for source, own in ranks.items()
        ]
    except OSError as error:
        # Another node may lack the program, or the folder of the session.
        place = "" if rank is None else f" as rank {rank} on {socket.gethostname()}"
        problem = f"'{error.filename or words[0]}'{place}: {error.strerror}"
        message = f"the command cannot be started: {problem}"
        raise CommandError(Failure(kind="launch", message=message)) from None


def _start(
    words: list[str], folder: str, variables: dict[str, str], source: str, output: Output
) -> subprocess.Popen[bytes]:
    pipes = [os.pipe(), os.pipe()]
    links = (Path(f"/proc/self/fd/{writing}") for _, writing in pipes)
    # The names by which Linux shows where the command writes: `pipe:[17] pipe:[18]`.
    names = " ".join(str(link.readlink()) for link in links if link.is_symlink())
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=variables | {"GPUSCALE_OUTPUT": names},
        stdin=subprocess.DEVNULL,
        stdout=pipes[0][1],
        stderr=pipes[1][1],
        start_new_session=True,
        preexec_fn=_prepare,
    )
    for reading, writing in pipes:
        os.close(writing)
        output.listen(reading, source)
    return process


def _prepare() -> None:
    """Restore the default signal handling in a new process, before it executes the command."""
    signal_at_parent_death(signal.SIGKILL)
    end_at_interrupt()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _device_variables(devices: Sequence[int]) -> dict[str, str]:
    """Return variables that make only the given devices visible to a command."""
    variables = {}
    # On AMD's GPUs HIP's variable takes precedence over CUDA's.
    hip = ["HIP_VISIBLE_DEVICES"] if os.environ.get("HIP_VISIBLE_DEVICES") else []
    for name in ("CUDA_VISIBLE_DEVICES", *hip):
        visible = dict(enumerate(filter(None, os.environ.get(name, "").split(","))))
        shown = (visible.get(device, str(device)) for device in dict.fromkeys(devices))
        variables[name] = ",".join(shown)
    return variables


def _make_rank_pipes(ranks: int, folder: Path, output: Output) -> None:
    """Create and listen to named pipes for each rank that torchrun may start on this node."""
    python = shutil.copyfile(_RANK_PYTHON, folder / "python")
    python.chmod(0o755)
    for number in range(ranks):
        for stream in ("out", "err"):
            path = folder / f"{number}.{stream}"
            os.mkfifo(path)
            # Opened for writing too, or the pipe would end whenever no rank has it open.
            output.listen(os.open(path, os.O_RDWR | os.O_NONBLOCK), f"rank {number}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def rank_counts() -> set[int]:
    """Return the rank counts that descendant processes have in their environments.

    A count inherited from this process is left out.
    """
    counts = set[int]()
    for process in descendants():
        # It may have ended, or belong to another user.
        with suppress(OSError):
            text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
            variables = dict(entry.partition("=")[::2] for entry in text.split("\0"))
            for name in RANK_COUNT_VARIABLES:
                if (count := variables.get(name, "")).isdigit() and count != os.environ.get(name):
                    counts.add(int(count))
    return counts
