"""Patterns for all messages of torch, CUDA, NCCL, gloo, Python and uv that gpuscale recognises.

tests/test_foreign_texts.py checks the patterns against messages of every supported torch version on
a CPU, and against CUDA and NCCL messages from bug reports.
"""

import re

SHAPES = re.compile(
    r"shapes cannot be multiplied|must have same reduction dim|[Ss]ize mismatch, got"
    r"|size does not match weight size|Given (?:groups|transposed)=|Invalid channel dimensions"
    r"|with negative dimension|Kernel size can't be greater|Output size is too small"
    r"|xpected .*\dD.* input"
    r"|running_mean should contain|normalized_shape=|number of channels in input"
    r"|input\.size\(-1\) must be equal|expecting embedding dimension|first two dimensions of batch2"
    r"|does not broadcast with|must match the size of tensor|Attempting to broadcast a dimension"
    r"|Sizes of tensors must match|is invalid for input of size|Provided sizes .* multiply up to"
    r"|Expected input batch_size|Expected target size|Target size .* must be the same"
    r"|Using a target size .* different|multi-target not supported|Target \d+ is out of bounds"
    r"|not one number$"
)
"""torch's errors, on the meta device or a CPU, for batches whose shape does not fit the model or
the loss; the last alternative is gpuscale's own message."""

OUT_OF_MEMORY = re.compile(
    r"^(?:torch\.(?:cuda\.)?OutOfMemoryError|MemoryError)|can(?:'t|not) allocate memory"
    r"|(?:CUDA|HIP) (?:error: )?out of memory|STATUS_ALLOC_FAILED|std::bad_alloc"
    r"|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'"
    # oneDNN's words. If it does not support an operator, it cannot create a descriptor.
    r"|could not create a (?:primitive|memory object)(?! descriptor)",
    re.IGNORECASE,
)
"""Last line of a traceback if a GPU or the host ran out of memory."""

NO_ENGINE = re.compile("unable to find an engine to execute this computation")
"""Error raised if all cuDNN convolution algorithms failed, perhaps for lack of workspace memory."""

LOST_PEER = re.compile(r"gloo|NCCL")
"""Error raised by a rank that lost contact with another rank, which most likely ended first."""

LOST_PEER_LINES = re.compile(r"\bDist\w*Error\b|Error: .*\b(?:gloo|NCCL)\b")
"""The same errors as `LOST_PEER`, but found in the last lines that a command printed."""

LOST_NODE = re.compile(
    r"(?:Node failure on|Remote daemon\s*: \S+ on node) ([\w.-]+)$", re.MULTILINE
)
"""Messages of Slurm and Open MPI about a node that they have lost; the group is its name."""

_RANK_PREFIX = r"(?:\[rank\d+\]: ?)?"
TRACEBACK = re.compile(rf"{_RANK_PREFIX}Traceback \(most recent call last\):")
"""First line of a Python traceback; torch may prefix each line of a traceback with the rank."""

EXCEPTION = re.compile(rf"{_RANK_PREFIX}(?P<exception>[A-Za-z_][\w.]*(?:: .*)?)")
"""Last line of a Python traceback."""

STARTER_EXCEPTION = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError)\b")
"""Exception raised by a launcher such as torchrun or accelerate when one of its processes
failed."""

TORCHRUN_SUMMARY = re.compile(r"\brank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")
"""Entry of a rank in torchrun's summary; the last entry is the rank that failed first."""

NCCL_ERROR = re.compile("NCCL error")
"""First line of an NCCL error message; the following lines contain the cause."""

SYSTEM = re.compile(
    r"uncorrectable|ECC error|unspecified launch failure|hardware stack|illegal instruction"
    r"|no CUDA-capable device|busy or unavailable|CUDA driver|initialization error"
    r"|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError"
    r"|DistNetworkError|DistStoreError|Connection (?:reset|closed|refused|timed out)"
    r"|No route to host|Network is unreachable|Broken pipe|Stale file handle|Input/output error"
    r"|No space left on device|Disk quota exceeded|Read-only file system",
    re.IGNORECASE,
)
"""Failures of a device, network or file system, as opposed to errors in the case."""

SHARDS = re.compile(r"DTensor|sharding strategy|placement")
"""Errors raised by operators that do not support the sharded parameters of fsdp."""

MAYBE_EXTERNAL = re.compile(
    # A device-side assertion is CUDA's message for an index out of bounds.
    r"CUDA error(?!: device-side assert)|out of memory|cuDNN|CUBLAS|NCCL|gloo|Dist\w*Error",
    re.IGNORECASE,
)
"""Failures that a device or another rank may have caused; the case itself may be correct."""

MAYBE_TRANSIENT = re.compile(
    # Except errors 2 and 13: a path that is absent or not readable stays so.
    r"(?:OS|EOF|HTTP|URL)Error|\[Errno (?!2\]|13\])|connection|time[d-]? ?out|unavailable"
    r"|DataLoader worker \(pid",
    re.IGNORECASE,
)
"""Failures to access a file or a connection, which may succeed at the next attempt."""

NO_INDEX = re.compile(r"error sending request|\bdns error|client error \(Connect\)")
"""Failure of uv to reach the index of packages, whatever it was asked for."""

DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
