"""What is tried on this machine: the case, the requests for its runs, the faults, their order."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from gpuscale.cases import TrainingCase
from gpuscale.errors import UsageError
from gpuscale.records import CauseKind, Configuration, Environment, Fault, RunRequest
from gpuscale.records.selftest import Injection
from gpuscale.run_defaults import TIMING_PLANS, default_request
from gpuscale.strategies import ranks_of

RUNS_PER_BLOCK = 3
"""A block stands for one night: so many runs on each number of GPUs, in turn."""
BASELINE_BLOCKS = 2
"""A block is held against so many clean blocks before it."""
OVERHEAD_PAIRS = 40
"""Windows as measured and by a bare loop, of each run of the overhead."""

_DEFAULT_CASES: Mapping[str, str] = {
    "cuda": "bench_cases/test_resnet50.py::Resnet50",
    "cpu": "bench_cases/test_mnist_cnn.py::MnistCnn",
}
_FAULT_SIZES = (0.2, 0.4)


def expected_s(device: str, *, blocks: int, overhead_runs: int, gpus: int) -> float:
    """About how long trials take on so many numbers of GPUs, where steps are short."""
    timing = TIMING_PLANS[device]
    run_s = 1.5 + timing.warmup_s + min(timing.run_seconds, timing.most_windows_s)
    overhead_run_s = 3.0 + timing.warmup_s + 2 * OVERHEAD_PAIRS * timing.window_s
    return gpus * (blocks * RUNS_PER_BLOCK * run_s + overhead_runs * overhead_run_s)


def load_case_class(text: str | None, device: str) -> type[TrainingCase]:
    """The case that `FILE::Class` names, or the default one of the device."""
    file, _, name = (text or _DEFAULT_CASES[device]).partition("::")
    path = Path(file).absolute()
    if text is None and not path.is_file():
        raise UsageError(
            f"there is no {file} here; go to the folder that has bench_cases, or name a case "
            "of your own with --case FILE::Class"
        )
    if not path.is_file():
        raise UsageError(f"--case: there is no file {file}; give FILE::Class")
    if path.suffix != ".py":
        raise UsageError(f"--case: {file} is not a Python file; give FILE::Class")
    # As pytest does it, so that a case finds what lies beside it.
    sys.path.insert(0, str(path.parent))
    sys.modules.pop(path.stem, None)
    try:
        module = import_module(path.stem)
    except Exception as error:
        # Any line of the user's file may raise anything; it is the file that is to be mended.
        raise UsageError(
            f"--case: {file} cannot be imported ({type(error).__name__}: {error}); "
            "run it with python to see where"
        ) from None
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, TrainingCase)
        and value.__module__ == path.stem
    }
    if name not in known:
        found = ", ".join(f"{file}::{key}" for key in known) or "none"
        raise UsageError(f"--case: name a case in {file} as FILE::Class; there is {found}")
    return known[name]


def numbers_of_gpus(asked: Collection[int] | None, environment: Environment) -> tuple[int, ...]:
    """The numbers of GPUs (on CPU: of ranks) to try; 1 and 2 where the machine has two."""
    on_cpu = environment.device == "cpu"
    here = (environment.cpu_count or 1) if on_cpu else len(environment.gpus)
    if asked is None:
        return tuple(gpus for gpus in (1, 2) if gpus <= here)
    if max(asked) > here:
        unit = "CPU core" if on_cpu else "GPU"
        raise UsageError(
            f"--gpus: {max(asked)} is more than there are here ({here} "
            f"{unit}{'' if here == 1 else 's'}); leave it out"
        )
    return tuple(sorted(asked))


def case_request(
    case: type[TrainingCase],
    environment: Environment,
    *,
    gpus: int,
    run: int,
    injections: tuple[str, ...] = (),
) -> RunRequest:
    """The request for one run of a case as gpuscale measures it by default."""
    strategy = max(case.strategies, key=lambda name: ranks_of(name, 2) or 0)
    request = default_request(case, environment, strategy=strategy, gpus=gpus, run=run)
    return replace(request, injections=injections)


def possible_faults(
    configuration: Configuration, gpus: Sequence[int]
) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """The faults that can be tried, each in two sizes, and those that cannot, with the reason."""
    not_tried = ["slow link: needs two hosts, and a link between them that can be limited"]
    kinds: list[tuple[str, Injection, CauseKind]] = [
        ("data stall", "data", CauseKind.DATA),
        ("slow rank", "slow-rank", CauseKind.SLOW_RANK),
        ("slower compute", "compute", CauseKind.COMPUTE),
    ]
    if (ranks_of(configuration.strategy, max(gpus)) or 1) == 1:
        del kinds[1]
        not_tried.insert(0, "slow rank: needs ddp on 2 GPUs or more")
    return tuple(
        Fault(name=name, size=size, injection=injection, kind=kind)
        for name, injection, kind in kinds
        for size in _FAULT_SIZES
    ), tuple(not_tried)


def injection_text(fault: Fault, *, step_time_s: float, gpus: Sequence[int]) -> str:
    """The text of `--inject` for a fault; of several ranks the last is the slow one."""
    match fault.injection:
        case "data":
            return f"data={fault.size * step_time_s * 1e3:.3f}ms"
        case "slow-rank":
            return f"slow-rank={max(gpus) - 1}:{1 + fault.size:g}"
        case "compute":
            return f"compute={1 + fault.size:g}"


def blocks(faults: Sequence[Fault], *, pairs: int, trials: int) -> Iterator[Fault | None]:
    """The fault of each block in turn, None for a clean one.

    Faulty blocks are spread over the time of the clean ones.

    Args:
        faults: Those to be tried.
        pairs: Clean blocks that are held against those before them.
        trials: Of each fault.
    """
    yield from [None] * BASELINE_BLOCKS
    faulty = [fault for _ in range(trials) for fault in faults]
    for pair in range(pairs):
        yield None
        yield from faulty[len(faulty) * pair // pairs : len(faulty) * (pair + 1) // pairs]
