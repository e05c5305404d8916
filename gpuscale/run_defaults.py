"""How a run is made where nobody asks for anything else, by the machine that it is made on."""

from collections.abc import Mapping

from gpuscale.records import Environment, Pacing
from gpuscale.records.configuration import Device

_MOST_DATA_WORKERS = 8
PACINGS: Mapping[Device, Pacing] = {
    "cuda": Pacing(warmup_steps=10, warmup_s=2.0, windows=20, window_s=0.5, run_seconds=20.0),
    "cpu": Pacing(warmup_steps=2, warmup_s=0.3, windows=10, window_s=0.15, run_seconds=2.0),
}
SIZES: Mapping[Device, str] = {"cuda": "full", "cpu": "smoke"}


def data_workers(environment: Environment) -> int:
    """Loader processes of each rank.

    The same for every number of GPUs, or T(1) would have more help than T(n).
    """
    if environment.device == "cpu":
        return 0
    cores_per_gpu = (environment.cpu_count or 1) // max(1, len(environment.gpus))
    return max(1, min(_MOST_DATA_WORKERS, cores_per_gpu - 1))


def devices_of_run(environment: Environment, *, run: int, gpus: int) -> tuple[int, ...]:
    """The CUDA devices of a run, from the first of each node on; none on CPU.

    Run r starts at device (r - 1) mod N, so that T(1) is not always that of GPU 0.
    """
    count = environment.gpus_per_node
    if environment.device == "cpu" or not count:
        return ()
    return tuple((run - 1 + position) % count for position in range(gpus))
