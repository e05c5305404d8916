"""A sweep on a real Slurm, over nodes with several GPUs that are emulated on the CPU."""

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from measuring import write_case
from nvml.library import compile_driver
from slurm_cluster import slurm_cluster
from test_cuda_emulation import TESTS

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

GPUS = 4
PROFILE = f"""\
description = "Hosts on one machine"
scheduler = "slurm"

[node]
gpus = {GPUS}
cores = {GPUS}

[job]
time_limit = "00:10:00"

[measure]
run_seconds = 0.5
options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
"""
# It waits and does not compute, so other devices on the same cores are as fast as before.
ONE_SLOW_GPU = """
import socket
import time


class Case(Tiny):
    def loss(self, output, target):
        is_slow = (socket.gethostname(), output.device.index) == ("n2", 3)
        time.sleep(0.12 if is_slow else 0.03)
        return super().loss(output, target)
"""
NODES = [f"n{number}" for number in range(1, 5)]


def test_each_gpu_is_measured_by_itself_and_the_slow_one_is_named(tmp_path: Path) -> None:
    driver, site = tmp_path / "driver", tmp_path / "site"
    driver.mkdir()
    (site / "bench_cases").mkdir(parents=True)
    (site / "mysite.toml").write_text(PROFILE)
    write_case(site / "bench_cases", ONE_SLOW_GPU)
    emulated = {
        "PYTHONPATH": os.pathsep.join([str(TESTS / "cuda_emulation"), str(TESTS)]),
        "LD_LIBRARY_PATH": str(compile_driver(driver)),
        "EMULATED_CUDA_DEVICES": str(GPUS),
        "FAKE_NVML_FLEET": "0,1,2,3",
    }
    fleet = (sys.executable, "-m", "gpuscale", "fleet")
    nodes = dict.fromkeys(NODES, f"CPUs={GPUS}")
    with slurm_cluster(nodes, gpus=GPUS, down_after_s=120) as cluster:
        options = ("./mysite.toml", "--case", "tiny", "--jobs", "2", "--yes")
        answer = cluster.run(*fleet, "run", *options, folder=site, environment=emulated)
        shown = cluster.run(*fleet, "show", folder=site).stdout
        document = json.loads(cluster.run(*fleet, "show", "--format", "json", folder=site).stdout)
    assert "4 nodes of main, each with bench_cases/test_tiny.py on 1 and 4 GPUs" in answer.stdout
    assert answer.stdout.endswith(shown)
    measured = defaultdict(set)
    for path in site.glob(".gpuscale/fleet/*/n?-?.jsonl"):
        for run in read_results(path).runs:
            measured[path.name[:2]].add(tuple(d for rank in run.ranks for d in rank.devices))
    assert measured.keys() == {*NODES}
    assert all(each == {(0,), (1,), (2,), (3,), (0, 1, 2, 3)} for each in measured.values())
    worst = document["nodes"][0]
    assert (worst["node"], worst["row"]) == ("n2", {"gpus": 1, "device": 3}), answer.stdout
    # On a busy machine its hosts may differ too much to prove it.
    assert worst["state"] in ("sick", "unclear"), answer.stdout
    assert worst["jobs_slow"] == worst["jobs"] > 1, answer.stdout
    assert re.search(r"n2 .*   GPU 3: .*   in .* jobs", shown), shown
