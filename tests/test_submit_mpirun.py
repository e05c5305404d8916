"""`gpuscale submit --wait` to PBS and Grid Engine, in whose jobs a real Open MPI starts the ranks.

Grid Engine is real. No package index has PBS: three scripts stand in for its commands, which start
the job on its first host, as PBS does, and answer in the words of its `qstat -f`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import site_folder
from changing import replace
from ci_checkout import write_program
from hosts import Cluster, processes_in
from sge_cluster import PARALLEL_ENVIRONMENT, sge_cluster
from site_folder import BY_ITS_OWN_MPIRUN, ON_EACH_NODE, SUBMIT, make_site, write_cases
from test_launch_mpirun import open_mpi

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

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
SLOTS = f"-pe {PARALLEL_ENVIRONMENT} {{gpus}}"
PROFILES = {
    "pbs": site_folder.profile_of("pbs"),
    # A parallel environment asks for nodes in each site's own way, so it is an option here.
    "sge": site_folder.profile_of(
        "sge", node="gpus = 4", gpu_option=SLOTS, options=', "--launcher", "mpirun"'
    ),
}
ENDINGS = {"pbs": "F, Exit_status 0", "sge": "done"}


@contextmanager
def pbs_cluster(folder: Path) -> Iterator[Cluster]:
    with open_mpi(folder) as cluster:
        for name, script in (("qsub", QSUB), ("qstat", QSTAT)):
            command = cluster.directory / "bin" / name
            write_program(command, script.format(folder=cluster.directory))
        path = f"{cluster.directory / 'bin'}:{cluster.environment['PATH']}"
        yield replace(cluster, environment={**cluster.environment, "PATH": path})


@pytest.fixture(scope="module", params=PROFILES)
def scheduler(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def cluster(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("site")
    with pbs_cluster(folder) if scheduler == "pbs" else sge_cluster(["n1", "n2"]) as cluster:
        yield cluster


def test_a_job_measures_across_its_hosts(scheduler: str, cluster: Cluster, tmp_path: Path) -> None:
    site = make_site(tmp_path, [(4, 2, 1e-6)])
    (site / "mysite.toml").write_text(PROFILES[scheduler])
    write_cases(site, ON_EACH_NODE, BY_ITS_OWN_MPIRUN)
    answer = cluster.run(*SUBMIT, "--gpus", "4", folder=site)
    logs = "\n".join(path.read_text() for path in site.glob("*.log"))
    assert answer.returncode == 0, answer.stdout + logs
    if scheduler == "pbs":
        assert "on 4 CPU ranks, 2 nodes with 2 each, launcher mpirun" in answer.stdout
    assert f"ended as {ENDINGS[scheduler]}: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = site_folder.record_of(night)
    assert (record["night"], {*record["nodes"].split()}) == ("ok", {"n1", "n2"})
    runs = {run.key.case: run for run in read_results(night / "results.jsonl").runs}
    hosts = [rank.host for rank in runs["case"].ranks]
    # Grid Engine may give the hosts in another order.
    first, last = ("n1", "n2") if scheduler == "pbs" else (hosts[0], hosts[-1])
    assert hosts == [first, first, last, last]
    assert {first, last} == {"n1", "n2"}
    assert all(run.is_valid for run in runs.values())
    assert runs.keys() == {"case", "on_each_node", "by_its_own_mpirun"}
    assert processes_in(site) == []
