"""All texts of torch, CUDA, NCCL, gloo and Python that gpuscale recognises.

tests/test_foreign_texts.py checks them against the messages of every supported torch on a CPU, and
against reports of CUDA's and NCCL's messages.
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
"""A batch does not fit a model or a loss, on torch's meta device or on the CPU; the last text is
gpuscale's own."""

OUT_OF_MEMORY = re.compile(
    r"^(?:torch\.(?:cuda\.)?OutOfMemoryError|MemoryError)|can(?:'t|not) allocate memory"
    r"|(?:CUDA|HIP) (?:error: )?out of memory|STATUS_ALLOC_FAILED|std::bad_alloc"
    r"|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'"
    # oneDNN's words. If it does not support an operator, it cannot create a descriptor.
    r"|could not create a (?:primitive|memory object)(?! descriptor)",
    re.IGNORECASE,
)
"""A GPU or the host is out of memory, by the last line of a traceback."""

NO_ENGINE = re.compile("unable to find an engine to execute this computation")
"""Every convolution algorithm of cuDNN failed, perhaps for lack of memory for its workspace."""

LOST_PEER = re.compile(r"gloo|NCCL")
"""A rank failed to communicate with another one, which most likely ended before."""

LOST_PEER_LINES = re.compile(r"\bDist\w*Error\b|Error: .*\b(?:gloo|NCCL)\b")
"""`LOST_PEER` among the last lines of a command."""

_RANK_PREFIX = r"(?:\[rank\d+\]: ?)?"
TRACEBACK = re.compile(rf"{_RANK_PREFIX}Traceback \(most recent call last\):")
"""The first line of a Python traceback; torch writes the rank before each of its lines."""

EXCEPTION = re.compile(rf"{_RANK_PREFIX}(?P<exception>[A-Za-z_][\w.]*(?:: .*)?)")
"""The last line of a Python traceback."""

STARTER_EXCEPTION = re.compile(r"(?:[\w.]+\.)?(?:ChildFailedError|CalledProcessError)\b")
"""An exception of the program that started the failed process: torchrun, accelerate."""

TORCHRUN_SUMMARY = re.compile(r"\brank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")
"""One rank in torchrun's summary, which ends with the rank that failed first."""

NCCL_ERROR = re.compile("NCCL error")
"""The first line of an NCCL message; the lines after it contain the cause."""

SYSTEM = re.compile(
    r"uncorrectable|ECC error|unspecified launch failure|hardware stack|illegal instruction"
    r"|no CUDA-capable device|busy or unavailable|CUDA driver|initialization error"
    r"|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError"
    r"|DistNetworkError|DistStoreError|Connection (?:reset|closed|refused|timed out)"
    r"|No route to host|Network is unreachable|Broken pipe|Stale file handle|Input/output error"
    r"|No space left on device|Disk quota exceeded|Read-only file system",
    re.IGNORECASE,
)
"""A device, network or file system failed, not the case."""

SHARDS = re.compile(r"DTensor|sharding strategy|placement")
"""An operator cannot work on the sharded parameters of fsdp."""

MAYBE_EXTERNAL = re.compile(
    # A device-side assertion is CUDA's message for an index out of bounds.
    r"CUDA error(?!: device-side assert)|out of memory|cuDNN|CUBLAS|NCCL|gloo|Dist\w*Error",
    re.IGNORECASE,
)
"""A failure that devices or other ranks may have caused, so that the case may be fine."""

MAYBE_TRANSIENT = re.compile(
    # Except errors 2 and 13: a path that is absent or not readable stays so.
    r"(?:OS|EOF|HTTP|URL)Error|\[Errno (?!2\]|13\])|connection|time[d-]? ?out|unavailable"
    r"|DataLoader worker \(pid",
    re.IGNORECASE,
)
"""A failure of a file or connection that may work the next time."""
