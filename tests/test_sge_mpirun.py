"""`gpuscale submit --wait` to a real Grid Engine, in whose job a real Open MPI starts the ranks."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Cluster, processes_in
from sge_cluster import PARALLEL_ENVIRONMENT, sge_cluster
from site_folder import BY_MPIRUN, make_site, profile_of, record_of, write_cases

from gpuscale.store.results import read_results

pytestmark = pytest.mark.scheduler

SUBMIT = (sys.executable, "-m", "gpuscale", "submit", "./mysite.toml", "--yes", "--wait")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with sge_cluster(["n1", "n2"]) as cluster:
        yield cluster


def test_a_job_measures_each_launch_across_its_hosts(cluster: Cluster, tmp_path: Path) -> None:
    site = make_site(tmp_path, baseline="here", case="case", published=[(4, 2, 1e-6)])
    # A parallel environment asks for nodes in each site's own way, so it is an option here.
    asked = f"-pe {PARALLEL_ENVIRONMENT} {{gpus}}"
    profile = profile_of(
        "sge", node="gpus = 4", gpu_option=asked, options=', "--launcher", "mpirun"'
    )
    (site / "mysite.toml").write_text(profile)
    write_cases(site, BY_MPIRUN)
    answer = cluster.run(*SUBMIT, "--gpus", "4", folder=site)
    logs = "\n".join(path.read_text() for path in site.glob("*.log"))
    assert answer.returncode == 0, answer.stdout + logs
    assert "ended as done: ok" in answer.stdout
    (night,) = (site / ".gpuscale/nightly/mysite").glob("*_*")
    record = record_of(night)
    assert (record["night"], {*record["nodes"].split()}) == ("ok", {"n1", "n2"})
    runs = {run.key.case: run for run in read_results(night / "results.jsonl").runs}
    hosts = [rank.host for rank in runs["case"].ranks]
    assert hosts[:2] == [hosts[0]] * 2
    assert sorted(hosts) == ["n1", "n1", "n2", "n2"]
    assert all(run.is_valid for run in runs.values())
    assert runs.keys() == {"case", "on_each_node", "by_its_own_mpirun"}
    assert processes_in(site) == []


def test_a_job_has_not_ended_when_its_tasks_on_other_nodes_have(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(
        "for host in $(cut -d' ' -f1 $PE_HOSTFILE); do qrsh -inherit $host true; done\n"
        f"touch {tmp_path}/tasks_ended; sleep 4; exit 3\n"
    )
    options = ("-terse", "-cwd", "-S", "/bin/bash", "-pe", PARALLEL_ENVIRONMENT, "4")
    number = cluster.run("qsub", *options, str(job), folder=tmp_path).stdout.strip()
    question = (
        "from pathlib import Path; from gpuscale.cli.submit import _followed; "
        "from gpuscale.measure.schedulers import SCHEDULERS; "
        f"print(_followed(SCHEDULERS['sge'], '{number}', Path('none')).exit_code)"
    )
    cluster.wait_until_ready((tmp_path / "tasks_ended").exists)
    assert cluster.run(sys.executable, "-c", question).stdout.splitlines()[-1] == "3"
