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
from site_folder import BY_MPIRUN, make_site, profile_of, record_of, write_cases
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
    (root / "mysite.toml").write_text(profile_of("pbs"))
    return root


SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "./mysite.toml", "--yes", "--wait")


def test_a_job_of_pbs_measures_each_launch_across_two_hosts(cluster: Cluster, site: Path) -> None:
    write_cases(site, BY_MPIRUN)
    answer = cluster.run(*SUBMIT, "--gpus", "4", folder=site)
    assert answer.returncode == 0, answer.stdout
    assert "on 4 CPU ranks, 2 nodes with 2 each, launcher mpirun" in answer.stdout
    assert "ended as F, Exit_status 0: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = record_of(night)
    assert (record["night"], record["nodes"]) == ("ok", "n1 n2")
    runs = {run.key.case: run for run in read_results(night / "results.jsonl").runs}
    assert [rank.host for rank in runs["case"].ranks] == ["n1", "n1", "n2", "n2"]
    assert all(run.is_valid for run in runs.values())
    assert runs.keys() == {"case", "on_each_node", "by_its_own_mpirun"}
    assert processes_in(site) == []
