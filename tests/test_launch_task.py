"""The process that a scheduler starts beside each rank: it watches, samples and takes down."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from builders import CNN, request, run
from changing import replace
from hosts import within_limit
from measuring import REPOSITORY, write_case
from nvml.library import GPU_A, compile_driver

from gpuscale.measure.run_directory import NodeSamples, RunDirectory
from gpuscale.measure.telemetry.summary import RunSampling
from gpuscale.records import SampledDevices, TimingPlan, Window
from gpuscale.records.request import RankExit

HANGING = """
import time

class Case(Tiny):
    def forward(self, model, inputs):
        time.sleep(600)
"""
QUICK = TimingPlan(warmup_steps=1, warmup_s=0.1, windows=10, window_s=0.05, run_seconds=0.5)


def run_directory(folder: Path, case: Path) -> RunDirectory:
    """The folder as a launcher leaves it for a single rank on this host."""
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
        timeout_s=240.0,
    )
    directory.request.write(asked)
    directory.hosts.write_text(socket.gethostname())
    with socket.socket() as probe:
        probe.bind(("", 0))
        directory.port.write_text(str(probe.getsockname()[1]))
    return directory


def task(directory: RunDirectory, *before: str, driver: Path | None = None) -> list[str]:
    """The command line that starts a task, by `env` with what Open MPI would set."""
    variables = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "GPUSCALE_RENDEZVOUS_HOST": "127.0.0.1",
        "PYTHONPATH": str(REPOSITORY),
        "LD_LIBRARY_PATH": str(driver or ""),
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    program = [sys.executable, "-P", "-m", "gpuscale.measure.launch.task", "mpirun", "rank"]
    return ["env", *settings, *before, *program, str(directory.path), "cpu"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_first_task_of_a_node_samples_its_gpus_until_its_rank_has_ended(tmp_path: Path) -> None:
    directory = run_directory(tmp_path, write_case(tmp_path, "Case = Tiny"))
    host = socket.gethostname()
    directory.sampled.write(SampledDevices(uuids={host: (GPU_A,), "another": ("not here",)}))
    driver = tmp_path / "driver"
    driver.mkdir()
    answer = subprocess.run(task(directory, driver=compile_driver(driver)), check=False)
    assert answer.returncode == 0, directory.output(0).read_text()
    exited = directory.exit(0).read()
    assert exited == RankExit(rank=0, host=host, code=0)
    outcome = directory.outcome(0).read()
    windows = outcome.measurement.windows
    first, last = windows[0], windows[-1]
    whole_run = Window(
        started_at_s=first.started_at_s,
        time_s=last.started_at_s + last.busy_s - first.started_at_s,
        busy_s=(last.busy_s,),
    )
    here = NodeSamples(host=host, path=directory.samples(host), uuids=(GPU_A,))
    gone = NodeSamples(host="gone", path=directory.samples("gone"), uuids=("none",))
    report = RunSampling(lambda: [here, gone]).summarize(replace(run(1, 0.1), windows=(whole_run,)))
    assert [summary.uuid for summary in report.gpu_summaries] == [GPU_A]
    assert report.gpu_summaries[0].samples > 0
    assert report.absent is not None
    assert report.absent.startswith("gone: the GPU sampler ended before its first sample")


def test_a_rank_ends_with_the_daemon_that_started_its_task(tmp_path: Path) -> None:
    directory = run_directory(tmp_path, write_case(tmp_path, HANGING))
    # The shell is the daemon; it leaves the task's process id before it waits.
    daemon = subprocess.Popen(
        task(directory, "sh", "-c", '"$@" & echo $! >"$0"; wait', str(tmp_path / "pid"))
    )
    assert within_limit(directory.pid(0).exists)
    pids = [int((tmp_path / "pid").read_text()), int(directory.pid(0).read_text())]
    assert all(is_running(pid) for pid in pids)
    daemon.kill()
    daemon.wait()
    assert within_limit(lambda: not any(is_running(pid) for pid in pids))
    assert directory.exit(0).read().code == -9


@pytest.mark.thorough
def test_a_rank_ends_when_the_folder_of_its_run_is_gone(tmp_path: Path) -> None:
    directory = run_directory(tmp_path, write_case(tmp_path, HANGING))
    process = subprocess.Popen(task(directory))
    # Its last word before it hangs: nothing that it would write is missed.
    assert within_limit(directory.progress.exists)
    rank = int(directory.pid(0).read_text())
    shutil.rmtree(directory.path)
    assert process.wait(timeout=240) == 128 + 9
    assert not is_running(rank)


def test_a_task_in_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    program = [sys.executable, "-P", "-m", "gpuscale.measure.launch.task", "slurm", "describe"]
    answer = subprocess.run(
        [*program, str(tmp_path / "nowhere"), "cpu"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert f"there is no folder {tmp_path / 'nowhere'} here" in answer.stderr


def test_the_ranks_of_other_hosts_are_not_counted_with_those_of_this_one(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    assert directory.ranks_per_host(6) == 6
    directory.hosts.write_text("n1\nn2\nn3\nn4\n")
    assert [directory.ranks_per_host(ranks) for ranks in (4, 6, 8)] == [1, 2, 2]
