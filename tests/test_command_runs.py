"""A command is started, timed by its lines, and ended with everything that it started."""

import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import is_living, measured, request_for, watch
from hosts import within_limit
from msgspec.structs import replace
from statements import known

from gpuscale.analysis.scaling import scaling_points
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.records import Failure, Run
from gpuscale.records.request import RankFailure
from gpuscale.reports.show import scaling_table

FOREVER = "steps(range(10**6))\n"


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_step_time(run: Run) -> None:
    """Check that a step took the 10 ms of the scripts' sleep, which a busy machine prolongs.

    The lines of two ranks in one pipe would halve it.
    """
    assert run.failure is None
    assert 0.008 < known(run.step_time_s) < 0.2


def be_rank(monkeypatch: pytest.MonkeyPatch, **variables: str) -> RunDirectory:
    """Set the variables of a process that starts a command across two nodes; return its folder."""
    for name, value in {"MASTER_ADDR": "n1", "MASTER_PORT": "77", **variables}.items():
        monkeypatch.setenv(name, value)
    directory = RunDirectory(path=Path("run").absolute())
    directory.path.mkdir()
    directory.hosts.write_text("n1\nn2")
    return directory


def test_a_step_takes_as_long_as_its_lines_are_apart(tmp_path: Path) -> None:
    run = measured(tmp_path, FOREVER)
    check_step_time(run)
    assert len(run.windows) == 10
    assert known(run.steps_per_window) >= 5
    # Nothing that lines do not tell.
    assert run.ranks == ()
    assert run.unsynced_windows == ()
    assert all(window.phases is None for window in run.windows)


def test_the_lines_tell_the_samples_of_a_step(tmp_path: Path) -> None:
    run = measured(tmp_path, "steps(range(10**6), samples=64)\n", gpus=2, batch=None)
    assert run.failure is None
    assert run.batch_per_gpu == 32
    (tmp_path / "again").mkdir()
    failed = measured(tmp_path / "again", "sys.exit(3)\n", gpus=2, batch=None)
    assert failed.batch_per_gpu is None
    # It is one of the runs that did tell it.
    alike = replace(failed, configuration=run.configuration)
    (point,) = scaling_points([alike, run])
    assert (point.batch_per_gpu, point.valid_runs, point.failed_runs) == (32, 1, 1)
    assert " – " in scaling_table(scaling_points([failed]))


@pytest.mark.parametrize(
    ("script", "attributes", "kind", "said"),
    [
        ("steps(range(3))\nsys.exit(3)\n", {}, "raised", "code 3, after printing: GPUSCALE {"),
        ("steps(range(3))\nos.kill(os.getpid(), 9)\n", {}, "killed", "SIGKILL"),
        ("steps(range(3))\n", {}, "invalid", "3 lines had a step"),
        ("steps([1])\nsubprocess.Popen(['sleep', '99'])\n", {}, "invalid", "in the background"),
        ("steps(range(3))\ntime.sleep(99)\n", {"timeout_s": 2}, "timeout", "--timeout"),
        ("print('epoch 1 done')\n", {}, "unread", "such as: epoch 1 done"),
        ("", {}, "unread", "printed nothing to time its steps by; at each step print"),
        (FOREVER, {"batch": None}, "unread", "--samples-per-step"),
        ("steps(range(9))\n", {"step_regex": r"(?P<step>GP\w*)"}, "invalid", "whole numbers"),
    ],
)
def test_a_command_that_tells_too_little_says_why(
    tmp_path: Path, script: str, attributes: dict[str, Any], kind: str, said: str
) -> None:
    failure = known(measured(tmp_path, script, **attributes).failure)
    assert failure.kind == kind
    assert said in failure.message


ESCAPED = """
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
open("escaped.part", "w").write(str(child.pid))
os.rename("escaped.part", "escaped")
"""


def test_no_process_of_a_command_is_left(tmp_path: Path) -> None:
    measured(tmp_path, ESCAPED + FOREVER)
    assert not is_living(int(Path("escaped").read_text()))


def test_a_command_ends_with_its_watcher(tmp_path: Path) -> None:
    process = watch(tmp_path, request_for(tmp_path, ESCAPED + "time.sleep(99)\n"))
    assert within_limit(Path("escaped").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert not is_living(int(Path("escaped").read_text()))


def test_placeholders_and_devices_are_set(tmp_path: Path) -> None:
    script = "open('told', 'w').write(' '.join(sys.argv[1:]) + os.environ['PYTHONUNBUFFERED'])\n"
    command = f"{sys.executable} {tmp_path}/train.py {{gpus}} {{batch}} {{global_batch}} {{{{}}}}"
    measured(tmp_path, script, gpus=2, command=command)
    assert Path("told").read_text() == "2 8 16 {}1"


def test_torchrun_ranks_have_own_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As torchrun does: it starts what PYTHON_EXEC names, which finds the Python of its parent.
    monkeypatch.setenv("PYTHON_EXEC", "")
    script = """
if "RANK" in os.environ:
    # Half a line now and then, which others would end if they wrote into the same pipe.
    for number in range(10**6):
        sys.stdout.write('GPUSCALE {"step"')
        time.sleep(0.01)
        print(f': {number}}}')
python = os.environ["PYTHON_EXEC"]
ranks = [
    subprocess.Popen([python, "-u", __file__], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank})
    for rank in "01"
]
ranks[0].wait()
"""
    run = measured(tmp_path, script, gpus=2)
    check_step_time(run)


def test_a_bare_script_is_started_once_for_each_rank(tmp_path: Path) -> None:
    script = """
assert os.environ["WORLD_SIZE"] == "2" and os.environ["MASTER_ADDR"]
if os.environ["LOCAL_RANK"] == "1":
    time.sleep(99)
steps(range(10**6))
"""
    assert measured(tmp_path, script, gpus=2, launch="torchrun").failure is None


def test_devices_come_from_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    # Which goes before it on AMD's GPUs.
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,5")
    names = "'CUDA_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES'"
    script = f"open('told', 'w').write(' '.join(os.environ[name] for name in ({names})))\n"
    watch(tmp_path, replace(request_for(tmp_path, script, gpus=2), devices=(1, 0))).wait()
    assert Path("told").read_text() == "7,4 5,2"


@pytest.mark.parametrize(
    ("programs", "devices", "own", "threads"),
    [
        ("python train.py", (), None, "1"),
        ("python train.py", (), "4", "4"),
        ("python train.py", (0,), None, "None"),
        ("deepspeed train.py", (0,), None, "None"),
        # Of one process torchrun would leave it unset.
        ("torchrun train.py", (0,), None, "1"),
        ("torchrun train.py", (0,), "4", "4"),
        ("srun torchrun", (0,), None, "1"),
    ],
)
def test_threads_of_a_rank_do_not_depend_on_their_number(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: str,
    devices: tuple[int, ...],
    own: str | None,
    threads: str,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    script = "open('told', 'w').write(str(os.environ.get('OMP_NUM_THREADS')))\n"
    # The shell drops the programs, which need not be installed here.
    command = f"sh -c 'shift; exec \"$@\"' {programs} {sys.executable} {tmp_path}/train.py"
    request = request_for(tmp_path, script, command=command)
    watch(tmp_path, replace(request, devices=devices)).wait()
    assert Path("told").read_text() == threads


def test_a_rank_reports_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = be_rank(monkeypatch, RANK="2", LOCAL_RANK="0")
    lost = "print(os.environ['LOCAL_WORLD_SIZE'], 'on this host')\n"
    lost += "sys.exit('RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer')\n"
    watch(tmp_path, request_for(tmp_path, lost, gpus=3, nodes=2)).wait()
    (report,) = directory.failures()
    assert "1 on this host" in report.failure.detail
    end = f"rank 2 ended with exit code 1 on {socket.gethostname()}"
    assert report.failure.message.startswith(end)
    assert report.lost_peer
    # How far a run is tells only a rank that knows it.
    assert not directory.progress.exists()


def test_a_nodes_command_knows_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the process that starts it, which is no rank.
    be_rank(monkeypatch, RANK="1", WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="4,5")
    names = "{nodes} {node_rank} {gpus_per_node} {master_addr} {master_port} {hosts}"
    script = """
told = [*sys.argv[1:-1], open(sys.argv[-1]).read(), os.environ["CUDA_VISIBLE_DEVICES"]]
open("told", "w").write(" ".join([*told, str("RANK" in os.environ)]))
"""
    command = f"{sys.executable} {tmp_path}/train.py {names} {{hostfile}}"
    request = request_for(tmp_path, script, gpus=3, nodes=2, launch="per-node", command=command)
    watch(tmp_path, replace(request, devices=(0, 1, 0))).wait()
    hostfile = "n1 slots=2\nn2 slots=1\n"
    assert Path("told").read_text() == f"2 1 1 n1 77 n1,n2 {hostfile} 4 False"


@pytest.mark.parametrize("has_reported", [True, False])
def test_a_node_without_steps_leaves_the_failure_to_one_that_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reported: bool
) -> None:
    directory = be_rank(monkeypatch, RANK="0")
    if has_reported:
        few = Failure(kind="invalid", message="3 lines had a step")
        directory.failure(1).write(RankFailure(failure=few, lost_peer=False))
    request = request_for(tmp_path, "", gpus=4, nodes=2, launch="per-node")
    watch(tmp_path, request).wait()
    (report,) = directory.failures()
    assert report.failure.kind == ("invalid" if has_reported else "unread")


TORCHRUN = f"{sys.executable} -m torch.distributed.run --master-port {{master_port}}"
ON_RANK_1 = """
if os.environ["RANK"] == "1":
    steps(range(5))
    {end}
steps(range(10**6))
"""
BY_A_SHELL = "sh -c '{} 2>&1 | tee log'"


@pytest.mark.parametrize(
    ("shell", "end", "kind", "said", "shown"),
    [
        ("{}", "raise OSError('label 7')", "raised", "rank 1 raised OSError: label 7", "Traceback"),
        (BY_A_SHELL, "os.kill(os.getpid(), 9)", "killed", "rank 1 was killed by SIGKILL", ": 4"),
    ],
    ids=["alone", "by a shell"],
)
def test_the_failing_rank_of_torchrun_is_named_with_its_own_last_lines(
    tmp_path: Path, shell: str, end: str, kind: str, said: str, shown: str
) -> None:
    command = shell.format(f"{TORCHRUN} --nproc-per-node {{gpus}} {tmp_path}/train.py")
    run = measured(tmp_path, ON_RANK_1.format(end=end), gpus=2, command=command)
    failure = known(run.failure)
    assert failure.kind == kind
    assert failure.message.startswith(said)
    assert failure.rank == 1
    assert shown in failure.detail
    # Nothing of what torchrun says of it.
    assert "exitcode" not in failure.detail


# Steps begin once both ranks have said that they are there: a busy machine may start one late.
BOTH_ARE_THERE = """
from pathlib import Path

print(f"here is rank {os.environ['RANK']}.")
print(f"as rank {os.environ['RANK']}.", file=sys.stderr)
Path('there' + os.environ['RANK']).touch()
while not (Path('there0').exists() and Path('there1').exists()):
    time.sleep(0.01)
"""


def test_a_shell_reads_the_ranks_output(tmp_path: Path) -> None:
    inner = f"{TORCHRUN} --nproc-per-node {{gpus}} {tmp_path}/train.py"
    command = f"sh -c '{inner} 2>errors | tee log'"
    run = measured(tmp_path, BOTH_ARE_THERE + FOREVER, gpus=2, command=command)
    # Lines of one rank, in its own pipe, and not those that the shell prints again.
    check_step_time(run)
    assert 'GPUSCALE {"step": 7}' in Path("log").read_text()
    for file, words in {"log": "here is rank", "errors": "as rank"}.items():
        told = Path(file).read_text()
        assert f"{words} 0." in told
        assert f"{words} 1." in told


RANKS = """
if "CHILD" in os.environ:
    steps(range(10**6))
variables = {**os.environ, "CHILD": "1", "WORLD_SIZE": sys.argv[1]}
subprocess.run([sys.executable, __file__], env=variables)
"""


@pytest.mark.parametrize(
    ("words", "gpus", "devices", "is_refused"),
    [
        ("2", 2, (), False),
        ("1", 2, (), True),
        ("4", 2, (0, 1), True),
        # A rank may drive several GPUs, if their number depends on what was asked for.
        ("2", 4, (0, 1, 2, 3), True),
        ("2 {gpus}", 4, (0, 1, 2, 3), False),
    ],
)
def test_ranks_that_processes_show_are_held_against_the_gpus_of_the_run(
    tmp_path: Path, words: str, gpus: int, devices: tuple[int, ...], is_refused: bool
) -> None:
    command = f"{sys.executable} {tmp_path}/train.py {words}"
    request = replace(request_for(tmp_path, RANKS, gpus=gpus, command=command), devices=devices)
    code = watch(tmp_path, request).wait()
    failures = RunDirectory(path=tmp_path / "run").failures()
    assert code == is_refused, failures
    assert all(f"in a run on {gpus}" in report.failure.message for report in failures)


def test_a_starter_that_starts_a_single_process_is_seen_on_cpu_ranks(tmp_path: Path) -> None:
    # As `accelerate launch --cpu --num_processes 2` does.
    (tmp_path / "accelerate").symlink_to(sys.executable)
    command = f"{tmp_path}/accelerate {tmp_path}/train.py {{gpus}}"
    failure = known(measured(tmp_path, FOREVER, gpus=2, command=command).failure)
    assert "1 rank in a run on 2 CPU ranks; see why" in failure.message
    (tmp_path / "one").mkdir()
    assert measured(tmp_path / "one", FOREVER, command=command).failure is None


def test_old_variables_are_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert measured(tmp_path, FOREVER).failure is None
