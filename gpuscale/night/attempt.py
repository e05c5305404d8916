"""An attempt to measure, and which of its faults look like those of the infrastructure."""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from gpuscale.errors import CANNOT_WRITE
from gpuscale.night.items import Items
from gpuscale.records import Results, Run

_OF_THE_INFRASTRUCTURE = frozenset({"killed", "timeout", "launch"})
"""Kinds of failures that are no exception of the training's own code."""
_ERRORS_OF_THE_INFRASTRUCTURE = re.compile(
    r"uncorrectable|ECC error|unspecified launch failure|hardware stack|illegal instruction"
    r"|no CUDA-capable device|busy or unavailable|CUDA driver|initialization error"
    r"|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError"
    r"|DistNetworkError|DistStoreError|Connection (?:reset|closed|refused|timed out)"
    r"|No route to host|Network is unreachable|Broken pipe|Stale file handle|Input/output error"
    r"|No space left on device|Disk quota exceeded|Read-only file system",
    re.IGNORECASE,
)
_HOSTS = r"(?P<{0}>[\w.-]+(?:, [\w.-]+)*)"
_NODES_ARE_GONE = re.compile(
    # Errors of the launchers before anything is measured: launch/forkserver.py, description.py.
    "torch sees no GPU here|the GPUs did not answer|process that looks at the GPUs ended"
    f"|torch sees no GPU on {_HOSTS.format('without')}"
    f"|{_HOSTS.format('silent')} did not answer in time"
    f"|{_HOSTS.format('blind')}: does not see "
    "|no node could be looked at"
)
_FEWER_GPUS = re.compile(r"needs \d+ GPUs; ")
_OF_PYTEST_ITSELF = (3, 4)
"""Pytest's exit codes for an internal error and for a wrong use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one invocation of pytest left."""

    exit_code: int
    """Of pytest; negative for the signal that ended it."""
    stopped_by: int | None
    """The signal by which this night was asked to end meanwhile."""
    items: Items
    results: Results | None
    log_end: str
    """The last lines that pytest wrote."""

    @property
    def has_measured(self) -> bool:
        """Whether at least one run gave a number."""
        return self.results is not None and any(run.is_valid for run in self.results.runs)

    @property
    def could_run(self) -> bool:
        """Whether pytest understood its arguments, could read all cases, and did not break."""
        # A case that cannot be imported ends pytest with 2, and so does an interrupt.
        return self.exit_code not in _OF_PYTEST_ITSELF and not self.items.uncollected

    @property
    def is_complete(self) -> bool:
        """Whether all that was asked for was measured."""
        passed = self.exit_code == 0 and self.items.count > 0 and not self.items.left_out
        return passed and self.stopped_by is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that looks like a failure of the infrastructure."""

    text: str
    host: str | None = None
    """Where, if that is known."""
    rank: int | None = None


def faults_of(attempt: Attempt) -> tuple[Fault, ...]:
    """What looks like a failure of nodes, network, file system or scheduler.

    An exception of the training's own code, ranks that do not agree and steps that are not
    steady are none; nor is what came after a signal that asked for the end.
    """
    if attempt.stopped_by is not None or attempt.is_complete:
        return ()
    return tuple(_faults(attempt))


def _faults(attempt: Attempt) -> Iterator[Fault]:
    for run in _last_runs(attempt.results):
        failure = run.failure
        if failure is None:
            continue
        text = f"{run.key.label}, run {run.index}: {failure.message}"
        if failure.kind in _OF_THE_INFRASTRUCTURE or (
            failure.kind == "raised" and _ERRORS_OF_THE_INFRASTRUCTURE.search(failure.message)
        ):
            yield Fault(text=text, host=failure.host, rank=failure.rank)
    for reason in attempt.items.left_out:
        if _FEWER_GPUS.match(reason):
            yield Fault(text=f"GPUs are missing: {reason}")
    if attempt.exit_code < 0 or attempt.exit_code >= 128:
        number = -attempt.exit_code if attempt.exit_code < 0 else attempt.exit_code - 128
        memory = " (out of memory?)" if number == signal.SIGKILL else ""
        yield Fault(text=f"pytest was ended by {_signal_name(number)}{memory}")
    elif attempt.exit_code == CANNOT_WRITE:
        yield Fault(text="results could not be written; see the end of pytest.log")
    if gone := _NODES_ARE_GONE.search(attempt.log_end):
        hosts = next((text for text in gone.groupdict().values() if text), None)
        for host in hosts.split(", ") if hosts else [None]:
            yield Fault(text=f"nothing could be started: {gone[0].strip()}", host=host)


def _last_runs(results: Results | None) -> Iterator[Run]:
    """Each run as it stands: one that failed and was made again well is no fault any more."""
    runs = () if results is None else results.runs
    done = {(run.key, run.configuration, run.index) for run in runs if run.is_valid}
    yield from (run for run in runs if (run.key, run.configuration, run.index) not in done)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
