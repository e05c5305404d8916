"""The command lines and variables of srun and mpirun."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuscale.base.errors import GpuscaleError
from gpuscale.measure.launch.mpirun import OpenMpi
from gpuscale.measure.launch.placement import Placement, ProcessStarter, gloo_variables, place
from gpuscale.measure.launch.srun import Slurm
from gpuscale.measure.run_directory import RunDirectory

NODES = ("n1", "n2", "n3", "n4")
RENDEZVOUS = {"GPUSCALE_RENDEZVOUS_HOST": "{host}i"}


@given(
    ranks=st.integers(1, 300),
    hosts=st.integers(1, 40),
    slots=st.integers(1, 16),
    first=st.integers(0, 100),
)
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
        *("--mpi=none", "--export=ALL", "--input=none", "--kill-on-bad-exit=1"),
        *("python", "task.py"),
    ]
    # Where ranks share cores, and where a node goes on beside one that failed.
    placement = replace(placement, oversubscribed=True, independent=True)
    assert {"--overcommit", "--kill-on-bad-exit=0"} < set(Slurm().arguments(["x"], placement))


@pytest.mark.parametrize(
    ("starter", "kept", "left_out"),
    [
        # What the job asked for as a whole does not reach its steps.
        (
            Slurm(),
            {"SLURM_JOB_ID", "HOME"},
            {"SLURM_NTASKS", "SLURM_GPUS_PER_TASK", "SLURM_CPU_BIND_TYPE", "SRUN_CPUS_PER_TASK"},
        ),
        # Settings for Open MPI reach it, and traces of an outer one do not, nor the places at
        # which LSF gives cores: Open MPI would map ranks by them and take no other mapping.
        (
            OpenMpi(),
            {"OMPI_MCA_plm_rsh_agent", "LSB_MCPU_HOSTS"},
            {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "LSB_AFFINITY_HOSTFILE"},
        ),
    ],
)
def test_the_command_sees_the_users_variables_without_what_would_mislead_it(
    starter: ProcessStarter, kept: set[str], left_out: set[str]
) -> None:
    assert {name for name in kept | left_out if starter.reaches(name)} == kept


def test_mpirun_lays_ranks_on_hosts_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.environ", {"PATH": "/bin", "NCCL_DEBUG": "INFO"})
    placement = Placement(hosts=("a", "b"), ranks=7, ranks_per_host=4)
    assert OpenMpi().arguments(["python", "task.py"], placement) == [
        *("mpirun", "-np", "7", "--host", "a:4,b:3", "--map-by", "slot", "--bind-to", "none"),
        *("-x", "NCCL_DEBUG", "-x", "PATH", "-x", "PYTHONPATH"),
        *("python", "task.py"),
    ]


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


# Of one rank, as Slurm and Open MPI tell it its place.
STEP = {
    "SLURM_STEP_NODELIST": "jwb[0001-0002]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
}
WORLD = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
}


@pytest.mark.parametrize(("starter", "given_"), [(Slurm(), STEP), (OpenMpi(), WORLD)])
@pytest.mark.parametrize(("pattern", "address"), [({}, "jwb0001"), (RENDEZVOUS, "jwb0001i")])
def test_a_rank_finds_its_group_by_its_schedulers_own_variables(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    starter: ProcessStarter,
    given_: dict[str, str],
    pattern: dict[str, str],
    address: str,
) -> None:
    hosts = ("jwb0001", "jwb0002")
    monkeypatch.setattr("gpuscale.measure.launch.srun.hostnames", lambda _: hosts)
    directory = RunDirectory(path=tmp_path)
    directory.hosts.write_text("\n".join(hosts))
    directory.port.write_text("20000")
    assert starter.rank_variables({**given_, **pattern}, directory) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": address,
        "MASTER_PORT": "20000",
    }
    *others, missing = given_
    with pytest.raises(GpuscaleError, match=f"{missing} is not set"):
        starter.rank_variables({name: given_[name] for name in others}, directory)


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
