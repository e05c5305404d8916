"""An attempt to measure: what pytest left, whose its faults are, and how a night ends by it."""

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
"""The variable that names the file in which a session of a night says what the machine lacks."""
LEFT_OUT = "gpuscale left out"
"""The property of an item without a run, which says why."""
NoRunReason = Literal["needless", "GPUs missing", "cannot be measured"]
"""Why an item made no run: it needed none, the node has lost GPUs, or the case is not for it."""

_OF_THE_INFRASTRUCTURE = frozenset({"killed", "timeout", "launch", "system"})
"""Kinds of failures that are no exception of the training's own code."""
_OF_PYTEST_ITSELF = (3, 4)
"""Pytest's exit codes for an internal error and for a wrong use."""


@dataclass(frozen=True, slots=True)
class Items:
    """Of one invocation of pytest; each item stands for a run that was asked for."""

    count: int
    left_out: tuple[str, ...] = ()
    """Why items gave no number although nothing failed, each reason once: a night asks only for
    what its nodes have. Not those that needed no run."""
    gpus_missing: tuple[str, ...] = ()
    """Those of the reasons that say that a node has lost GPUs."""
    uncollected: tuple[str, ...] = ()
    """Files and tests that no items could be made of, such as a case that cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightFault:
    """One thing that looks like a failure of the infrastructure."""

    text: str
    host: str | None = None
    """Where, if that is known."""
    rank: int | None = None

    def __str__(self) -> str:
        named = self.host is None or self.host in self.text
        return self.text if named else f"{self.text} (on {self.host})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """All that one invocation of pytest left."""

    exit_code: int
    """Of pytest; negative for the signal that ended it."""
    stopped_by: int | None
    """The signal by which this night was asked to end meanwhile."""
    items: Items
    results: Results | None
    machine: tuple[NightFault, ...] = ()
    """Why the session could not start, where that is the machine's fault."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """All that were made, failed ones among them."""
        return () if self.results is None else self.results.runs

    @property
    def has_measured(self) -> bool:
        """True where at least one run gave a number."""
        return any(run.is_valid for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """True where all that was asked for was measured."""
        passed = self.exit_code == 0 and self.items.count > 0 and not self.items.left_out
        return passed and self.stopped_by is None

    @property
    def faults(self) -> tuple[NightFault, ...]:
        """All that looks like a failure of nodes, network, file system or scheduler.

        An exception of the training's own code, ranks that do not agree and steps that are not
        steady are none; nor is what came after a signal that asked for the end.
        """
        return () if self.stopped_by is not None or self.is_complete else tuple(self._faults())

    def _faults(self) -> Iterator[NightFault]:
        # Those that failed and were made again well are no faults.
        done = {(run.key, run.configuration, run.index) for run in self.runs if run.is_valid}
        for run in self.runs:
            failure, made = run.failure, (run.key, run.configuration, run.index)
            if failure and failure.kind in _OF_THE_INFRASTRUCTURE and made not in done:
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
        """The text of `evidence.json`: where it ran, on which devices, and what went wrong."""
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


def suspects(
    faults: Sequence[NightFault], nodes: Sequence[str], *, lost: Sequence[str] = ()
) -> tuple[str, ...]:
    """The nodes of a job to keep away from, by the scheduler's names.

    Those that the scheduler has lost, since ranks on the others then fail too; else those that
    faults name; all of them where none is named.
    """
    if gone := tuple(node for node in nodes if node in lost):
        return gone
    blamed = {fault.host.partition(".")[0] for fault in faults if fault.host is not None}
    named = tuple(node for node in nodes if node.partition(".")[0] in blamed)
    return named or tuple(nodes)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_items(path: Path) -> Items:
    """The items in pytest's XML file; none where it is missing or broken, as after a crash."""
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


def tell_night(error: GpuscaleError, environment: Mapping[str, str]) -> None:
    """Leave for a night why its session cannot start, where that is the machine's fault."""
    path = environment.get(FAULT_FILE)
    if path is not None and isinstance(error, MachineError):
        text = f"nothing could be started: {error}"
        faults = [NightFault(text=text, host=host) for host in error.hosts or (None,)]
        with suppress(OSError):
            Path(path).write_bytes(msgspec.json.encode(faults))


def read_machine_faults(path: Path) -> tuple[NightFault, ...]:
    """The faults that `tell_night` left; empty where it left none."""
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
    """The exit code of a night.

    A regression wins, also beside a failed item; then a comparison that broke, then the
    infrastructure, and then what is missing: a verdict on half of the numbers is not the one that
    was asked for. That a first attempt, with runs of its own, regressed stands unless the last one
    judged all that was asked for. `compare_exit` is None where there was nothing to compare with.
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
        # A case that cannot be imported ends pytest with 2, and so does an interrupt.
        could_run = attempt.exit_code not in _OF_PYTEST_ITSELF and not attempt.items.uncollected
        return ExitCode.NOTHING_COMPARABLE if could_run else ExitCode.USAGE
    if not attempt.is_complete:
        return ExitCode.INCOMPLETE
    return ExitCode.NOTHING_COMPARABLE if compare_exit is None else ExitCode(compare_exit)


def night_meaning(
    code: ExitCode, attempt: Attempt, compare_exit: int | None, *, has_baseline: bool
) -> str:
    """The end of a night, in words."""
    meaning = _MEANINGS[code]
    if code == ExitCode.NOTHING_COMPARABLE and not attempt.has_measured:
        meaning = "nothing was measured"
    elif code == ExitCode.NOTHING_COMPARABLE and not has_baseline:
        meaning = "measured, and judged by nothing: no baseline was named"
    elif code == ExitCode.REGRESSED and compare_exit != ExitCode.REGRESSED:
        meaning += ", by what the first attempt measured: see attempt-1"
    if attempt.stopped_by is not None:
        meaning += f"; stopped by {signal_name(attempt.stopped_by)} (the job's time limit?)"
    return meaning


def job_exit(state: JobState) -> tuple[ExitCode, str]:
    """The night's exit code and what it means, never 0 for a job that did not end well."""
    code = state.exit_code
    if state.ending is Ending.RESOURCES_LOST:
        return ExitCode.INFRASTRUCTURE, _MEANINGS[ExitCode.INFRASTRUCTURE]
    if state.ending is Ending.TIME_UP:
        return ExitCode.INCOMPLETE, "its time was up; what had been measured by then is kept"
    if state.remark is not None:
        return ExitCode.USAGE, state.remark
    if code == ExitCode.OK and state.ending is not Ending.COMPLETED:
        return ExitCode.USAGE, "somebody or something ended it; see its log"
    if code is not None and code in _MEANINGS:
        return ExitCode(code), _MEANINGS[code]
    # A signal, or a code that no night ends with, comes from outside of it.
    told = "no exit code" if code is None else f"exit code {code}"
    return ExitCode.USAGE, f"{told}, which is none of a night's; see its log"


def exit_of_both(first: int, last: int) -> int:
    """That of two jobs' night: a regression seen first stands, unless the second could judge."""
    return first if first == ExitCode.REGRESSED and last not in _VERDICTS else last
