"""`python tied.py COMMAND …`: become a command that gets SIGTERM when its parent dies.

`srun` and `mpirun` end all their processes at SIGTERM; when this process's parent is killed with
SIGKILL, nobody else would tell them. The file is run by its path and imports nothing of gpuscale.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == parent:
        os.execvp(sys.argv[2], sys.argv[2:])
