"""The CPUs of ranks under a real Slurm that binds tasks, by the values of --cpu-bind."""

import sys
from pathlib import Path

import pytest
from measuring import pytest_command, write_case
from slurm_cluster import slurm_cluster

from gpuscale.store import read_results

pytestmark = pytest.mark.scheduler

STEPS = """
import os, subprocess
from gpuscale.measure.schedulers.placement import Placement
from gpuscale.measure.schedulers.slurm import Slurm

for ranks in (1, 2):
    for is_bound in (False, True):
        hosts = dict(hosts=("n1",), ranks=ranks, ranks_per_host=ranks)
        placement = Placement(**hosts, cores_per_rank=1, is_bound_by_site=is_bound)
        program = ["grep", "-h", "Cpus_allowed_list", "/proc/self/status"]
        environment = {name: os.environ[name] for name in os.environ if Slurm().reaches(name)}
        command = Slurm().arguments(program, placement)
        seen = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
        print(ranks, is_bound, *sorted(seen.split()[1::2]))
"""


def test_ranks_are_bound_as_the_site_binds_tasks_or_by_a_map(tmp_path: Path) -> None:
    case = write_case(tmp_path, "Case = Tiny")
    program = tmp_path / "steps.py"
    program.write_text(STEPS)
    allocate = ("salloc", "--quiet", "--nodes=1", "--exclusive")
    options = ("--gpus", "2", "--runs", "1", "--launcher", "slurm", "--device", "cpu")
    found = {}
    with slurm_cluster({"n1": "CPUs=2"}, task_plugin="task/affinity") as cluster:
        steps = cluster.run(*allocate, sys.executable, str(program), folder=tmp_path).stdout
        for binding in ("site", "map_cpu:1,0"):
            file = tmp_path / f"{binding[:4]}.jsonl"
            own = ("--cpu-bind", binding, "--results", str(file))
            session = cluster.run(
                *allocate, *pytest_command(str(case), *options, *own), folder=tmp_path
            )
            assert session.returncode == 0, session.stdout
            found[binding] = [run.nodes[0].cpus for run in read_results(file).runs]
    assert steps.splitlines() == ["1 False 0", "1 True 0", "2 False 0-1 0-1", "2 True 0 1"]
    assert found == {
        "site": [("0", "1")],
        "map_cpu:1,0": [("1", "0")],
    }
