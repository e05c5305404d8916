"""Cases that fail by their own code: one failed run says what all further ones would."""

import re
from collections.abc import Sequence

from gpuscale.records import EntryKey, Run

# What devices and peers cause as well; but for what CUDA says of a wrong index.
_PERHAPS_NOT_ITS_OWN = re.compile(
    r"CUDA error(?!: device-side assert)|out of memory|cuDNN|CUBLAS|NCCL|gloo|Dist\w*Error",
    re.IGNORECASE,
)


def broken_by(key: EntryKey, runs: Sequence[Run]) -> Run | None:
    """The failed run by which one more of this row, or of its whole case, would fail; else None.

    The case raised an exception, or a command printed what no format knows, and nothing of it gave
    a number: of the case and strategy on any number of GPUs, or of that row. Memory that is too
    small and ranks that were killed say nothing of further runs.
    """
    of_case = [run for run in runs if run.key.case == key.case and run.key.strategy == key.strategy]
    of_row = [run for run in of_case if run.gpus == key.gpus]
    for alike in (of_case, of_row):
        broken = next((run for run in alike if _is_its_own(run)), None)
        if broken is not None and not any(run.is_valid for run in alike):
            return broken
    return None


def _is_its_own(run: Run) -> bool:
    failure = run.failure
    if failure is None or failure.kind != "raised":
        return failure is not None and failure.kind == "unread"
    # Of a command only its last lines tell what it raised.
    told = failure.message if run.configuration.command is None else failure.detail
    return _PERHAPS_NOT_ITS_OWN.search(told) is None
