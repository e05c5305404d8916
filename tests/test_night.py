"""How a night tells faults apart, whom it blames, and how it ends, without any process."""

from pathlib import Path

import builders as make
import pytest
from changing import replace
from ci_checkout import (
    JOB,
    write_program,
)

from gpuscale.clusters.schedulers import SCHEDULERS
from gpuscale.errors import MachineError, UsageError
from gpuscale.launch.collect import joined
from gpuscale.launch.placement import EXCLUDED_HOSTS, without_excluded
from gpuscale.night.attempt import (
    FAULT_FILE,
    Attempt,
    Fault,
    Items,
    read_machine_faults,
    suspects,
    tell_night,
)
from gpuscale.night.night import night_exit
from gpuscale.records import Failure, Run
from gpuscale.records.run import FailureKind

ALL_ITEMS = Items(count=3)
GPUS_ARE_GONE = Items(count=3, left_out=("a reason",), gpus_missing=("a reason",))


def failed(
    kind: FailureKind, message: str = "rank 1 ended", *, host: str | None = None, index: int = 1
) -> Run:
    failure = Failure(kind=kind, message=message, rank=1, host=host)
    return replace(make.run(2, None, index=index), failure=failure)


def attempt(
    *runs: Run,
    exit_code: int = 1,
    items: Items = ALL_ITEMS,
    stopped_by: int | None = None,
    machine: tuple[Fault, ...] = (),
) -> Attempt:
    return Attempt(
        exit_code=exit_code,
        stopped_by=stopped_by,
        items=items,
        results=make.results(*runs) if runs else None,
        machine=machine,
    )


@pytest.mark.parametrize(
    "tried",
    [
        attempt(failed("killed")),
        attempt(failed("timeout")),
        attempt(failed("launch")),
        attempt(failed("system")),
        attempt(exit_code=-9),
        attempt(exit_code=137),
        attempt(exit_code=74),
        attempt(exit_code=0, items=GPUS_ARE_GONE),
        attempt(exit_code=4, machine=(Fault(text="no GPUs here"),)),
    ],
)
def test_what_the_infrastructure_does_is_its_fault(tried: Attempt) -> None:
    assert len(tried.faults) == 1


@pytest.mark.parametrize(
    "tried",
    [
        attempt(make.run(2, 0.1), exit_code=0),
        # Words do not decide.
        attempt(failed("raised", "rank 1 raised ValueError: no uncorrectable ECC error")),
        attempt(failed("invalid")),
        attempt(failed("unsteady"), exit_code=0, items=Items(count=3, left_out=("not steady",))),
        attempt(exit_code=5, items=Items(count=0)),
        attempt(exit_code=4),
        # All that was asked for was measured all the same.
        attempt(failed("killed"), exit_code=0),
        # What comes after a request to end is its consequence.
        attempt(failed("killed"), exit_code=143, stopped_by=15),
        # Made again, in a session that resumed, and then well.
        attempt(failed("killed"), make.run(2, 0.1), exit_code=1),
    ],
)
def test_what_the_training_or_the_user_does_is_no_fault_of_the_infrastructure(
    tried: Attempt,
) -> None:
    assert tried.faults == ()


def test_nodes_that_a_launcher_misses_are_handed_to_the_night_as_values(tmp_path: Path) -> None:
    there, bare = make.environment(), replace(make.environment(), gpus=())
    with pytest.raises(MachineError) as raised:
        joined({"n1": there, "n2": bare, "n3": bare}, "cuda")
    told = tmp_path / "fault.json"
    tell_night(raised.value, {FAULT_FILE: str(told)})
    faults = read_machine_faults(told)
    assert [fault.host for fault in faults] == ["n2", "n3"]
    assert all("torch sees no GPU" in fault.text for fault in faults)
    tell_night(MachineError("no node could be looked at"), {FAULT_FILE: str(told)})
    assert [fault.host for fault in read_machine_faults(told)] == [None]
    tell_night(UsageError("--gpus: 'x' is not a whole number"), {FAULT_FILE: str(tmp_path / "x")})
    assert read_machine_faults(tmp_path / "x") == ()
    told.write_text('{"hosts": 1}')
    assert read_machine_faults(told) == ()


def test_a_fault_names_the_run_the_rank_and_the_host() -> None:
    (fault,) = attempt(failed("killed", "rank 1 on n2 was killed", host="n2", index=3)).faults
    assert fault == Fault(
        text="mnist_cnn/ddp on 2 GPUs, run 3: rank 1 on n2 was killed", host="n2", rank=1
    )
    assert str(fault) == fault.text
    assert str(replace(fault, text="it was killed")) == "it was killed (on n2)"


WELL = attempt(make.run(2, 0.1), exit_code=0)
ITEM_FAILED = attempt(make.run(2, 0.1), failed("raised", index=2))
NODE_FAILED = attempt(make.run(2, 0.1), failed("killed", index=2))
NOTHING = attempt(exit_code=1)
NOT_UNDERSTOOD = attempt(exit_code=4)
NOT_COLLECTED = attempt(exit_code=2, items=Items(count=1, uncollected=("test_x",)))
NO_GPUS = attempt(exit_code=4, machine=(Fault(text="no GPUs"),))
BROKEN_ITSELF = attempt(exit_code=3)
INTERRUPTED = attempt(exit_code=2)
ONLY_FAILED = attempt(failed("raised"))
NO_ITEMS = attempt(make.run(2, 0.1), exit_code=0, items=Items(count=0))
TIME_UP = attempt(make.run(2, 0.1), exit_code=143, stopped_by=15)
STOPPED_AT_THE_END = attempt(make.run(2, 0.1), exit_code=0, stopped_by=15)


@pytest.mark.parametrize(
    ("last", "compare_exit", "code", "code_after_regression"),
    [
        (WELL, 0, 0, 0),
        (WELL, 1, 1, 1),
        (WELL, 2, 2, 1),
        (WELL, 3, 3, 3),
        (WELL, 4, 4, 4),
        (WELL, None, 4, 4),
        (WELL, 139, 2, 1),
        (ITEM_FAILED, 0, 5, 1),
        (ITEM_FAILED, 1, 1, 1),
        (ITEM_FAILED, 2, 2, 1),
        (ITEM_FAILED, 3, 5, 1),
        (ITEM_FAILED, None, 5, 1),
        (NODE_FAILED, 0, 6, 1),
        (NODE_FAILED, 1, 1, 1),
        (NODE_FAILED, 2, 2, 1),
        (NODE_FAILED, None, 6, 1),
        (NOTHING, None, 4, 1),
        (NOT_UNDERSTOOD, None, 2, 1),
        (NOT_COLLECTED, None, 2, 1),
        (NO_GPUS, None, 6, 1),
        (TIME_UP, 0, 5, 1),
        (TIME_UP, 1, 1, 1),
        (STOPPED_AT_THE_END, 0, 5, 1),
        (BROKEN_ITSELF, None, 2, 1),
        (INTERRUPTED, None, 4, 1),
        (ONLY_FAILED, None, 4, 1),
        (NO_ITEMS, 0, 5, 1),
    ],
)
def test_the_night_ends_with_what_matters_most(
    last: Attempt, compare_exit: int | None, code: int, code_after_regression: int
) -> None:
    assert int(night_exit(last, compare_exit)) == code
    assert int(night_exit(last, compare_exit, first_regressed=True)) == code_after_regression


def test_the_nodes_to_keep_away_from_are_those_that_faults_name() -> None:
    nodes = ("n1", "n2", "n3")
    assert suspects([Fault(text="", host="n2.cluster.example")], nodes) == ("n2",)
    assert suspects([Fault(text="")], nodes) == nodes
    assert suspects([Fault(text="", host="elsewhere")], nodes) == nodes
    # When a node is lost, ranks on the others end with it.
    assert suspects([Fault(text="", host="n1")], nodes, lost=("n3", "n9")) == ("n3",)


def test_a_job_is_submitted_again_with_what_its_script_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_PARTITION": "booster",
        "SLURM_JOB_ACCOUNT": "budget",
        "SLURM_JOB_QOS": "(null)",
        "SLURM_CPUS_PER_TASK": "96",
        "SLURM_CONF": "slurm.conf",
        "GPUSCALE_JOB_SCRIPT": "spool/script",
        "GPUSCALE_RUNS": "5",
    }
    shown = (
        "JobId=4711 ExcNodeList=n[7-8] TimeLimit=01:00:00 MailUser=me@site MailType=END,FAIL "
        "Account=budget"
    )
    write_program(tmp_path / "scontrol", f"#!/bin/sh\necho '{shown}'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    slurm = SCHEDULERS["slurm"]
    found = slurm.submit_again(environment, avoid=("n1", "n2"))
    assert found is not None
    command, inherited = found
    assert " ".join(command) == (
        "sbatch --parsable --exclude=n[7-8],n1,n2 --export=ALL --partition=booster "
        "--account=budget --time=01:00:00 --mail-type=END,FAIL --mail-user=me@site spool/script"
    )
    assert inherited == {
        "SLURM_CONF": "slurm.conf",
        "GPUSCALE_JOB_SCRIPT": "spool/script",
        "GPUSCALE_RUNS": "5",
    }
    del environment["GPUSCALE_JOB_SCRIPT"]
    assert slurm.submit_again(environment, avoid=("n1",)) is None
    assert SCHEDULERS["sge"].submit_again({"JOB_ID": JOB}, avoid=("n1",)) is None


def test_launchers_leave_out_excluded_hosts_but_not_all() -> None:
    assert without_excluded(("n1", "n2"), {}) == ("n1", "n2")
    assert without_excluded(("n1", "n2"), {EXCLUDED_HOSTS: "n2,n7"}) == ("n1",)
    with pytest.raises(UsageError, match="names all hosts of this job"):
        without_excluded(("n1",), {EXCLUDED_HOSTS: "n1"})
