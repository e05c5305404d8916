"""Faults told apart, nodes blamed, and the end of a night, without any process."""

import re
from pathlib import Path
from typing import Any

import builders as make
import pytest
from changing import replace

from gpuscale import __version__
from gpuscale.base.errors import ExitCode, MachineError, UsageError
from gpuscale.campaigns.night import outcome as outcomes
from gpuscale.campaigns.night.outcome import Attempt, Items, job_exit, night_exit, night_meaning
from gpuscale.measure.launch.collect import joined
from gpuscale.measure.schedulers.scheduler import Ending, JobState
from gpuscale.records import Failure, Run
from gpuscale.records.evidence import FailureKind
from gpuscale.store import campaign_folders
from gpuscale.store.campaign_folders import NightRecord, read_night, record_files

ALL_ITEMS = Items(count=3)
GPUS_ARE_GONE = Items(count=3, left_out={"a reason": "GPUs missing"})


def failed(kind: FailureKind, message: str = "rank 1 ended", *, index: int = 1) -> Run:
    failure = Failure(kind=kind, message=message, rank=1)
    return replace(make.run(2, None, index=index), failure=failure)


USUAL: dict[str, Any] = {"exit_code": 1, "items": ALL_ITEMS, "stopped_by": None}


def attempt(*runs: Run, **asked: Any) -> Attempt:
    results = make.results(*runs) if runs else None
    return Attempt(results=results, **{**USUAL, **asked})


INFRASTRUCTURE = [
    attempt(failed("killed")),
    attempt(failed("timeout")),
    attempt(failed("launch")),
    attempt(failed("system")),
    attempt(exit_code=74),
    attempt(exit_code=0, items=GPUS_ARE_GONE),
    attempt(exit_code=4, machine="no GPUs here"),
]
TRAINING_OR_USER = [
    attempt(make.run(2, 0.1), exit_code=0),
    # Words do not decide.
    attempt(failed("raised", "rank 1 raised ValueError: no uncorrectable ECC error")),
    attempt(failed("invalid")),
    attempt(failed("unsteady"), exit_code=0, items=Items(count=3, left_out={"not steady": ""})),
    attempt(exit_code=5, items=Items(count=0)),
    attempt(exit_code=4),
    # All that was asked for was measured all the same.
    attempt(failed("killed"), exit_code=0),
    # What comes after a request to end is its consequence.
    attempt(failed("killed"), exit_code=143, stopped_by=15),
    # Made again, in a session that resumed, and then well.
    attempt(failed("killed"), make.run(2, 0.1), exit_code=1),
]


@pytest.mark.parametrize("tried", [*INFRASTRUCTURE, *TRAINING_OR_USER])
def test_only_what_the_infrastructure_does_is_its_fault(tried: Attempt) -> None:
    assert len(tried.faults) == (tried in INFRASTRUCTURE)


KILLED = "SIGKILL (out of memory?)"


@pytest.mark.parametrize(
    ("exit_code", "name"),
    [(-1, "SIGHUP"), (-9, KILLED), (128, "signal 0"), (137, KILLED), (143, "SIGTERM")],
)
def test_a_pytest_that_a_signal_ended_is_a_fault_by_its_name(exit_code: int, name: str) -> None:
    assert attempt(exit_code=exit_code).faults == (f"pytest was ended by {name}",)
    assert attempt(exit_code=127).faults == ()


ITEMS = """<testsuites><testsuite><testcase name="run"/>
<testcase><properties><property name="gpuscale left out" value="needless"/></properties>
<skipped message="settled"/></testcase>
<testcase><properties><property name="gpuscale left out" value="GPUs missing"/></properties>
<skipped message="3 GPUs here"/></testcase>
<testcase><properties><property name="other" value="needless"/></properties>
<skipped message="skipped by itself"/></testcase>
<testcase name="test_x"><error message="collection failure"/></testcase>
<testcase><error message="failed on setup"/></testcase></testsuite></testsuites>
"""


def test_items_are_read_from_what_pytest_leaves(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    assert outcomes.read_items(path) == Items(count=0)
    path.write_text("<testsuites><testcase")
    assert outcomes.read_items(path) == Items(count=0)
    path.write_text(ITEMS)
    left_out = {"3 GPUs here": "GPUs missing", "skipped by itself": ""}
    assert outcomes.read_items(path) == Items(count=6, left_out=left_out, uncollected=("test_x",))


def test_nodes_that_a_launcher_misses_are_a_fault_of_the_night(tmp_path: Path) -> None:
    there, bare = make.environment(), replace(make.environment(), gpus=())
    with pytest.raises(MachineError) as raised:
        joined({"n1": there, "n2": bare, "n3": bare}, "cuda")
    told = tmp_path / "fault.txt"
    place = {outcomes.FAULT_FILE: str(told)}
    outcomes.report_to_night(UsageError("--gpus: 'x' is not a whole number"), place)
    assert not told.exists()
    outcomes.report_to_night(raised.value, place)
    assert told.read_text().startswith("nothing could be started: torch sees no GPU on n2, n3")


WELL = attempt(make.run(2, 0.1), exit_code=0)
ITEM_FAILED = attempt(make.run(2, 0.1), failed("raised", index=2))
NODE_FAILED = attempt(make.run(2, 0.1), failed("killed", index=2))
NOTHING = attempt(exit_code=1)
NOT_COLLECTED = attempt(exit_code=2, items=Items(count=1, uncollected=("test_x",)))
NO_ITEMS = attempt(make.run(2, 0.1), exit_code=0, items=Items(count=0))
TIME_UP = attempt(make.run(2, 0.1), exit_code=143, stopped_by=15)
SINGLE = attempt(make.run(2, 0.1), exit_code=0, items=Items(count=1))
STOPPED = "stopped by SIGTERM (the job's time limit?)"
STOPPED_AT_THE_END = attempt(make.run(2, 0.1), exit_code=0, stopped_by=15)


@pytest.mark.parametrize(
    ("last", "codes"),
    [
        (WELL, {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, None: 4, 139: 2}),
        (SINGLE, {0: 0}),
        (ITEM_FAILED, {0: 5, 1: 1, 2: 2, 3: 5, None: 5}),
        (NODE_FAILED, {0: 6, 1: 1, 2: 2, None: 6}),
        (NOTHING, {None: 4}),
        # Not understood, or without GPUs.
        (attempt(exit_code=4), {None: 2}),
        (attempt(exit_code=4, machine="no GPUs"), {None: 6}),
        (NOT_COLLECTED, {None: 2}),
        (TIME_UP, {0: 5, 1: 1}),
        (STOPPED_AT_THE_END, {0: 0, 3: 3}),
        # Broken itself, or interrupted.
        (attempt(exit_code=3), {None: 2}),
        (attempt(exit_code=2), {None: 4}),
        (attempt(failed("raised")), {None: 4}),
        (NO_ITEMS, {0: 5}),
    ],
)
def test_the_night_ends_with_the_worst(last: Attempt, codes: dict[int | None, int]) -> None:
    """`codes` are those of the night by that of its comparison."""
    assert {compared: int(night_exit(last, compared)) for compared in codes} == codes


@pytest.mark.parametrize(
    ("last", "code", "compare_exit", "meaning"),
    [
        (WELL, 1, 1, "regressed"),
        (STOPPED_AT_THE_END, 0, 0, "ok"),
        (WELL, 4, 4, "nothing comparable was measured"),
        (WELL, 4, None, outcomes.UNJUDGED),
        (NOTHING, 4, None, "nothing was measured"),
        (NOTHING, 2, None, "it could not be run or judged"),
        (TIME_UP, 5, 0, f"not everything was measured; of what was measured: ok; {STOPPED}"),
        (TIME_UP, 5, None, f"not everything was measured; not judged; {STOPPED}"),
    ],
)
def test_a_night_says_how_it_ended(
    last: Attempt, code: int, compare_exit: int | None, meaning: str
) -> None:
    assert night_meaning(ExitCode(code), last, compare_exit) == meaning


@pytest.mark.parametrize(
    ("job_code", "ending", "code", "words"),
    [
        (3, Ending.COMPLETED, 3, "not shown to be fine"),
        (0, Ending.COMPLETED, 0, "ok"),
        (4, Ending.FAILED, 4, "nothing was judged, as is"),
        (7, Ending.COMPLETED, 2, "exit code 7"),
        (None, Ending.COMPLETED, 2, "no exit code"),
        (0, Ending.RESOURCES_LOST, 6, "infrastructure"),
        (0, Ending.TIME_UP, 5, "its time was up"),
    ],
)
def test_a_job_that_did_not_end_as_a_night_does(
    job_code: int | None, ending: Ending, code: int, words: str
) -> None:
    found, meaning = job_exit(JobState(stage="ended", exit_code=job_code, ending=ending))
    assert int(found) == code
    assert meaning.startswith(words)


def test_a_night_records_what_build_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(campaign_folders, "__file__", str(tmp_path / "store" / "folders.py"))
    first, same = NightRecord.own_build(), NightRecord.own_build()
    (tmp_path / "judge.py").write_text("MARGIN = 0.03")
    assert first == same != NightRecord.own_build()
    assert re.fullmatch(rf"{re.escape(__version__)} \([0-9a-f]{{12}}\)", first)
    files = record_files(NightRecord(night="ok", gpuscale=first))
    assert f"gpuscale: {first}\n" in files["night.txt"]


def test_what_is_recorded_of_a_night_is_read_again(tmp_path: Path) -> None:
    assert read_night(tmp_path) is None
    record = NightRecord(night="ok\x1b[31m", exit=0, job="4711")
    for name, text in record_files(record).items():
        (tmp_path / name).write_text(text)
    assert read_night(tmp_path) == replace(record, night="ok\\x1b[31m")
    written = (tmp_path / "night.txt").read_text()
    assert written == "night: ok\\x1b[31m\nexit: 0\nall measured: no\nattempts: 1\njob: 4711\n"
