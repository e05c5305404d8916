"""How a night tells faults apart and tries again; its pytest is a stand-in, as in test_ci.py."""

import json
from pathlib import Path

import builders as make
import pytest
from changing import replace
from ci_checkout import (
    JOB,
    Night,
    job_environment,
    make_checkout,
    run_night,
    use_real_pytest,
    write_program,
    write_results,
)
from measuring import run_pytest, write_case

from gpuscale.clusters.schedulers import SCHEDULERS
from gpuscale.errors import MachineError, UsageError
from gpuscale.launch.collect import joined
from gpuscale.launch.placement import EXCLUDED_HOSTS, without_excluded
from gpuscale.night.attempt import (
    FAULT_FILE,
    Attempt,
    Fault,
    Items,
    read_items,
    read_machine_faults,
    suspects,
    tell_night,
)
from gpuscale.night.night import night_exit
from gpuscale.records import Failure, Run
from gpuscale.records.run import FailureKind
from gpuscale.run_directory import RunDirectory
from gpuscale.worker.entry import RankFiles

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


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "system"),
        (
            RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3356, ncclRemoteError: remote"),
            "system",
        ),
        (RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer"), "system"),
        (OSError(28, "No space left on device"), "system"),
        (ConnectionResetError(104, "Connection reset by peer"), "system"),
        (ValueError("no such batch"), "raised"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "raised"),
    ],
)
def test_a_rank_tells_what_the_system_does_from_what_its_own_code_does(
    tmp_path: Path, error: Exception, kind: str
) -> None:
    directory = RunDirectory(path=tmp_path)
    RankFiles(directory, 1).leave_failure(error, lost_peer=False)
    assert directory.failure(1).read().failure.kind == kind


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


def test_items_that_need_no_run_are_told_from_those_that_cannot_be_measured(
    tmp_path: Path,
) -> None:
    write_case(tmp_path, "Case = Tiny")
    quick = ("--device", "cpu", "--run-seconds", "0.05", "--junitxml", "items.xml")
    wide = ("--runs", "6:7", "--target-ci", "99%")
    session = run_pytest(tmp_path, *quick, *wide, "--gpus", "1,4096")
    found = read_items(tmp_path / "items.xml")
    assert "settled after 6 runs" in session.output
    (reason,) = found.left_out
    assert "4096 CPU ranks need as many cores" in reason
    assert (found.count, found.gpus_missing) == (14, ())


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


@pytest.mark.parametrize(
    ("test", "code", "pytest_code", "meaning"),
    [
        ("import no_such_module\n", 2, 2, "it could not be run or judged"),
        ("def test_x(no_such_fixture):\n    pass\n", 5, 1, "not everything was measured"),
        ("def test_x():\n    raise KeyboardInterrupt\n", 5, 2, "not everything was measured"),
        ("raise KeyboardInterrupt\n", 4, 2, "nothing was measured"),
    ],
)
def test_a_case_that_cannot_be_imported_is_told_from_an_interrupt_by_real_pytest(
    tmp_path: Path, test: str, code: int, pytest_code: int, meaning: str
) -> None:
    root = make_checkout(tmp_path)
    use_real_pytest(root, test)
    words = f"ci/nightly.sh here {JOB} measure bench_cases compare baselines/arc4.json"
    night = run_night(words.split(), root, job_environment(root, {}), root)
    assert night.exit_code == code, night.output
    record = record_of(night)
    assert f"night: {meaning}\nexit: {code}\npytest exit: {pytest_code}\n" in record
    assert ("not collected: bench_cases.test_mnist_cnn\n" in record) == (code == 2)


BROKEN = failed("killed", "rank 1 on n2 was killed by SIGKILL", host="n2", index=4)


def results_of(checkout: Path, name: str, step_time_s: float, *further: Run) -> None:
    runs = [make.run(gpus, step_time_s, index=index) for gpus in (1, 2) for index in (1, 2, 3)]
    write_results(checkout / name, make.results(*runs, *further))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose pytest measures well, except that in its first attempt a node fails."""
    root = make_checkout(tmp_path)
    results_of(root, "measured", 0.1)
    results_of(root, "measured.1", 0.1, BROKEN)
    (root / "measured.1.exit").write_text("1")
    return root


def night_in(checkout: Path, **settings: str) -> Night:
    """A night of that checkout, with what a scheduler would set."""
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured"), **settings})
    environment["PATH"] = f"{checkout}/stand-ins:{environment['PATH']}"
    words = f"ci/nightly.sh here {JOB} measure x compare baselines/arc4.json"
    command = [*words.split(), "--case", "mnist_cnn", "--gpus", "1,2"]
    return run_night(command, checkout, environment, checkout)


def record_of(night: Night, attempt: str = ".") -> str:
    return (night.directory / attempt / "night.txt").read_text()


def test_a_failure_of_the_only_node_is_tried_once_more_in_place_and_kept(checkout: Path) -> None:
    night = night_in(checkout)
    assert night.exit_code == 0, night.output
    first, second = night.calls("pytest")
    assert "--results" in first
    assert "--resume" in second
    assert "night: ok\n" in record_of(night)
    assert "attempts: 2, see attempt-1\n" in record_of(night)
    evidence = json.loads((night.directory / "attempt-1/evidence.json").read_text())
    assert evidence["hosts"] == ["node1"]
    assert evidence["gpu_uuids_used"] == ["GPU-0", "GPU-1"]
    assert [fault["host"] for fault in evidence["faults"]] == ["n2"]
    assert (night.directory / "attempt-1/pytest.log").read_text() == "measuring\n"
    kept = (night.directory / "attempt-1/results.jsonl").read_text()
    assert kept == (checkout / "measured.1").read_text()


def test_infrastructure_that_fails_twice_is_no_regression_and_not_tried_a_third_time(
    checkout: Path,
) -> None:
    for name in ("measured.2", "measured.2.exit"):
        (checkout / name).write_text((checkout / name.replace("2", "1")).read_text())
    night = night_in(checkout)
    assert night.exit_code == 6, night.output
    assert len(night.calls("pytest")) == 2
    assert "night: infrastructure failed\n" in record_of(night)
    assert "infrastructure: mnist_cnn/ddp on 2 GPUs, run 4: rank 1 on n2" in record_of(night)
    assert "compare exit: 0\n" in record_of(night)


def test_a_job_on_several_nodes_tries_again_without_the_bad_one_where_slurm_takes_no_other(
    checkout: Path,
) -> None:
    write_program(checkout / "stand-ins/scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\nn3\\n'\n")
    write_program(checkout / "stand-ins/sbatch", "#!/bin/bash\necho not enough nodes >&2; exit 1\n")
    slurm = {"SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "n[1-3]", "GPUSCALE_JOB_SCRIPT": "script"}
    night = night_in(checkout, **slurm)
    assert night.exit_code == 0, night.output
    assert "trying once more, without n2" in night.output
    assert night.environment()[EXCLUDED_HOSTS] == "n2"
    # What was measured beside a node that failed is not mixed with the rest.
    assert "--results" in night.calls("pytest")[1]


def test_a_job_that_is_submitted_again_leaves_the_verdict_to_the_next(checkout: Path) -> None:
    slurm = in_a_slurm_job(checkout)
    first = night_in(checkout, **slurm)
    assert first.exit_code == 6, first.output
    assert "retried as: 4712\n" in record_of(first, "attempt-1")
    assert "--exclude=n2 --export=ALL --time=01:00:00 script" in (checkout / "again").read_text()
    assert not (first.directory / "night.txt").exists()
    second = night_in(checkout, GPUSCALE_RETRY_OF=str(first.directory), **slurm)
    assert second.exit_code == 0, second.output
    assert "attempts: 2, see attempt-1\n" in record_of(second)
    assert len(list(first.directory.parent.iterdir())) == 1


def in_a_slurm_job(checkout: Path) -> dict[str, str]:
    """What a job on n2 finds: its variables, and a Slurm that takes it once more as 4712."""
    write_program(
        checkout / "stand-ins/scontrol",
        "#!/bin/bash\n[ $1 = show ] && echo n2 || echo JobId=4711 TimeLimit=01:00:00\n",
    )
    write_program(
        checkout / "stand-ins/sbatch", f'#!/bin/bash\necho "$*" >"{checkout}/again"; echo 4712\n'
    )
    return {"SLURM_JOB_ID": JOB, "SLURM_JOB_NODELIST": "n2", "GPUSCALE_JOB_SCRIPT": "script"}


@pytest.mark.parametrize(("second", "code"), [("well", 0), ("measures nothing", 1), ("fails", 1)])
def test_a_regression_that_the_first_job_saw_stands_unless_the_second_judges_for_itself(
    checkout: Path, second: str, code: int
) -> None:
    results_of(checkout, "measured.1", 0.2, BROKEN)
    slurm = in_a_slurm_job(checkout)
    first = night_in(checkout, **slurm)
    assert first.exit_code == 1, first.output
    record = record_of(first, "attempt-1")
    assert "night: regressed, and infrastructure failed; submitted once more as job 4712" in record
    assert "exit: 1\n" in record
    assert "regressed" in (first.directory / "attempt-1/comparison.txt").read_text()
    if second != "well":
        (checkout / "measured.2.exit").write_text("1")
    measured = {"MEASURED": "nothing"} if second == "measures nothing" else {}
    last = night_in(checkout, GPUSCALE_RETRY_OF=str(first.directory), **slurm, **measured)
    assert last.exit_code == code, last.output
    assert ("by what the first attempt measured: see attempt-1" in record_of(last)) == bool(code)


def test_a_regression_before_a_node_failed_stands_where_the_next_attempt_in_place_fails(
    checkout: Path,
) -> None:
    results_of(checkout, "measured.1", 0.2, BROKEN)
    slurm = in_a_slurm_job(checkout)
    write_program(checkout / "stand-ins/scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\n'\n")
    write_program(checkout / "stand-ins/sbatch", "#!/bin/bash\nexit 1\n")
    (checkout / "measured.2.exit").write_text("1")
    night = night_in(checkout, **slurm)
    assert night.exit_code == 1, night.output
    assert "night: regressed, by what the first attempt measured" in record_of(night)


def test_a_night_without_a_baseline_is_measured_and_is_no_pass(checkout: Path) -> None:
    (checkout / "measured.1").unlink()
    (checkout / "measured.1.exit").unlink()
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured")})
    words = ["ci/nightly.sh", "here", JOB, "measure", "x"]
    night = run_night(words, checkout, environment, checkout)
    assert night.exit_code == 4, night.output
    assert "night: measured, and judged by nothing: no baseline was named\n" in record_of(night)
    assert "all measured: yes\n" in record_of(night)


def test_nothing_measured_is_said_in_words_and_code(checkout: Path) -> None:
    night = night_in(checkout, MEASURED="nothing", PYTEST_EXIT="1")
    assert night.exit_code == 4, night.output
    assert "night: nothing was measured\n" in record_of(night)


def test_a_broken_environment_is_never_a_regression(checkout: Path) -> None:
    # Python ends with 1 when a package cannot be imported.
    write_program(checkout / ".venv/bin/gpuscale", "#!/bin/bash\nexit 1\n")
    assert night_in(checkout).exit_code == 2


def test_a_night_whose_disk_is_full_still_ends_with_its_code(checkout: Path) -> None:
    # Its record goes to a device that is always full.
    write_program(
        checkout / ".venv/bin/pytest",
        '#!/bin/bash\ncp "$MEASURED" "$3"; ln -s /dev/full "$(dirname "$3")/night.txt"\n',
    )
    night = night_in(checkout)
    assert night.exit_code == 5, night.output
    assert "night.txt cannot be written (No space left on device)" in night.output
    assert "pytest exit: 0" in night.output


def test_a_night_that_cannot_be_kept_ends_with_2(checkout: Path) -> None:
    night = night_in(checkout, GPUSCALE_NIGHTLY_DIR="/dev/null/nights")
    assert night.exit_code == 2
    assert "set GPUSCALE_NIGHTLY_DIR to a folder to write to" in night.output
