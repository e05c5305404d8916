"""Processes that write what NCCL would write, to the file that it would open."""

SPEAK = r'''
import os, socket


def speak(*messages):
    """Write lines as src/debug.cc of NCCL does, which opens the file with "w"."""
    if os.environ.get("NCCL_DEBUG") != "INFO":
        return
    host, process = socket.gethostname().partition(".")[0], str(os.getpid())
    path = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", process)
    with open(path, "w") as log:
        for text in messages:
            log.write(f"{host}:{process}:{process} [0] NCCL INFO {text}\n")


LINES = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>",
    "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read",
    "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
    "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per "
    "peer",
)
'''
SAID = {
    "NVLS": "on",
    "NVLS channels": "16",
    "adapters": "mlx5_0:1/IB",
    "channels": "24",
    "library": "NCCL 2.28.9+cuda13.0",
    "transport inside nodes": "P2P/CUMEM",
}
"""What a node says whose processes write these lines."""
CASE = f"""
{SPEAK}

class Case(Tiny):
    def model(self):
        speak(*LINES)
        return super().model()
"""
