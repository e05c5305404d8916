"""How a night tells faults apart and tries again; its programs are stand-ins, as in test_ci.py."""

import json
from pathlib import Path

import pytest
import scaling_records as make
from changing import replace
from ci_checkout import (
    JOB,
    Night,
    job_environment,
    make_checkout,
    run_night,
    use_real_pytest,
    write_program,
)

from gpuscale.errors import UsageError
from gpuscale.formats import encode_header, encode_run
from gpuscale.launch.placement import EXCLUDED_HOSTS, without_excluded
from gpuscale.night import Attempt, Fault, Items, NightExit, faults_of, night_exit
from gpuscale.night.retry import resubmission, suspects
from gpuscale.records import Failure, Results, Run
from gpuscale.records.run import FailureKind

ALL_ITEMS = Items(count=3, left_out=())
GPU_IS_GONE = Items(count=3, left_out=("needs 4 GPUs; 3 found",))


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
    log_end: str = "",
) -> Attempt:
    return Attempt(
        exit_code=exit_code,
        stopped_by=stopped_by,
        items=items,
        results=make.results(*runs) if runs else None,
        log_end=log_end,
    )


@pytest.mark.parametrize(
    "tried",
    [
        attempt(failed("killed")),
        attempt(failed("timeout")),
        attempt(failed("launch")),
        attempt(failed("raised", "rank 1 raised RuntimeError: uncorrectable ECC error")),
        attempt(failed("raised", "rank 1 raised DistBackendError: NCCL error: ncclRemoteError")),
        attempt(failed("raised", "rank 0 raised RuntimeError: Connection closed by peer")),
        attempt(exit_code=-9),
        attempt(exit_code=137),
        attempt(exit_code=74),
        attempt(exit_code=0, items=GPU_IS_GONE),
        attempt(exit_code=4, log_end="ERROR: --device cuda: torch sees no GPU here; see …"),
        attempt(exit_code=4, log_end="ERROR: the GPUs did not answer within 120 s; see …"),
    ],
)
def test_what_the_infrastructure_does_is_its_fault(tried: Attempt) -> None:
    assert len(faults_of(tried)) == 1


@pytest.mark.parametrize(
    "tried",
    [
        attempt(make.run(2, 0.1), exit_code=0),
        attempt(failed("raised", "rank 1 raised ValueError: no such batch")),
        attempt(failed("raised", "rank 1 on n1 ran out of memory; …: CUDA out of memory")),
        attempt(failed("invalid")),
        attempt(failed("unsteady"), exit_code=0, items=Items(count=3, left_out=("not steady",))),
        attempt(exit_code=5, items=Items(count=0, left_out=())),
        attempt(exit_code=4, log_end="ERROR: --gpus: 'x' is not a whole number"),
        # What comes after a request to end is its consequence.
        attempt(failed("killed"), exit_code=143, stopped_by=15),
        # Made again, in a session that resumed, and then well.
        attempt(failed("killed"), make.run(2, 0.1), exit_code=1),
    ],
)
def test_what_the_training_or_the_user_does_is_no_fault_of_the_infrastructure(
    tried: Attempt,
) -> None:
    assert faults_of(tried) == ()


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("torch sees no GPU on n2, n3; ask the scheduler for GPUs", ["n2", "n3"]),
        ("ERROR: n3 did not answer in time; see whether the scheduler", ["n3"]),
        ("ERROR: n2.site: does not see /shared, or cannot run there", ["n2.site"]),
        ("ERROR: no node could be looked at (exit code 1: no message)", [None]),
    ],
)
def test_nodes_that_a_launcher_misses_are_named(said: str, hosts: list[str | None]) -> None:
    assert [fault.host for fault in faults_of(attempt(exit_code=4, log_end=said))] == hosts


def test_a_fault_names_the_run_the_rank_and_the_host() -> None:
    (fault,) = faults_of(attempt(failed("killed", "rank 1 on n2 was killed", host="n2", index=3)))
    assert fault == Fault(
        text="mnist_cnn/ddp on 2 GPUs, run 3: rank 1 on n2 was killed", host="n2", rank=1
    )


@pytest.mark.parametrize(
    ("has_measured", "is_complete", "has_faults", "could_run", "compare_exit", "expected"),
    [
        (True, True, False, True, 0, NightExit.OK),
        (True, True, False, True, 3, NightExit.INCONCLUSIVE),
        (True, True, False, True, None, NightExit.NOTHING_COMPARABLE),
        (True, False, True, True, 1, NightExit.REGRESSED),
        (True, False, True, True, 0, NightExit.INFRASTRUCTURE),
        (True, False, True, True, 2, NightExit.FAILED),
        (True, False, False, True, 0, NightExit.INCOMPLETE),
        (False, False, False, True, None, NightExit.NOTHING_COMPARABLE),
        (False, False, False, False, None, NightExit.FAILED),
        (False, False, True, False, None, NightExit.INFRASTRUCTURE),
    ],
)
def test_the_night_ends_with_what_matters_most(
    has_measured: bool,
    is_complete: bool,
    has_faults: bool,
    could_run: bool,
    compare_exit: int | None,
    expected: NightExit,
) -> None:
    found = night_exit(
        has_measured=has_measured,
        is_complete=is_complete,
        has_faults=has_faults,
        could_run=could_run,
        compare_exit=compare_exit,
        is_judged=compare_exit is not None,
    )
    assert found == expected


def test_the_nodes_to_keep_away_from_are_those_that_faults_name() -> None:
    nodes = ("n1", "n2", "n3")
    assert suspects([Fault(text="", host="n2.cluster.example")], nodes) == ("n2",)
    assert suspects([Fault(text="")], nodes) == nodes
    assert suspects([Fault(text="", host="elsewhere")], nodes) == nodes
    # When a node is lost, ranks on the others end with it.
    assert suspects([Fault(text="", host="n1")], nodes, lost=("n3", "n9")) == ("n3",)


def test_a_job_is_submitted_again_with_what_its_script_does_not_say() -> None:
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
    found = resubmission(environment, avoid=("n1", "n2"), night="/night", shown=shown)
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
        "GPUSCALE_RETRY_OF": "/night",
    }
    del environment["GPUSCALE_JOB_SCRIPT"]
    assert resubmission(environment, avoid=("n1",), night="/night", shown="") is None


def test_launchers_leave_out_excluded_hosts_but_not_all() -> None:
    assert without_excluded(("n1", "n2"), {}) == ("n1", "n2")
    assert without_excluded(("n1", "n2"), {EXCLUDED_HOSTS: "n2,n7"}) == ("n1",)
    with pytest.raises(UsageError, match="names all hosts of this job"):
        without_excluded(("n1",), {EXCLUDED_HOSTS: "n1"})


def written(path: Path, results: Results) -> None:
    header = encode_header(
        created_at=results.created_at,
        gpuscale_version=results.gpuscale_version,
        environment=results.environment,
    )
    path.write_text("\n".join([header, *map(encode_run, results.runs)]) + "\n")


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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose pytest measures well, except that in its first attempt a node fails."""
    root = make_checkout(tmp_path)
    written(root / "measured", make.results(make.run(1, 0.1), make.run(2, 0.1)))
    broken = failed("killed", "rank 1 on n2 was killed by SIGKILL", host="n2")
    written(root / "measured.1", make.results(make.run(1, 0.1), broken))
    (root / "measured.1.exit").write_text("1")
    return root


def night_in(checkout: Path, **settings: str) -> Night:
    """A night of that checkout, with what a scheduler would set."""
    environment = job_environment(checkout, {"MEASURED": str(checkout / "measured"), **settings})
    environment["PATH"] = f"{checkout}/stand-ins:{environment['PATH']}"
    words = f"ci/nightly.sh here {JOB} measure x compare baselines/arc4.json"
    return run_night(words.split(), checkout, environment, checkout)


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
    assert "infrastructure: mnist_cnn/ddp on 2 GPUs, run 1: rank 1 on n2" in record_of(night)
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


REGRESSES_FIRST = """\
#!/bin/bash
case $1 in night | --version) exec "$PYTHON" -m gpuscale "$@" ;; esac
[ "$1" = show ] && exit
echo "a table"
case $3 in */attempt-1/*) exit 1 ;; *) exit "$COMPARE_EXIT" ;; esac
"""


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
    write_program(checkout / ".venv/bin/gpuscale", REGRESSES_FIRST)
    slurm = in_a_slurm_job(checkout)
    first = night_in(checkout, **slurm)
    assert first.exit_code == 1, first.output
    record = record_of(first, "attempt-1")
    assert "night: regressed, and infrastructure failed; submitted once more as job 4712" in record
    assert "exit: 1\n" in record
    assert (first.directory / "attempt-1/comparison.txt").read_text() == "a table\n"
    if second != "well":
        (checkout / "measured.2.exit").write_text("1")
    measured = {"MEASURED": "nothing"} if second == "measures nothing" else {}
    last = night_in(checkout, GPUSCALE_RETRY_OF=str(first.directory), **slurm, **measured)
    assert last.exit_code == code, last.output
    assert ("by what the first attempt measured: see attempt-1" in record_of(last)) == bool(code)


def test_a_regression_before_a_node_failed_stands_where_the_next_attempt_in_place_fails(
    checkout: Path,
) -> None:
    write_program(checkout / ".venv/bin/gpuscale", REGRESSES_FIRST)
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
