"""Whether runs of now may join those of a results file, and which of them it has already."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpuscale.errors import UsageError
from gpuscale.host import VARIABLES_OF_THE_JOB
from gpuscale.records import Environment, Results, Run, RunRequest
from gpuscale.records.configuration import differences
from gpuscale.scaling import PointKey
from gpuscale.version import __version__

_FIELDS = (
    "device",
    "cpu_model",
    "cpu_count",
    "python_version",
    "torch_version",
    "torchvision_version",
    "cuda_version",
    "cudnn_version",
    "nccl_version",
    "cases_revision",
    "launcher",
)
# Hosts, GPU UUIDs, kernels and job numbers are left out: a job that was killed goes on in
# another job, and on another node of the same kind. Variables of the job are left out for that too.
_LOADED_DRIVER = Path("/sys/module/nvidia/version")
_REMEDY = (
    "measure into a new file, without --resume; gpuscale compare and baseline record take several"
)


def refuse_other_environment(
    path: Path, recorded: Results, environment: Environment, injections: tuple[str, ...]
) -> None:
    """Checks that runs measured now mean the same as those in the file.

    Raises:
        UsageError: naming every difference.
    """
    found = list(_differences(recorded, environment, injections))
    if found:
        raise UsageError(
            f"--resume: {path} was measured in another environment ({'; '.join(found)}); {_REMEDY}"
        )


def refuse_other_configurations(
    path: Path, runs: Sequence[Run], requests: Iterable[RunRequest]
) -> None:
    """Checks that what is asked for is trained as the same case and strategy in the file was.

    Raises:
        UsageError: naming the first difference.
    """
    for request in requests:
        for run in runs:
            if run.configuration.label == request.configuration.label:
                found = _other_training(run, request)
                if found:
                    raise UsageError(
                        f"--resume: {path} has {run.key.label} measured in another way "
                        f"({'; '.join(found)}); give the options of that time, or {_REMEDY}"
                    )


def is_recorded(request: RunRequest, runs: Iterable[Run]) -> bool:
    """Whether a valid run of that number is among the runs; a failed one is made again."""
    return any(
        run.is_valid and run.index == request.index and PointKey.of(run) == point_key(request)
        for run in runs
    )


def point_key(request: RunRequest) -> PointKey:
    """The point that the request's run will belong to."""
    return PointKey(
        request.configuration, request.gpus, request.batch_per_gpu, request.sample_shape
    )


def _differences(
    recorded: Results, environment: Environment, injections: tuple[str, ...]
) -> Iterator[str]:
    then = recorded.environment
    yield from _difference("gpuscale", recorded.gpuscale_version, __version__)
    yield from _difference("injections", _list(recorded.injections), _list(injections))
    yield from _difference("GPUs", _gpus(then), _gpus(environment))
    yield from _difference("nodes", then.node_count, environment.node_count)
    yield from _difference("GPUs per node", then.gpus_per_node, environment.gpus_per_node)
    for name in _FIELDS:
        yield from _difference(name, getattr(then, name), getattr(environment, name))
    driver = environment.driver_version or _loaded_driver()
    if then.driver_version is not None and driver is not None:
        yield from _difference("driver_version", then.driver_version, driver)
    names = {*then.variables, *environment.variables} - VARIABLES_OF_THE_JOB
    for name in sorted(names):
        before, now = then.variables.get(name), environment.variables.get(name)
        yield from _difference(name, before or "not set", now or "not set")


def _difference(name: str, before: object, now: object) -> Iterator[str]:
    if before != now:
        yield f"{name}: {before} → {now}"


def _list(texts: tuple[str, ...]) -> str:
    return ", ".join(texts) or "none"


def _gpus(environment: Environment) -> str:
    return ", ".join(gpu.name for gpu in environment.gpus) or "none"


def _loaded_driver() -> str | None:
    # NVML tells it only once a run is being sampled, which is too late to refuse.
    try:
        return _LOADED_DRIVER.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _other_training(run: Run, request: RunRequest) -> tuple[str, ...]:
    found = differences(run.configuration, request.configuration)
    if run.gpus != request.gpus:
        return found
    then = (run.batch_per_gpu, run.sample_shape)
    now = (request.batch_per_gpu, request.sample_shape)
    return (
        *found,
        *_difference("batch_per_gpu", then[0], now[0]),
        *_difference("sample_shape", then[1], now[1]),
    )
