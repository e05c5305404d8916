"""The fork server: imports torch once, so that a rank starts in tenths of a second."""

import multiprocessing
import signal
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from gpuscale.encoding import from_json
from gpuscale.errors import MachineError
from gpuscale.launch.trampoline import describe_machine
from gpuscale.records import Environment
from gpuscale.scratch import scratch_folder

_PRELOAD = ["gpuscale.worker.forkserver_preload"]
_DESCRIBE_TIMEOUT_S = 120.0


def fork_server() -> ForkServerContext:
    """The context whose processes are forked from the preloaded server; it never touches CUDA."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    # The server inherits the mask: Ctrl-C is for this process, and would otherwise end a server
    # that is still importing, with a traceback. Ranks lift the mask for themselves. The tracker
    # goes first, since its start lifts the mask here.
    resource_tracker.ensure_running()
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    return context


def describe_machine_in_child(device: str) -> Environment:
    """The environment of this machine, found out by a process that may touch CUDA.

    Raises:
        MachineError: there are no GPUs, or the process failed or did not answer.
    """
    with scratch_folder("gpuscale-machine-") as folder:
        path = folder / "environment.json"
        process = fork_server().Process(target=describe_machine, args=(str(path), device))
        process.start()
        process.join(_DESCRIBE_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
            raise MachineError(
                f"the GPUs did not answer within {_DESCRIBE_TIMEOUT_S:.0f} s; "
                "see whether 'nvidia-smi' does"
            )
        if not path.exists():
            raise MachineError(
                f"the process that looks at the GPUs ended with exit code {process.exitcode}; "
                "see its message above, or measure with --device cpu"
            )
        environment = from_json(Environment, path.read_text(encoding="utf-8"))
    if device == "cuda" and not environment.gpus:
        raise MachineError(
            "--device cuda: torch sees no GPU here; see 'nvidia-smi' and CUDA_VISIBLE_DEVICES, "
            "or measure CPU ranks with --device cpu"
        )
    return environment
