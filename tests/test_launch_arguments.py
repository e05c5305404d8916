"""What the launchers across nodes ask of srun and mpirun, as text."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.errors import GpuscaleError, UsageError
from gpuscale.launch.mpirun import OpenMpi, job_hosts, variables_of_ranks
from gpuscale.launch.placement import Placement, is_same_host, leads_nowhere, place
from gpuscale.launch.slurm import Slurm
from gpuscale.run_directory import RunDirectory

NODES = ("n1", "n2", "n3", "n4")


@given(
    ranks=st.integers(1, 300),
    hosts=st.integers(1, 40),
    slots=st.integers(1, 16),
    first=st.integers(0, 100),
)
def test_a_run_gets_the_smallest_number_of_nodes_evenly_filled(
    ranks: int, hosts: int, slots: int, first: int
) -> None:
    names = [f"n{number}" for number in range(hosts)]
    placement = place(ranks, names, slots=slots, first=first)
    counts = [placement.ranks_on(position) for position in range(len(placement.hosts))]
    assert sum(counts) == ranks
    assert list(placement.hosts) == [name for name in names if name in placement.hosts]
    assert max(counts) == placement.ranks_per_host
    if ranks <= hosts * slots:
        assert max(counts) <= slots
        assert (len(placement.hosts) - 1) * slots < ranks
    else:
        assert len(placement.hosts) == hosts


def test_successive_runs_take_the_nodes_in_turn() -> None:
    singles = [place(1, NODES, slots=4, first=run).hosts for run in range(5)]
    assert singles == [("n1",), ("n2",), ("n3",), ("n4",), ("n1",)]
    assert place(8, NODES, slots=4, first=3).hosts == ("n1", "n4")


def test_srun_starts_a_task_for_each_rank_on_the_chosen_nodes() -> None:
    placement = Placement(hosts=("n1", "n2"), ranks=8, ranks_per_host=4, cores_per_rank=12)
    assert Slurm().arguments(["python", "task.py"], placement) == [
        "srun",
        "--nodes=2",
        "--nodelist=n1,n2",
        "--ntasks=8",
        "--ntasks-per-node=4",
        "--cpus-per-task=12",
        "--distribution=block",
        "--cpu-bind=none",
        "--overlap",
        "--mpi=none",
        "--export=ALL",
        "--input=none",
        "--kill-on-bad-exit=1",
        "python",
        "task.py",
    ]


def test_srun_is_told_where_ranks_share_cores() -> None:
    placement = Placement(hosts=("n1",), ranks=8, ranks_per_host=8, oversubscribed=True)
    assert "--overcommit" in Slurm().arguments(["x"], placement)


def test_what_the_job_asked_for_as_a_whole_does_not_reach_its_steps() -> None:
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_CPU_BIND_TYPE": "mask_cpu",
        "SRUN_CPUS_PER_TASK": "24",
        "HOME": "/home/someone",
    }
    assert Slurm().environment(job) == {"SLURM_JOB_ID": "7", "HOME": "/home/someone"}


def test_mpirun_lays_ranks_on_hosts_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.environ", {"PATH": "/bin", "NCCL_DEBUG": "INFO"})
    placement = Placement(hosts=("a", "b"), ranks=7, ranks_per_host=4)
    assert OpenMpi().arguments(["python", "task.py"], placement) == [
        *("mpirun", "-np", "7", "--host", "a:4,b:3", "--map-by", "slot", "--bind-to", "none"),
        *("-x", "NCCL_DEBUG", "-x", "PATH", "-x", "PYTHONPATH"),
        *("python", "task.py"),
    ]


def test_ranks_on_all_nodes_get_what_says_how_to_train_and_not_what_is_one_nodes_own() -> None:
    of_ranks = {
        *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "GPUSCALE_RENDEZVOUS_HOST"),
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_TLS", "FI_PROVIDER"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_MODULE_LOADING", "CUDA_DEVICE_ORDER"),
        *("TORCH_NCCL_BLOCKING_WAIT", "PYTORCH_CUDA_ALLOC_CONF"),
    }
    others = {"CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR", "PBS_NODEFILE", "OMPI_MCA_btl"}
    given_ = dict.fromkeys([*of_ranks, *others], "x")
    assert set(variables_of_ranks(given_)) == of_ranks


def test_a_variable_that_is_not_set_is_not_asked_of_open_mpi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    placement = Placement(hosts=("a",), ranks=1, ranks_per_host=1)
    arguments = OpenMpi().arguments(["x"], placement)
    exported = {name for word, name in itertools.pairwise(arguments) if word == "-x"}
    assert "VIRTUAL_ENV" not in exported
    # This one the launcher sets by itself.
    assert exported >= {"PATH", "NCCL_DEBUG", "PYTHONPATH"}


def test_settings_for_open_mpi_reach_it_and_traces_of_an_outer_one_do_not() -> None:
    given_ = {"OMPI_MCA_plm_rsh_agent": "ssh", "OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "3"}
    assert OpenMpi().environment(given_) == {"OMPI_MCA_plm_rsh_agent": "ssh"}


def test_hosts_of_a_job_come_from_its_scheduler(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    parallel = tmp_path / "hosts"
    parallel.write_text("a.site 4 gpu.q@a UNDEFINED\nb.site 4 gpu.q@b UNDEFINED\n")
    assert job_hosts({"LSB_MCPU_HOSTS": "a 4 b 4"}) == ("a", "b")
    assert job_hosts({"PBS_NODEFILE": str(nodes)}) == ("a", "b")
    assert job_hosts({"PE_HOSTFILE": str(parallel)}) == ("a.site", "b.site")
    assert job_hosts({}) == ()


STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NODELIST": "jwb[0001-0002]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
}


@pytest.fixture
def hostnames(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ("jwb0001", "jwb0002")
    monkeypatch.setattr("gpuscale.launch.slurm.hostnames", lambda _: listed)


def rank_variables(given: dict[str, str]) -> dict[str, str]:
    return Slurm().rank_variables(given, RunDirectory(path=Path("not read")))


@pytest.mark.usefixtures("hostnames")
def test_a_rank_finds_its_group_by_slurms_own_variables() -> None:
    found = rank_variables(STEP)
    assert found["MASTER_ADDR"] == "jwb0001"
    assert 12_000 <= int(found["MASTER_PORT"]) < 32_000
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("5", "1", "8")
    next_step = rank_variables({**STEP, "SLURM_STEP_ID": "4"})
    assert next_step["MASTER_PORT"] != found["MASTER_PORT"]


@pytest.mark.usefixtures("hostnames")
def test_a_site_names_the_network_of_the_first_host() -> None:
    found = rank_variables({**STEP, "GPUSCALE_RENDEZVOUS_HOST": "{host}i"})
    assert found["MASTER_ADDR"] == "jwb0001i"


@pytest.mark.usefixtures("hostnames")
def test_a_rank_outside_of_a_step_says_what_is_missing() -> None:
    with pytest.raises(GpuscaleError, match="SLURM_PROCID is not set"):
        rank_variables({k: v for k, v in STEP.items() if k != "SLURM_PROCID"})


def test_a_rank_finds_its_group_by_open_mpis_variables(tmp_path: Path) -> None:
    directory = RunDirectory(path=tmp_path)
    directory.hosts.write_text("a\nb")
    directory.port.write_text("20000")
    given_ = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "8",
    }
    assert OpenMpi().rank_variables(given_, directory) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "20000",
    }


def test_a_host_name_that_leads_to_loopback_is_of_no_use_to_others() -> None:
    assert leads_nowhere("me", lambda _: "127.0.1.1")
    assert not leads_nowhere("me", lambda _: "10.1.2.3")
    assert is_same_host("n1", "n1.cluster.site")
    assert not is_same_host("n1", "n10")


def test_without_a_job_the_launcher_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UsageError, match=r"this is no Slurm job .* salloc"):
        Slurm().hosts()
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UsageError, match="'mpirun' is not on PATH"):
        OpenMpi().hosts()
