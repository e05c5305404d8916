"""From what each node of a job says of itself to the environment of the job."""

from collections.abc import Sequence

from msgspec.structs import replace

from gpuscale.encoding import from_json
from gpuscale.errors import DecodeError, GpuscaleError, MachineError, UsageError
from gpuscale.records import Environment, Node, NodeProbe
from gpuscale.run_directory import RunDirectory

_LOG_TAIL_LINES = 3


def job_environment(
    hosts: Sequence[str],
    directory: RunDirectory,
    device: str,
    *,
    exit_code: int,
    timed_out: bool,
) -> Environment:
    """The environment of a job on these hosts, as their descriptions in the directory say.

    Raises:
        MachineError: a node did not leave its description, or has no GPUs.
        UsageError: nodes of different kinds.
    """
    found: dict[str, Environment] = {}
    for host in hosts:
        try:
            text = directory.environment(host).read_text(encoding="utf-8")
            found[host] = from_json(Environment, text)
        except (OSError, DecodeError):
            continue
    missing = [host for host in hosts if host not in found]
    if missing:
        text = _silence(missing, hosts, directory, exit_code, timed_out=timed_out)
        named = timed_out or len(missing) < len(hosts)
        raise MachineError(text, hosts=missing if named else ())
    return joined(found, device)


def joined(found: dict[str, Environment], device: str) -> Environment:
    """The environments of a job's nodes as one: the first one's, with all nodes in it.

    Raises:
        MachineError: nodes without GPUs.
        UsageError: nodes whose GPUs or software are different.
    """
    first_host, first = next(iter(found.items()))
    without = [host for host, environment in found.items() if not environment.gpus]
    if without and (device == "cuda" or len(without) < len(found)):
        raise MachineError(
            f"torch sees no GPU on {', '.join(without)}; ask the scheduler for GPUs on every node, "
            "or measure CPU ranks with --device cpu",
            hosts=without,
        )
    for host, environment in found.items():
        for name in ("gpu_names", "torch_version", "cuda_version", "nccl_version"):
            one, other = getattr(first, name), getattr(environment, name)
            if one != other:
                raise UsageError(
                    f"{name.replace('_', ' ')} is {one} on {first_host} and {other} on {host}; "
                    "measure on nodes of one kind"
                )
    return replace(
        first,
        nodes=tuple(
            Node(
                host=environment.host or name,
                cpu_model=environment.cpu_model,
                cpu_count=environment.cpu_count,
                gpus=environment.gpus,
            )
            for name, environment in found.items()
        ),
    )


def probes_left(
    directory: RunDirectory, hosts: Sequence[str], *, timed_out: bool
) -> tuple[NodeProbe, ...]:
    """What the rank on each node saw of it and of its links.

    Raises:
        GpuscaleError: a node left no answer.
    """
    found = []
    missing = []
    for rank, host in enumerate(hosts):
        try:
            text = directory.outcome(rank).read_text(encoding="utf-8")
            found.append(from_json(NodeProbe, text))
        except (OSError, DecodeError):
            missing.append(host)
    if missing:
        why = "in time " if timed_out else ""
        said = " | ".join(
            directory.output(rank).read_text(encoding="utf-8", errors="replace").strip()[-300:]
            for rank in range(len(hosts))
            if directory.output(rank).exists()
        )
        raise GpuscaleError(
            f"{', '.join(missing)} did not answer {why}when nodes were to talk to each other; see "
            f"whether they reach one another, and leave out one that does not: {said}"
        )
    return tuple(found)


def _silence(
    missing: Sequence[str],
    hosts: Sequence[str],
    directory: RunDirectory,
    exit_code: int,
    *,
    timed_out: bool,
) -> str:
    """Why nodes left no description, and what to do."""
    nodes = ", ".join(missing)
    if timed_out:
        return f"{nodes} did not answer in time; see whether the scheduler still reaches them"
    said = directory.launcher_log.read_text(encoding="utf-8", errors="replace").strip()
    tail = " | ".join(said.splitlines()[-_LOG_TAIL_LINES:])
    if len(missing) < len(hosts):
        return (
            f"{nodes}: does not see {directory.path.parent}, or cannot run there what the other "
            "nodes run; put the results on a file system that all nodes share, with --results "
            f"(exit code {exit_code}: {tail})"
        )
    return f"no node could be looked at (exit code {exit_code}: {tail or 'no message'})"
