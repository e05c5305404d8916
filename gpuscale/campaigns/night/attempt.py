"""An attempt to measure: files written by pytest, faults found in them, and the exit code."""

import signal
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from gpuscale.base.errors import CANNOT_WRITE, ExitCode, GpuscaleError, MachineError
from gpuscale.measure.schedulers.scheduler import Ending, JobState
from gpuscale.records import Results, Run
from gpuscale.records.json_text import document_text

FAULT_FILE = "GPUSCALE_FAULT_FILE"
"""Environment variable with the path of the file in which pytest reports faults of the machine."""
LEFT_OUT = "gpuscale left out"
"""Name of the JUnit property that says why a pytest item did not result in a run."""
NoRunReason = Literal["needless", "GPUs missing", "cannot be measured"]
"""Why a pytest item did not result in a run; `needless`: the run was not needed or already made."""

_INFRASTRUCTURE_KINDS = frozenset({"killed", "timeout", "launch", "system"})
"""Kinds of failures that the training code itself does not cause."""
_PYTEST_BROKEN = (3, 4)
"""Pytest's exit codes for an internal error and for wrong usage."""


@dataclass(frozen=True, slots=True)
class Items:
    """Summary of the items of one pytest invocation, one item for each requested run."""

    count: int
    left_out: tuple[str, ...] = ()
    """Distinct reasons why items skipped a run that was needed."""
    gpus_missing: tuple[str, ...] = ()
    """The reasons in `left_out` that report GPUs missing from a node."""
    uncollected: tuple[str, ...] = ()
    """Files and tests that pytest could not collect, such as a case that cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightFault:
    """A probable failure of the infrastructure."""

    text: str
    host: str | None = None
    """Host on which the failure happened; None if unknown."""
    rank: int | None = None

    def __str__(self) -> str:
        named = self.host is None or self.host in self.text
        return self.text if named else f"{self.text} (on {self.host})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of one invocation of pytest."""

    exit_code: int
    """Exit code of pytest, or the negated number of the signal that ended it."""
    stopped_by: int | None
    """Number of the signal that requested a stop; None if no signal did."""
    items: Items
    results: Results | None
    machine: tuple[NightFault, ...] = ()
    """Faults of the machine that kept the pytest session from starting."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, including failed ones."""
        return () if self.results is None else self.results.runs

    @property
    def has_measured(self) -> bool:
        """True if at least one run is valid."""
        return any(run.is_valid for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """True if every requested run was measured."""
        passed = self.exit_code == 0 and self.items.count > 0 and not self.items.left_out
        return passed and self.stopped_by is None

    @property
    def faults(self) -> tuple[NightFault, ...]:
        """Probable failures of nodes, network, file system or scheduler.

        Exceptions in the training code, ranks that disagree and unsteady steps do not count, nor do
        failures after a signal has requested a stop.
        """
        return () if self.stopped_by is not None or self.is_complete else tuple(self._faults())

    def _faults(self) -> Iterator[NightFault]:
        # A failed run that was repeated successfully is no fault.
        done = {(run.key, run.configuration, run.index) for run in self.runs if run.is_valid}
        for run in self.runs:
            failure, made = run.failure, (run.key, run.configuration, run.index)
            if failure and failure.kind in _INFRASTRUCTURE_KINDS and made not in done:
                text = f"{run.key.label}, run {run.index}: {failure.message}"
                yield NightFault(text=text, host=failure.host, rank=failure.rank)
        for reason in self.items.gpus_missing:
            yield NightFault(text=f"GPUs are missing: {reason}")
        if self.exit_code < 0 or self.exit_code >= 128:
            number = -self.exit_code if self.exit_code < 0 else self.exit_code - 128
            memory = " (out of memory?)" if number == signal.SIGKILL else ""
            yield NightFault(text=f"pytest was ended by {signal_name(number)}{memory}")
        elif self.exit_code == CANNOT_WRITE:
            yield NightFault(text="results could not be written; see the end of pytest.log")
        yield from self.machine

    def evidence(self, **facts: object) -> str:
        """Return the text of `evidence.json`, with the hosts, devices and faults."""
        where = None if self.results is None else self.results.environment
        ranks = [rank for run in self.runs for rank in run.ranks]
        text = document_text(
            "gpuscale-evidence",
            **facts,
            hosts=sorted({rank.host for rank in ranks}),
            gpus=[
                {"host": place.host, "index": gpu.index, "name": gpu.name, "uuid": gpu.uuid}
                for place in (() if where is None else where.nodes or (where,))
                for gpu in place.gpus
            ],
            gpu_uuids_used=sorted({uuid for rank in ranks for uuid in rank.device_uuids}),
            pytest_exit=self.exit_code,
            valid_runs=sum(run.is_valid for run in self.runs),
            failed_runs=sum(run.failure is not None for run in self.runs),
            faults=self.faults,
        )
        return f"{text}\n"


def suspected_nodes(
    faults: Sequence[NightFault], nodes: Sequence[str], *, lost: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the nodes of a job to avoid in a retry, as the scheduler names them.

    Nodes that the scheduler has lost are the only suspects, since their loss makes ranks on other
    nodes fail too. If no node is lost, nodes named in faults are suspected, or else all nodes.
    """
    if gone := tuple(node for node in nodes if node in lost):
        return gone
    blamed = {fault.host.partition(".")[0] for fault in faults if fault.host is not None}
    named = tuple(node for node in nodes if node.partition(".")[0] in blamed)
    return named or tuple(nodes)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_items(path: Path) -> Items:
    """Read pytest's XML file; return no items if it is missing or broken, as after a crash."""
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError):
        return Items(count=0)
    reasons: dict[str, str] = {}
    for case in cases:
        skipped = case.find("skipped")
        marks = {mark.get("name"): mark.get("value", "") for mark in case.iter("property")}
        if skipped is not None and marks.get(LEFT_OUT) != "needless":
            reasons[skipped.get("message", "")] = marks.get(LEFT_OUT, "")
    broken = "error[@message='collection failure']"
    uncollected = tuple(case.get("name", "") for case in cases if case.find(broken) is not None)
    missing = tuple(text for text, why in reasons.items() if why == "GPUs missing")
    return Items(len(cases), tuple(reasons), missing, uncollected)


def report_to_night(error: GpuscaleError, environment: Mapping[str, str]) -> None:
    """Write to the fault file why the pytest session cannot start, if the machine is at fault."""
    path = environment.get(FAULT_FILE)
    if path is not None and isinstance(error, MachineError):
        text = f"nothing could be started: {error}"
        faults = [NightFault(text=text, host=host) for host in error.hosts or (None,)]
        with suppress(OSError):
            Path(path).write_bytes(msgspec.json.encode(faults))


def read_machine_faults(path: Path) -> tuple[NightFault, ...]:
    """Read the faults that `report_to_night` wrote; empty if there are none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[NightFault, ...])
    except (OSError, msgspec.DecodeError):
        return ()


_MEANINGS: Mapping[int, str] = {
    ExitCode.OK: "ok",
    ExitCode.REGRESSED: "regressed",
    ExitCode.USAGE: "it could not be run or judged",
    ExitCode.INCONCLUSIVE: "not shown to be fine",
    ExitCode.NOTHING_COMPARABLE: "nothing comparable was measured",
    ExitCode.INCOMPLETE: "not everything was measured",
    ExitCode.INFRASTRUCTURE: "infrastructure failed",
}
_VERDICTS = frozenset(
    (ExitCode.OK, ExitCode.REGRESSED, ExitCode.INCONCLUSIVE, ExitCode.NOTHING_COMPARABLE)
)


def night_exit(
    attempt: Attempt, compare_exit: int | None, *, first_regressed: bool = False
) -> ExitCode:
    """Return the exit code of a nightly run.

    A regression takes precedence, even if items failed; then a failed comparison, then faults of
    the infrastructure, then missing runs, since incomplete results allow no verdict. A regression
    found in a first attempt (`first_regressed`) stands unless the last attempt is complete and
    judged. `compare_exit` is None if nothing was compared.
    """
    is_broken = compare_exit is not None and compare_exit not in _VERDICTS
    is_whole = not is_broken and attempt.is_complete and attempt.has_measured
    if compare_exit == ExitCode.REGRESSED or (first_regressed and not is_whole):
        return ExitCode.REGRESSED
    if is_broken:
        return ExitCode.USAGE
    if attempt.faults:
        return ExitCode.INFRASTRUCTURE
    if not attempt.has_measured:
        # Pytest ends with 2 for a case that cannot be imported, and for an interrupt.
        could_run = attempt.exit_code not in _PYTEST_BROKEN and not attempt.items.uncollected
        return ExitCode.NOTHING_COMPARABLE if could_run else ExitCode.USAGE
    if not attempt.is_complete:
        return ExitCode.INCOMPLETE
    return ExitCode.NOTHING_COMPARABLE if compare_exit is None else ExitCode(compare_exit)


def night_meaning(
    code: ExitCode, attempt: Attempt, compare_exit: int | None, *, has_baseline: bool
) -> str:
    """Describe the exit code of a nightly run in words."""
    meaning = _MEANINGS[code]
    if code == ExitCode.NOTHING_COMPARABLE and not attempt.has_measured:
        meaning = "nothing was measured"
    elif code == ExitCode.NOTHING_COMPARABLE and not has_baseline:
        meaning = "measured, not judged: no baseline was named"
    elif code == ExitCode.REGRESSED and compare_exit != ExitCode.REGRESSED:
        meaning += ", by what the first attempt measured: see attempt-1"
    if attempt.stopped_by is not None:
        meaning += f"; stopped by {signal_name(attempt.stopped_by)} (the job's time limit?)"
    return meaning


def job_exit(state: JobState) -> tuple[ExitCode, str]:
    """Return the exit code and meaning of a nightly job; never 0 unless the job completed."""
    code = state.exit_code
    if state.ending is Ending.RESOURCES_LOST:
        return ExitCode.INFRASTRUCTURE, _MEANINGS[ExitCode.INFRASTRUCTURE]
    if state.ending is Ending.TIME_UP:
        return ExitCode.INCOMPLETE, "its time was up; what had been measured by then is kept"
    if state.remark is not None:
        return ExitCode.USAGE, state.remark
    if code == ExitCode.OK and state.ending is not Ending.COMPLETED:
        return ExitCode.USAGE, "somebody ended the job; see its log"
    if code is not None and code in _MEANINGS:
        return ExitCode(code), _MEANINGS[code]
    # No night ends with such a code: a signal or another program ended the job.
    told = "no exit code" if code is None else f"exit code {code}"
    return ExitCode.USAGE, f"{told}, with which no night ends; see its log"


def combined_exit(first: int, last: int) -> int:
    """Combine the exit codes of a nightly run's jobs; only a verdict can override a regression."""
    return first if first == ExitCode.REGRESSED and last not in _VERDICTS else last
