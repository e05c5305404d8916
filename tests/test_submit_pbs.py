"""`gpuscale submit` to PBS, whose jobs start ranks on two hosts with a real Open MPI.

No package index has PBS. Three scripts stand in for its commands: they start the job on its first
host, as PBS does, and answer in the words of its `qstat -f`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from changing import replace
from hosts import Cluster, processes_in
from measuring import write_case
from site_folder import make_site, record_of
from test_launch_mpirun import open_mpi

from gpuscale.store import read_results

pytestmark = pytest.mark.scheduler

PROFILE = """\
description = "Two hosts on one machine"
scheduler = "pbs"

[node]
gpus = 2  # CPU ranks stand in for GPUs
cores = 2

[job]
gpu_option = ""
time_limit = "00:05:00"

[measure]
cases = ["bench_cases/test_tiny.py"]
runs = 1
device = "cpu"
size = "full"
run_seconds = 0.2
options = ["-p", "no:cacheprovider", "--oversubscribe"]

[judge]
baseline = "baselines/here.json"
cases = ["case/ddp"]
"""
COMMANDS = """
import sys
from gpuscale import CommandCase

class OnEachNode(CommandCase):
    command = (
        f"{sys.executable} -m torch.distributed.run --nnodes {{nodes}} --nproc-per-node "
        "{gpus_per_node} --rdzv-backend c10d --rdzv-endpoint {master_addr}:{master_port} steps.py"
    )
    batch = 8

@pytest.mark.gpuscale(case=OnEachNode)
def test_on_each_node(scaling):
    scaling()

class ByItsOwnMpirun(CommandCase):
    command = (
        "mpirun --allow-run-as-root --hostfile {hostfile} --map-by node --bind-to none "
        f"-np {{gpus}} {sys.executable} steps.py"
    )
    batch = 8
    launch = "once"

@pytest.mark.gpuscale(case=ByItsOwnMpirun)
def test_by_its_own_mpirun(scaling):
    scaling()
"""
STEPS = """
import time
from gpuscale import report

with report() as step_done:
    while True:
        time.sleep(0.01)
        step_done()
"""
QSUB = """\
#!/bin/sh
for script; do :; done
log=$(sed -n 's/^#PBS -N //p' "$script").o1
export PBS_JOBID=1.login PBS_O_WORKDIR="$PWD"
rm -f {folder}/status
setsid sh -c '
    echo $$ > {folder}/pid
    {folder}/remote-shell n1 "$(export -p); cd $PBS_O_WORKDIR; /bin/bash $0" > $1 2>&1
    echo $? > {folder}/status
' "$script" "$log" < /dev/null > /dev/null 2>&1 &
echo 1.login
"""
QSTAT = """\
#!/bin/sh
echo "Job Id: 1.login"
test -f {folder}/status || exec echo "    job_state = R"
echo "    job_state = F"
echo "    Exit_status = $(cat {folder}/status)"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_mpi(tmp_path_factory.mktemp("pbs")) as cluster:
        for name, script in (("qsub", QSUB), ("qstat", QSTAT)):
            command = cluster.directory / "bin" / name
            command.parent.mkdir(exist_ok=True)
            command.write_text(script.format(folder=cluster.directory))
            command.chmod(0o755)
        path = f"{cluster.directory / 'bin'}:{cluster.environment['PATH']}"
        yield replace(cluster, environment={**cluster.environment, "PATH": path})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    published = [(4, 2, 1e-6)]  # slower than anything
    root = make_site(tmp_path, baseline="here", case="case", published=published)
    (root / "mysite.toml").write_text(PROFILE)
    return root


SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "./mysite.toml", "--yes", "--wait")


def test_a_job_of_pbs_measures_each_launch_across_two_hosts(cluster: Cluster, site: Path) -> None:
    case = write_case(site / "bench_cases", "class Case(Tiny):\n    pass\n")
    with case.open("a") as file:
        file.write(COMMANDS)
    (site / "steps.py").write_text(STEPS)
    answer = cluster.run(*SUBMIT, "--gpus", "4", folder=site)
    assert answer.returncode == 0, answer.stdout
    assert "on 4 GPUs, 2 nodes with 2 each, launcher mpirun" in answer.stdout
    assert "ended as F, Exit_status 0: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = record_of(night)
    assert (record["night"], record["nodes"]) == ("ok", "n1 n2")
    runs = {run.key.case: run for run in read_results(night / "results.jsonl").runs}
    assert [rank.host for rank in runs["case"].ranks] == ["n1", "n1", "n2", "n2"]
    assert all(run.is_valid for run in runs.values())
    assert runs.keys() == {"case", "on_each_node", "by_its_own_mpirun"}
    assert processes_in(site) == []
