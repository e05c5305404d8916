"""The command lines and variables of srun and mpirun."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuscale.measure.launch.mpirun import OpenMpi
from gpuscale.measure.schedulers.placement import (
    Placement,
    ProcessStarter,
    gloo_variables,
    place,
    rank_variables,
)
from gpuscale.measure.schedulers.slurm import Slurm


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 16), st.integers(0, 100))
def test_a_run_fills_the_fewest_nodes(ranks: int, hosts: int, slots: int, first: int) -> None:
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


def test_srun_starts_a_task_for_each_rank_on_the_chosen_nodes() -> None:
    placement = Placement(hosts=("n1", "n2"), ranks=8, ranks_per_host=4, cores_per_rank=12)
    assert Slurm().arguments(["python", "task.py"], placement) == [
        *("srun", "--nodes=2", "--nodelist=n1,n2", "--ntasks=8", "--ntasks-per-node=4"),
        *("--cpus-per-task=12", "--distribution=block", "--cpu-bind=none", "--overlap"),
        *("--mpi=none", "--export=ALL", "--kill-on-bad-exit=0", "--wait=10"),
        *("python", "task.py"),
    ]
    assert "--overcommit" in Slurm().arguments(["x"], replace(placement, oversubscribed=True))
    by_site = Slurm().arguments(["x"], replace(placement, is_bound_by_site=True))
    assert not [word for word in by_site if "bind" in word]


OF_THE_JOB = {"SLURM_NTASKS", "SLURM_GPUS_PER_TASK", "SLURM_CPU_BIND_TYPE", "SRUN_CPUS_PER_TASK"}
OF_OUTER_RANKS = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "LSB_AFFINITY_HOSTFILE"}


def test_the_command_sees_the_users_variables_without_what_would_mislead_it() -> None:
    starters: tuple[tuple[ProcessStarter, set[str], set[str]], ...] = (
        # What the job asked for as a whole does not reach its steps.
        (Slurm(), {"SLURM_JOB_ID", "HOME"}, OF_THE_JOB),
        # Settings for Open MPI reach it, and traces of an outer one do not, nor the places at
        # which LSF gives cores: Open MPI would map ranks by them and take no other mapping.
        (OpenMpi(), {"OMPI_MCA_plm_rsh_agent", "LSB_MCPU_HOSTS"}, OF_OUTER_RANKS),
    )
    for starter, kept, left_out in starters:
        assert {name for name in kept | left_out if starter.reaches(name)} == kept


def test_mpirun_lays_ranks_on_hosts_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.environ", {"PATH": "/bin", "NCCL_DEBUG": "INFO"})
    placement = Placement(hosts=("a", "b"), ranks=7, ranks_per_host=4)
    assert OpenMpi().arguments(["python", "task.py"], placement) == [
        *("env", "SLURM_OVERLAP=1", "mpirun", "-np", "7", "--host", "a:4,b:3"),
        *("--map-by", "slot", "--bind-to", "none"),
        *("-x", "NCCL_DEBUG", "-x", "PATH", "-x", "PYTHONPATH"),
        *("python", "task.py"),
    ]
    assert "--bind-to" not in OpenMpi().arguments(["x"], replace(placement, is_bound_by_site=True))


def test_ranks_on_all_nodes_get_their_training_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    # PYTHONPATH the launcher sets by itself; no variable that is not set is asked for.
    of_ranks = {
        *("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "GPUSCALE_RENDEZVOUS_HOST"),
        *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_TLS", "FI_PROVIDER"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_MODULE_LOADING", "CUDA_DEVICE_ORDER"),
        *("TORCH_NCCL_BLOCKING_WAIT", "PYTORCH_CUDA_ALLOC_CONF"),
    }
    others = {"CUDA_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR", "PBS_NODEFILE", "OMPI_MCA_btl"}
    monkeypatch.setattr("os.environ", dict.fromkeys([*of_ranks, *others], "x"))
    placement = Placement(hosts=("a",), ranks=1, ranks_per_host=1)
    arguments = OpenMpi().arguments(["x"], placement)
    exported = {name for word, name in itertools.pairwise(arguments) if word == "-x"}
    assert exported == of_ranks | {"PYTHONPATH"}


@pytest.mark.parametrize(("pattern", "address"), [(None, "jwb0001"), ("{host}i", "jwb0001i")])
def test_ranks_find_their_group_at_the_host_of_the_first(
    monkeypatch: pytest.MonkeyPatch, pattern: str | None, address: str
) -> None:
    if pattern is not None:
        monkeypatch.setenv("GPUSCALE_RENDEZVOUS_HOST", pattern)
    found = rank_variables(8, "jwb0001")
    assert 12_000 <= int(found.pop("MASTER_PORT")) < 32_000
    assert found == {"WORLD_SIZE": "8", "MASTER_ADDR": address}


def test_gloo_gets_an_interface_beside_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ("me.site", "127.0.0.1")
    monkeypatch.setattr("socket.gethostname", lambda: "me")
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")
    assert gloo_variables({}, hosts) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert gloo_variables({"GLOO_SOCKET_IFNAME": "ib0"}, hosts) == {}
    assert gloo_variables({}, hosts[:1]) == {}
    assert gloo_variables({}, ("me", "me.site")) == {}
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.1.2.3")
    assert gloo_variables({}, hosts) == {}
