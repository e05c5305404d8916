"""The CUDA path, run on devices that are emulated on the CPU (tests/cuda_emulation).

This shows which calls are made in which order on which devices, and in which units their answers
are read. It shows nothing of time, of NCCL, or of kernels.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
import torch
from amdsmi_library.library import Layouts, mi250x, write_fleet
from command_line import python
from cuda_emulation.devices import UUIDS
from measuring import Session, emulated_gpus, run_gpuscale, run_pytest, write_case
from statements import known
from test_options import GIVEN

from gpuscale.plugin.options import parse_options
from gpuscale.plugin.terminal import header_lines
from gpuscale.records import Environment, HostLoad
from gpuscale.reports.phrases import software_text

BUILT_FOR = "2.14"
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith(f"{BUILT_FOR}."),
    reason=f"the emulation of CUDA knows torch {BUILT_FOR}, of constraints.txt, from inside",
)

ALL_STRATEGIES = """
class Case(Tiny):
    strategies = ("dp", "ddp", "fsdp", "pipeline", "mp", "lightning")

    def model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )

    def optimizer(self, model, gpus):
        return torch.optim.Adam(model.parameters(), lr=1e-3)
"""
QUICK = ("--runs", "1", "--run-seconds", "0.1")
Run = Callable[..., Session]


@pytest.fixture(scope="module")
def devices(driver: Path) -> Mapping[str, str]:
    """The variables of a machine with two emulated GPUs and a driver that knows them."""
    return {**emulated_gpus(2), "LD_LIBRARY_PATH": str(driver), "FAKE_NVML_FLEET": "0,1"}


@pytest.fixture
def session(devices: Mapping[str, str], tmp_path: Path) -> Run:
    """Measures a case on the emulated devices."""

    def run(case: str, *options: str, **variables: str) -> Session:
        words = (str(write_case(tmp_path, case)), "-q", *QUICK, *options)
        return run_pytest(tmp_path, *words, **{**devices, **variables})

    return run


DESCRIBED = """
import sys
import msgspec
from gpuscale.measure.launch.launcher import Launcher

sys.stdout.buffer.write(msgspec.json.encode(Launcher(device="auto", folder=None).environment))
"""


def test_every_strategy_trains_on_the_devices_it_was_given(session: Run) -> None:
    made = session(ALL_STRATEGIES, "--gpus", "2", "--precision", "tf32").ended()
    runs = {run.configuration.strategy: run for run in made.results.runs}
    assert len(runs) == 6
    assert all(run.is_valid for run in runs.values()), made.output
    for strategy, run in runs.items():
        of_ranks = [rank.device_uuids for rank in run.ranks]
        expected = [UUIDS[:2]] if strategy in ("dp", "mp") else [(uuid,) for uuid in UUIDS[:2]]
        assert of_ranks == expected, strategy
        assert run.configuration.device == "cuda"
        assert all(rank.peak_memory_bytes for rank in run.ranks)
        assert all(rank.phases is not None and rank.phases.forward_s > 0 for rank in run.ranks)
    # What a strategy divides among devices no device has as a whole.
    peaks = {name: max(r.peak_memory_bytes or 0 for r in run.ranks) for name, run in runs.items()}
    assert max(peaks["fsdp"], peaks["mp"]) < peaks["ddp"], peaks
    assert made.results.environment.nccl_version == "2.28.3"


def test_two_ranks_share_the_chosen_device_and_one_of_them_is_delayed(session: Run) -> None:
    # With batches from a loader, which are pinned.
    options = ("--gpus", "2", "--precision", "bf16", "--data", "loader", "--oversubscribe")
    delayed = ("--inject", "slow-rank=1:2.0")
    made = session("Case = Tiny", *options, *delayed, CUDA_VISIBLE_DEVICES="1").ended()
    (run,) = made.results.runs
    assert run.is_valid
    assert run.configuration.ranks_per_gpu == 2
    assert [rank.device_uuids for rank in run.ranks] == [(UUIDS[1],)] * 2
    (gpu,) = made.results.environment.gpus
    assert (gpu.uuid, gpu.smi_index) == (UUIDS[1], 1)


def test_no_memory_and_a_lost_device_end_their_runs_only(session: Run) -> None:
    failing = {"EMULATED_CUDA_MEMORY": str(1024**2), "EMULATED_CUDA_LOST": "1"}
    options = ("--gpus", "1,2", "--batch", "100000,8", "--precision", "fp16")
    made = session("Case = Tiny", *options, **failing).ended(1)
    runs = {(run.gpus, run.batch_per_gpu): run for run in made.results.runs}
    assert runs[1, 8].is_valid
    assert known(runs[1, 100_000].failure).kind == "out_of_memory"
    lost = known(runs[2, 8].failure)
    assert (lost.kind, lost.rank) == ("system", 1)


def test_the_largest_batch_fits_the_device(devices: Mapping[str, str], tmp_path: Path) -> None:
    file = write_case(tmp_path, "Case = Tiny")
    memory_bytes = 4 * 1024
    # On several devices, gloo's threads may hold a bucket of gradients for longer.
    words = ("batch", f"{file}::Case", "--gpus", "1")
    limited = {**devices, "EMULATED_CUDA_MEMORY": str(memory_bytes)}
    found = run_gpuscale(tmp_path, *words, **limited).ended()
    told = re.findall(r"(\d+)  fits, peak (\S+) KiB", found.output)
    peaks = {int(n): float(kib) for n, kib in told}
    (largest,) = (int(n) for n in re.findall(r"with --batch (\d+)", found.output))
    of_a_sample = (peaks[12] - peaks[8]) / 4
    assert peaks[largest] <= memory_bytes / 1024 < peaks[largest] + of_a_sample


def test_a_rocm_torch_and_a_device_named_by_uuid_are_described(devices: Mapping[str, str]) -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": f"GPU-{UUIDS[1]}", "EMULATED_ROCM": "gfx90a"}
    families = ("RCCL", "HSA", "HIP", "ROCR", "MIOPEN", "MPICH", "CXI", "NCCL")
    chosen |= {f"{family}_X": "1" for family in families}
    answer = python("-c", DESCRIBED, **devices, **chosen)
    found = msgspec.json.decode(answer.stdout, type=Environment)
    assert (found.rocm_version, found.rccl_version) == ("6.4.43482", "2.28.3")
    assert (found.cuda_version, found.cudnn_version, found.nccl_version) == (None, None, None)
    assert [(gpu.uuid, gpu.smi_index) for gpu in found.gpus] == [(UUIDS[1], 1)]
    assert found.variables.keys() >= {f"{family}_X" for family in families}
    assert "ROCm 6.4.43482, RCCL 2.28.3" in software_text(found)
    assert "CUDA" not in software_text(found)
    header = header_lines(found, parse_options(GIVEN), None, HostLoad(cores=2))
    assert ", RCCL (device: rocm)" in next(header)


SCRIPT = """
import os
import torch
from gpuscale import report

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
model = torch.nn.Linear(64, 64).to(device)
with report(samples=256, synchronize=torch.cuda.synchronize) as step_done:
    for _ in range(100_000):
        model(torch.rand(256, 64, device=device)).sum().backward()
        step_done()
"""


def test_a_command_runs_on_its_devices(devices: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    # Long enough for the sampler, which looks ten times a second.
    own = ("--gpus", "1", "--runs", "1", "--run-seconds", "1", "--batch", "256")
    words = ("run", *own, "--", sys.executable, "train.py")
    made = run_gpuscale(tmp_path, *words, **devices).ended()
    (run,) = made.results.runs
    assert run.is_valid
    assert [summary.uuid for summary in run.gpu_summaries] == [UUIDS[0]]
    # The library of the tests has two processes of others on every device.
    assert [node.load and node.load.gpu_processes for node in run.nodes] == [2]


# The last, since its process of sessions takes the place of that of the others.
def test_two_devices_of_amd_are_trained_on_and_sampled(
    session: Run, tmp_path: Path, amd_library: tuple[Path, Layouts]
) -> None:
    root, layouts = amd_library
    # In another order than HIP's.
    fleet = [mi250x(0xC6, amdsmi_get_gpu_activity={"gfx_activity": 50}), mi250x(0xC1)]
    table = write_fleet(tmp_path / "fleet", layouts, fleet)
    there = {"EMULATED_ROCM": "gfx90a", "ROCM_PATH": str(root), "FAKE_AMDSMI": str(table)}
    options = ("--gpus", "2", "--run-seconds", "2", "--device", "rocm")
    made = session("Case = Tiny", *options, **there, LD_LIBRARY_PATH="").ended()
    found = [(gpu.smi, gpu.smi_index, gpu.pci_address) for gpu in made.results.environment.gpus]
    assert found == [("AMD SMI", 1, "0000:c1:00.0"), ("AMD SMI", 0, "0000:c6:00.0")]
    assert made.results.environment.driver_version == "6.12.12"
    (run,) = made.results.runs
    assert run.configuration.device == "rocm"
    used = [gpu.values["utilization_mean"] for gpu in run.gpu_summaries]
    assert used == pytest.approx([0.9, 0.5])
