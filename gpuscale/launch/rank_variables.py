"""From a scheduler's environment variables to those by which torch.distributed finds its group."""

from collections.abc import Callable, Mapping, Sequence

from gpuscale.errors import GpuscaleError

RENDEZVOUS_PORTS = range(12_000, 32_000)
"""Where the first rank may wait for the others: below what systems hand out by themselves."""
_OF_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
_OF_OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
}
HOST_PATTERN = "GPUSCALE_RENDEZVOUS_HOST"
"""How the ranks reach the first host, with `{host}` for its name: `{host}i` on JUWELS Booster,
whose nodes have a second name for InfiniBand."""


def slurm_variables(
    given: Mapping[str, str], hostnames: Callable[[str], Sequence[str]]
) -> dict[str, str]:
    """The variables of a rank that `srun` started, from Slurm's own.

    Args:
        given: The environment of the task.
        hostnames: What a node list of Slurm stands for (launch.slurm.hostnames).
    """
    hosts = hostnames(_required(given, "SLURM_STEP_NODELIST"))
    # A step has its own number, so the port of the run before can linger without harm.
    port = rendezvous_port(_required(given, "SLURM_JOB_ID"), _required(given, "SLURM_STEP_ID"))
    return _variables(given, _OF_SLURM, hosts, port)


def open_mpi_variables(given: Mapping[str, str], hosts: Sequence[str], port: int) -> dict[str, str]:
    """The variables of a rank that Open MPI's `mpirun` started."""
    return _variables(given, _OF_OPEN_MPI, hosts, port)


def rendezvous_port(job: str, step: str) -> int:
    """A port for the ranks of a step."""
    return RENDEZVOUS_PORTS[(int(job) * 61 + int(step)) % len(RENDEZVOUS_PORTS)]


def _variables(
    given: Mapping[str, str], names: Mapping[str, str], hosts: Sequence[str], port: int
) -> dict[str, str]:
    host = given.get(HOST_PATTERN, "{host}").replace("{host}", hosts[0])
    found = {name: _required(given, source) for name, source in names.items()}
    return {**found, "MASTER_ADDR": host, "MASTER_PORT": str(port)}


def _required(given: Mapping[str, str], name: str) -> str:
    try:
        return given[name]
    except KeyError:
        raise GpuscaleError(f"{name} is not set: this rank was started by something else") from None
