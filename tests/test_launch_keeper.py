"""The process that forks ranks on a node: what it leaves, and when it ends."""

import os
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import CNN, request, run
from changing import replace
from commands import is_living
from hosts import within_limit
from measuring import write_case
from nvml.library import GPU_A
from statements import known

from gpuscale.base.process_ends import parent_of
from gpuscale.measure.launch.keeper_orders import Keepers, Outcome
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.schedulers.placement import Placement, ThisNode, rank_variables
from gpuscale.measure.telemetry.summary import with_telemetry
from gpuscale.records import TimingPlan
from gpuscale.records.evidence import Window

HANGING = """
import os, pathlib, time

class Case(Tiny):
    def forward(self, model, inputs):
        pathlib.Path(__file__).with_name("pid").write_text(str(os.getpid()))
        time.sleep(600)
"""
# Leaves a process in a session of its own.
LEAVING = """
import subprocess

class Case(Tiny):
    def model(self):
        subprocess.Popen(["sleep", "613"], start_new_session=True)
        return super().model()
"""
QUICK = TimingPlan(warmup_steps=1, warmup_s=0.1, windows=10, window_s=0.05, run_seconds=0.5)
LIMIT_S = 240.0
FIRST = {0: ((0, 0),)}
HERE = Placement(hosts=(socket.gethostname(),), ranks=1, ranks_per_host=1)


def run_directory(folder: Path, case: Path) -> RunDirectory:
    """Return the folder of a run as the launcher prepares it for a single rank on this host."""
    directory = RunDirectory(path=folder / "run")
    directory.path.mkdir()
    asked = request(
        configuration=replace(CNN, case="case", device="cpu", size="smoke", threads_per_rank=1),
        batch_per_gpu=8,
        sample_shape=(16,),
        case_module="test_tiny",
        case_file=str(case),
        case_class="Case",
        import_paths=(str(folder),),
        timing=QUICK,
        timeout_s=LIMIT_S,
    )
    directory.request.write(asked)
    directory.hosts.write_text(socket.gethostname())
    return directory


class OfOpenMpi(ThisNode):
    """Starts a keeper with the variables that Open MPI would set, by a command if any is given."""

    name = "mpirun"

    def __init__(self, folder: Path, command: Sequence[str], driver: Path | None) -> None:
        variables = ("OMPI_COMM_WORLD_RANK=0", f"LD_LIBRARY_PATH={driver or ''}")
        self.folder, self.before = str(folder), ("env", *variables, *command)

    def arguments(self, program: Sequence[str], placement: Placement) -> list[str]:
        *words, _, preloads = program
        return [*self.before, *words, self.folder, preloads]


def keeper(
    folder: Path, *before: str, driver: Path | None = None, log: Path | None = None
) -> Keepers:
    """Start a keeper that works in a folder, which is that of its log unless `log` is given."""
    return Keepers(OfOpenMpi(folder, before, driver), HERE, log or folder, preloads=False)


def perform(keepers: Keepers, directory: RunDirectory) -> Outcome:
    variables = rank_variables(1, "127.0.0.1")
    return keepers.perform("rank", directory, FIRST, timeout_s=LIMIT_S, variables=variables)


def test_a_nodes_gpus_are_sampled_until_its_first_rank_ends(tmp_path: Path, driver: Path) -> None:
    directory = run_directory(tmp_path, write_case(tmp_path, LEAVING))
    host = socket.gethostname()
    addresses: dict[str, dict[str, str | None]] = {host: {GPU_A: None}, "another": {"n": None}}
    directory.gpus.write(addresses)
    keepers = keeper(tmp_path, driver=driver)
    assert keepers.is_usable
    assert perform(keepers, directory).exit_codes == {0: 0}, directory.output(0).read_text()
    (node,) = directory.nodes()
    # The library of the tests has two processes on every device.
    load = known(node.load)
    assert (node.host, load.gpu_processes, load.other_cores is None) == (host, 2, False)
    assert "TCP" in [port.name for port in node.ports]
    assert "kernel_options" in node.settings
    # What the rank started and left has ended with it.
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(b"sleep\x00613" in words for words in running)
    (outcome,) = directory.outcomes.read()
    windows = outcome.measurement.windows
    first, last = windows[0], windows[-1]
    time_s = last.started_at_s + last.busy_s - first.started_at_s
    whole_run = Window(started_at_s=first.started_at_s, time_s=time_s, busy_s=(last.busy_s,))
    directory.gpus.write({host: {GPU_A: None}, "gone": {"none": None}})
    report = with_telemetry(replace(run(1, 0.1), windows=(whole_run,)), directory)
    assert [summary.uuid for summary in report.gpu_summaries] == [GPU_A]
    assert report.gpu_summaries[0].samples > 0
    absent = known(report.telemetry_absent)
    assert absent.startswith("gone: the GPU sampler ended before its first sample")
    keepers.close()


def hanging_rank(keepers: Keepers, directory: RunDirectory) -> int:
    assert keepers.is_usable
    variables = rank_variables(1, "127.0.0.1")
    keepers.send(job="rank", folder=str(directory.path), assignment=FIRST, variables=variables)
    pid = directory.path.parent / "pid"
    assert within_limit(lambda: pid.exists() and pid.read_text() != "")
    return int(pid.read_text())


def test_a_rank_and_its_keeper_end_with_the_daemon_that_started_the_keeper(tmp_path: Path) -> None:
    directory = run_directory(tmp_path, write_case(tmp_path, HANGING))
    # The shell is the daemon; it leaves the process ids of both before it waits.
    words = 'exec 3<&0; "$@" <&3 & echo $$ $! >"$0"; wait'
    keepers = keeper(tmp_path, "sh", "-c", words, str(tmp_path / "pids"))
    rank = hanging_rank(keepers, directory)
    daemon, kept = map(int, (tmp_path / "pids").read_text().split())
    assert is_living(rank)
    assert is_living(kept)
    os.kill(daemon, signal.SIGKILL)
    assert within_limit(lambda: not is_living(rank) and not is_living(kept))
    keepers.close()


@pytest.mark.thorough
def test_a_rank_and_its_keeper_end_when_the_launchers_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    directory = run_directory(tmp_path, write_case(tmp_path, HANGING))
    keepers = keeper(folder)
    rank = hanging_rank(keepers, directory)
    kept = parent_of(rank)
    shutil.rmtree(folder)
    assert within_limit(lambda: not is_living(rank) and not is_living(kept))
    keepers.close()


def test_a_keeper_that_does_not_see_the_launchers_folder_says_so(tmp_path: Path) -> None:
    keepers = keeper(tmp_path / "nowhere", log=tmp_path)
    assert not keepers.is_usable
    assert f"there is no folder {tmp_path / 'nowhere'} here" in keepers.output
