"""Ask NVML about the GPUs of a run, in a child process that ends at once.

The keeper forks ranks, and NVML's threads and handles must not be among what they inherit.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from select import select

import msgspec

_PATIENCE_S = 10.0
"""Without its persistence mode, a driver takes seconds to wake the GPUs of a node."""
_CHUNK_BYTES = 65536


class GpuAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """NVML's answers about the GPUs of a run on one node."""

    processes: int | None = None
    """Number of processes that compute on the GPUs; None if unknown."""
    absent: Mapping[str, str] = {}
    """The reasons for missing answers."""


def ask_gpus(uuids: Sequence[str]) -> GpuAnswers:
    """Return NVML's answers about these GPUs; without GPUs, ask nothing."""
    if not uuids:
        return GpuAnswers()
    # Imported only for GPUs and before the fork, so that it happens once per keeper.
    from gpuscale.measure.nvml import DriverAbsentError, open_nvml
    from gpuscale.measure.telemetry.device import foreign_processes

    def answers() -> GpuAnswers:
        try:
            with open_nvml():
                return GpuAnswers(processes=foreign_processes(uuids))
        except DriverAbsentError as error:
            return GpuAnswers(absent={"gpus": str(error)})

    try:
        return msgspec.json.decode(_from_child(answers), type=GpuAnswers)
    except (OSError, msgspec.DecodeError):
        reason = f"NVML did not answer within {_PATIENCE_S:.0f} s, or its process died"
        return GpuAnswers(absent={"gpus": reason})


def _from_child(answers: Callable[[], GpuAnswers]) -> bytes:
    """Return what a forked process answers, as JSON; empty if it dies, or hangs in the driver."""
    readable, writable = os.pipe()
    # The keeper's handlers, and the pipe that Python writes signals into, are not for the child.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(writable, msgspec.json.encode(answers()))
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer = pipe.read(_CHUNK_BYTES) if select([pipe], [], [], _PATIENCE_S)[0] else b""
    if not answer:
        os.kill(child, signal.SIGKILL)
        # A process that hangs in the driver is left to the keeper, which ends what is left.
        os.waitpid(child, os.WNOHANG)
    else:
        os.waitpid(child, 0)
    return answer
