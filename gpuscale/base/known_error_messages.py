"""Patterns for messages of torch, CUDA, NCCL, gloo, Python, uv and schedulers, all in one place."""

import re

OUT_OF_MEMORY = re.compile(
    r"^(?:torch\.(?:cuda\.)?OutOfMemoryError|MemoryError)|can(?:'t|not) allocate memory"
    r"|(?:CUDA|HIP) (?:error: )?out of memory|STATUS_ALLOC_FAILED|std::bad_alloc"
    r"|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'"
    # Errors of oneDNN. One about a descriptor means that an operator is not supported.
    r"|could not create a (?:primitive|memory object)(?! descriptor)",
    re.IGNORECASE,
)
"""Pattern for the last line of a traceback caused by lack of memory on a GPU or the host."""

NO_ENGINE = re.compile("unable to find an engine to execute this computation")
"""Pattern for the error after all cuDNN algorithms failed, possibly for lack of memory."""

LOST_PEER = re.compile(r"gloo|NCCL")
"""Pattern for the error of a rank that lost contact with another rank, which probably failed."""

LOST_PEER_LINES = re.compile(
    r"\bDist\w*Error\b|Error: .*\b(?:gloo|NCCL)\b|\bSignalException: Process \d+ got signal: 15\b"
)
"""Pattern for errors of a command that lost a peer or was terminated after another failed."""

LOST_NODE = re.compile(
    r"(?:Node failure on|Remote daemon\s*: \S+ on node) ([\w.-]+)$", re.MULTILINE
)
"""Pattern for messages of Slurm and Open MPI about a lost node; the group matches its name."""

_RANK_PREFIX = r"(?:\[rank\d+\]: ?)?"
TRACEBACK = re.compile(rf"{_RANK_PREFIX}Traceback \(most recent call last\):")
"""Pattern for the first line of a Python traceback; torch may prefix each line with the rank."""

EXCEPTION = re.compile(rf"{_RANK_PREFIX}(?P<exception>[A-Za-z_][\w.]*(?:: .*)?)")
"""Pattern for the last line of a Python traceback."""

STARTER_EXCEPTION = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError)\b")
"""Pattern for the exception that torchrun or accelerate raises if one of its processes fails."""

TORCHRUN_SUMMARY = re.compile(
    # Through a shell, lines of ranks may come between.
    r"\brank\s*: (\d+) \(local_rank: \d+\)(?:.*\n){1,9}?.*\bexitcode\s*: (-?\d+)"
)
"""Pattern for a rank's entry in torchrun's summary, whose last entry is the first rank to fail."""

NCCL_ERROR = re.compile("NCCL error")
"""Pattern for the first line of an NCCL error message; the following lines contain the cause."""

SYSTEM = re.compile(
    r"uncorrectable|ECC error|unspecified launch failure|hardware stack|illegal instruction"
    r"|no CUDA-capable device|busy or unavailable|CUDA driver|initialization error"
    r"|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError"
    r"|DistNetworkError|DistStoreError|Connection (?:reset|closed|refused|timed out)"
    r"|No route to host|Network is unreachable|Broken pipe|Stale file handle|Input/output error"
    r"|No space left on device|Disk quota exceeded|Read-only file system",
    re.IGNORECASE,
)
"""Pattern for failures of a device, network or file system, as opposed to errors in the case."""

DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
