"""A command on this node, in place of ranks: started and watched by a process of its own."""

import signal
from multiprocessing.context import ForkServerContext

from gpuscale.launch import do_in_rank, terminations_raised
from gpuscale.launch.failures import text_of
from gpuscale.records import Failure, RunRequest
from gpuscale.run_directory import RunDirectory

_END_S = 20.0
"""How long what watches the command may take to end it."""


def launch_command(
    request: RunRequest, directory: RunDirectory, server: ForkServerContext
) -> Failure | None:
    """Have the command started and ended; why it gave no windows."""
    process = server.Process(target=do_in_rank, args=("command", str(directory.path)))
    process.start()
    try:
        with terminations_raised():
            process.join(request.timeout_s + _END_S)
    finally:
        if process.is_alive():
            process.terminate()
            process.join(_END_S)
            process.kill()
            process.join()
    if reports := directory.failures():
        return reports[0].failure
    if process.exitcode == 0:
        return None
    code = process.exitcode or 0
    end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    said = text_of(directory.launcher_log)
    message = f"the process that watches the command {end}"
    return Failure(kind="killed" if code < 0 else "launch", message=message, detail=said)
