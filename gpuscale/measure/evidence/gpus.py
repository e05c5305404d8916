"""Ask the driver about the GPUs of a run in a child process.

The keeper forks ranks, which must not inherit an open driver.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from select import select

_PATIENCE_S = 10.0
"""Without its persistence mode, a driver takes seconds to wake the GPUs of a node."""


def count_foreign_processes(addresses: Mapping[str, str | None]) -> int | None:
    """Count the processes that compute on these GPUs before a run; None if unknown.

    `addresses` are those of the GPUs by UUID.
    """
    if not addresses:
        return None
    # Imported only for GPUs and before the fork, so that it happens once per keeper.
    from gpuscale.measure.smi import open_smi
    from gpuscale.measure.telemetry.devices import foreign_processes

    readable, writable = os.pipe()
    # The child must not write signals into the pipe that wakes the keeper.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if not child:
        with suppress(BaseException), open_smi() as smi:
            os.write(writable, str(foreign_processes(smi, addresses)).encode())
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writable)
    with os.fdopen(readable, "rb", buffering=0) as pipe:
        answer = pipe.read(100) if select([pipe], [], [], _PATIENCE_S)[0] else b""
    os.kill(child, signal.SIGKILL)
    # If the driver hangs, the keeper reaps the child whenever it ends.
    os.waitpid(child, 0 if answer else os.WNOHANG)
    return int(answer) if answer.isdigit() else None
