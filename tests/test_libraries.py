"""The libraries that ranks have loaded, and the version of NCCL; the tests' own are made of C."""

import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import python
from hosts import processes_in, skip_unless_required
from measuring import run_gpuscale, run_pytest, write_case
from test_run_command import QUICK, RANKS_OF_TORCH, script

from gpuscale.base.text import joined
from gpuscale.measure.evidence.software import libraries_among
from gpuscale.records import NodeEvidence
from gpuscale.records.evidence import Library
from gpuscale.store.results import read_results

ON_TWO = ("--gpus", "2", "--runs", "1", "--results", "r.jsonl", "--oversubscribe", *QUICK)
# A model in DDP would have each rank import as much again.
TOGETHER = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for number in range(10**6):
    dist.all_reduce(torch.rand(4, 8))
    # Every rank, each into a pipe of its own.
    steps([number], samples=4 * dist.get_world_size(), loss=1.0)
"""
SOURCES = {
    "libnccl-x.so.2": "int ncclGetVersion(int *v) { *v = 22803; return 0; }",
    "librccl.so.1": "int ncclGetVersion(int *v) { *v = 2804; return 0; }",
    # A build that lacks its function, and one whose function fails.
    "librccl.so.1.1": "int unused;",
    "librccl.so.1.2": "int ncclGetVersion(int *v) { return 1; }",
    # Known by its name alone.
    "libfabric.so.1": "int unused;",
}
NAMES = {
    "libnccl.so.2": "NCCL",
    "libnccl-net-ofi.so": "NCCL network plugin",
    "libcudart-0a1b2c3d.so.13": "CUDA runtime",
    "libamdhip64.so.7": "HIP runtime",
    "libcublas.so.12": "cuBLAS",
    "libcudnn.so.9": "cuDNN",
    "libmpi.so.40": "MPI",
    "libmpi_cray.so.12": "MPI",
    "libfabric.so.1": "libfabric",
    "libibverbs.so.1.14.50.0": "libibverbs",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        skip_unless_required("needs gcc")
    folder = tmp_path_factory.mktemp("libraries")
    for name, source in SOURCES.items():
        command = ["gcc", "-shared", "-fPIC", "-o", str(folder / name), "-x", "c", "-"]
        subprocess.run(command, input=source.encode(), check=True)
    return folder


def preloaded(folder: Path) -> Path:
    """Copy the library that stands in for NCCL to a name that no torch loads; return its path."""
    place = folder / "libnccl.so.2.28.3"
    shutil.copy(folder / "libnccl-x.so.2", place)
    return place


def of_name(node: NodeEvidence, name: str, folder: Path) -> Library:
    named = (library for library in node.libraries if library.name == name)
    (found,) = (library for library in named if library.path.startswith(str(folder)))
    return found


ASK = """
import ctypes, sys
from gpuscale.measure.evidence.software import own_software
for name in sys.argv[1:]:
    ctypes.CDLL(name)
for library in own_software().libraries:
    print(library.name, library.path, library.version, sep="\\t")
"""


def asked(*files: Path) -> list[list[str]]:
    answer = python("-c", ASK, *files)
    return [line.split("\t") for line in answer.stdout.splitlines()]


def test_libraries_are_known_by_the_names_of_their_files() -> None:
    others = ("libcublasLt.so.12", "libcudnn_graph.so.9", "libnccl-x.so.2")
    found = libraries_among([f"/opt/{name}" for name in (*NAMES, *others)])
    assert {library.label: library.name for library in found} == NAMES


def test_nccl_and_rccl_are_asked_for_their_versions(built: Path) -> None:
    found = asked(*(built / name for name in SOURCES))
    assert {Path(path).name: version for _, path, version in found} == {
        "librccl.so.1": "2.8.4",
        **dict.fromkeys(("librccl.so.1.1", "librccl.so.1.2", "libfabric.so.1"), "None"),
    }


def test_a_file_that_was_replaced_since_it_was_loaded_is_still_asked(built: Path) -> None:
    code = ASK.replace("for library", "import os; os.remove(sys.argv[1])\nfor library", 1)
    path = preloaded(built)
    answer = python("-c", code, path)
    assert answer.stdout.split("\t") == ["NCCL", str(path), "2.28.3\n"], answer.stderr


def test_the_nccl_that_ranks_have_loaded_is_recorded_once_a_node(
    built: Path, tmp_path: Path
) -> None:
    write_case(tmp_path, f"import ctypes\nctypes.CDLL('{preloaded(built)}')", "Case = Tiny")
    session = run_pytest(tmp_path, *ON_TWO)
    (run,) = read_results(tmp_path / "r.jsonl").runs
    assert run.is_valid, session
    (node,) = run.nodes
    assert of_name(node, "NCCL", built).version == "2.28.3"
    assert len(set(node.libraries)) == len(node.libraries)


def test_torchruns_ranks_are_measured_with_nccl_they_preload(built: Path, tmp_path: Path) -> None:
    starter = (*RANKS_OF_TORCH, "--master-port", "{master_port}", "--nproc-per-node", "{gpus}")
    # Only the command's: gpuscale's own processes have it not.
    command = ("env", f"LD_PRELOAD={preloaded(built)}", *starter, script(tmp_path, TOGETHER))
    done = run_gpuscale(tmp_path, "run", *ON_TWO, "--", *command).ended()
    results = read_results(tmp_path / "r.jsonl")
    (run,) = results.runs
    assert (run.label, run.batch_per_gpu) == ("train/command on 2 CPU ranks", 4)
    assert run.configuration.command == joined(command)
    assert run.configuration.precision is None
    assert "::test_command[command-2gpus-run1] PASSED" in done.output
    assert "model together: train/command" in " ".join(done.output.split())
    assert not processes_in(tmp_path)
    assert not (tmp_path / ".benchmarks").exists()
    (node,) = run.nodes
    loaded = of_name(node, "NCCL", built)
    assert (loaded.version, loaded.label) == (None, "libnccl.so.2.28.3")
    # The interpreter that gpuscale runs in too, whose torch has its own name for its version.
    import torch

    assert results.environment.torch_version == torch.__version__
    assert results.environment.packages
