"""Which case a trial on this machine trains, and the requests for its runs."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuscale.cases import TrainingCase
from gpuscale.errors import UsageError
from gpuscale.records import Configuration, Environment, Pacing, RunRequest
from gpuscale.run_defaults import PACINGS, SIZES, data_workers, devices_of_run

DEFAULT_CASES: Mapping[str, str] = {
    "cuda": "bench_cases/test_resnet50.py::Resnet50",
    "cpu": "bench_cases/test_mnist_cnn.py::MnistCnn",
}
TIMEOUT_S = 600.0


def load_case_class(text: str | None, device: str) -> type[TrainingCase]:
    """The case that `FILE::Class` names, or the default one of the device.

    Raises:
        UsageError: there is no such file, it cannot be imported, or it has no such case.
    """
    file, colons, name = (text or DEFAULT_CASES[device]).partition("::")
    path = Path(file).absolute()
    if not path.is_file():
        if text is None:
            raise UsageError(
                f"there is no {file} here; go to the folder that has bench_cases, or name a case "
                "of your own with --case FILE::Class"
            )
        raise UsageError(f"--case: there is no file {file}; give FILE::Class")
    # As pytest does it, so that a case finds what lies beside it.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--case: {file} is not a Python file; give FILE::Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # Any line of the user's file may raise anything; it is the file that is to be mended.
        raise UsageError(
            f"--case: {file} cannot be imported ({type(error).__name__}: {error}); "
            "run it with python to see where"
        ) from None
    known = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, TrainingCase)
        and value.__module__ == path.stem
    ]
    if not colons or name not in known:
        found = ", ".join(f"{file}::{key}" for key in known) or "none"
        raise UsageError(f"--case: name a case in {file} as FILE::Class; there is {found}")
    case: type[TrainingCase] = getattr(module, name)
    return case


def numbers_of_gpus(asked: tuple[int, ...] | None, environment: Environment) -> tuple[int, ...]:
    """The numbers of GPUs (on CPU: of ranks) to try; 1 and 2 where the machine has two.

    Raises:
        UsageError: the machine has fewer than were asked for.
    """
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
    return asked


def case_request(
    case: type[TrainingCase],
    environment: Environment,
    *,
    gpus: int,
    run: int,
    pacing: Pacing | None = None,
    injections: tuple[str, ...] = (),
) -> RunRequest:
    """The request for one run of a case as gpuscale measures it by default.

    Raises:
        CaseError: the case has no default size, or its batch cannot be divided.
    """
    built = case()
    configuration = _configuration(built, environment)
    size = built.named_size(configuration.size)
    return RunRequest(
        configuration=configuration,
        gpus=gpus,
        index=run,
        batch_per_gpu=built.batch_per_gpu(size, gpus),
        sample_shape=size.sample_shape,
        case_module=case.__module__,
        case_file=str(sys.modules[case.__module__].__file__),
        case_class=case.__qualname__,
        import_paths=tuple(sys.path),
        devices=devices_of_run(environment, run=run, gpus=gpus),
        data_root=None,
        download=False,
        pacing=pacing or PACINGS[environment.device],
        timeout_s=TIMEOUT_S,
        injections=injections,
    )


def _configuration(case: TrainingCase, environment: Environment) -> Configuration:
    return Configuration(
        case=case.name(),
        strategy="ddp" if "ddp" in case.strategies else case.strategies[0],
        device=environment.device,
        size=SIZES[environment.device],
        precision="fp32",
        channels_last=False,
        compiled=False,
        scaling=case.scaling,
        data="synthetic",
        threads_per_rank=1,
        data_workers=data_workers(environment),
    )
