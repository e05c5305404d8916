"""Strategies: what ranks wait for, and the number format they compute in."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from changing import replace
from forked_ranks import PATIENCE_S, answer, answers_of
from hosts import within_limit
from test_overhead import request_for_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuscale import TrainingCase
from gpuscale.base.errors import CaseError, InvalidTrainingError
from gpuscale.measure.worker import training
from gpuscale.measure.worker.data import training_batches
from gpuscale.measure.worker.entry import parameter_digest
from gpuscale.measure.worker.strategies.data_parallel import (
    DataParallelStrategy,
    DistributedDataParallelStrategy,
    ProcessGroupStrategy,
)
from gpuscale.measure.worker.strategies.stages import ModelParallelStrategy
from gpuscale.measure.worker.training import Training, set_fp32_mode
from gpuscale.records import RunRequest
from gpuscale.records.configuration import Precision

NEWER_SETTINGS = hasattr(torch._C, "_get_fp32_precision_getter")
PRECISIONS: tuple[Precision, ...] = ("tf32", "fp32", "bf16", "fp16")


def request_for(strategy: str, *, gpus: int = 1, **fields: object) -> RunRequest:
    """Return the request of one rank; `fields` are those of the configuration."""
    plain = request_for_cpu()
    configuration = replace(plain.configuration, strategy=strategy, **fields)
    return replace(plain, configuration=configuration, gpus=gpus)


def take_place(rank: int, port: int, count: int) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)


def join(
    rank: int, port: int, kind: type[ProcessGroupStrategy] = DistributedDataParallelStrategy
) -> ProcessGroupStrategy:
    take_place(rank, port, 2)
    return kind(request_for("ddp", gpus=2))


def step_unsynchronized(rank: int, port: int, folder: Path) -> None:
    """Make two synchronised steps and one without, in which rank 0 first waits for rank 1."""
    strategy = join(rank, port)
    layers = (torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model = strategy.wrap(torch.nn.Sequential(*layers), TrainingCase())

    def step() -> None:
        model(torch.rand(8, 4)).sum().backward()

    for _ in range(2):
        step()
    strategy.barrier()
    is_through = folder / "through"
    with strategy.unsynchronized(model):
        came_through = within_limit(is_through.exists, PATIENCE_S) if rank == 0 else True
        step()
    is_through.touch()
    broadcasts_again = bool(model.require_forward_param_sync)
    strategy.barrier()
    step()
    answer(folder, strategy, came_through, broadcasts_again)


def test_a_late_rank_0_keeps_nobody_waiting_in_a_step_without_synchronisation() -> None:
    found = answers_of(2, step_unsynchronized)
    assert found == [(0, True, True), (1, True, True)]


def realign_apart(rank: int, port: int, folder: Path, is_apart: bool) -> None:
    """Realign ranks whose parameters differ; the state of their optimiser is nested."""
    strategy = join(rank, port)
    model = strategy.wrap(torch.nn.Linear(2, 1), TrainingCase())
    optimizer = torch.optim.SGD(model.parameters())
    own = torch.full((2,), float(rank))
    history = [own.clone() for _ in range(1 + rank * is_apart)]
    pair = (own.clone(), 7)
    state = {"factors": {"left": own, "history": history}, "pair": pair}
    optimizer.state[next(model.parameters())] = state
    said = ""
    try:
        strategy.realign(model, optimizer)
    except InvalidTrainingError as error:
        said = str(error)
    nested = [*own.tolist(), *history[0].tolist(), *pair[0].tolist()]
    answer(folder, strategy, nested, said)


def test_realigning_takes_the_whole_of_a_nested_state_from_rank_0() -> None:
    found = answers_of(2, realign_apart, False)
    assert found == [(rank, [0.0] * 6, "") for rank in range(2)]


def test_states_of_different_sizes_end_both_ranks_instead_of_hanging_them() -> None:
    found = answers_of(2, realign_apart, True)
    assert all("SGD keeps states of different sizes" in said for *_, said in found)


def output_dtype_on_a_new_thread(model: torch.nn.Module) -> torch.dtype:
    """The type of a model's output on a new thread, as DataParallel calls its replicas."""
    with ThreadPoolExecutor() as pool:
        output: torch.Tensor = pool.submit(model, torch.rand(2, 4)).result()
    return output.dtype


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_replica_of_dp_computes_in_its_format(name: Precision, dtype: torch.dtype) -> None:
    model = torch.nn.Linear(4, 2)
    strategy = DataParallelStrategy(request_for("dp", precision=name))
    wrapped = strategy.wrap(model, TrainingCase())
    assert isinstance(wrapped, torch.nn.DataParallel)
    assert output_dtype_on_a_new_thread(wrapped.module) == dtype
    assert parameter_digest(wrapped) == parameter_digest(model)


def test_torch_gives_one_answer_on_tf32_however_it_is_asked() -> None:
    try:
        for precision in PRECISIONS:
            set_fp32_mode(precision)
            is_allowed = precision == "tf32"
            # The older questions are those of torch.compile; they fail where settings differ.
            assert torch.backends.cuda.matmul.allow_tf32 is is_allowed
            assert torch.backends.cudnn.allow_tf32 is is_allowed
            # The newer ones are not there before torch 2.9.
            for part in ("matmul", "conv", "rnn") if NEWER_SETTINGS else ():
                assert (fp32_precision(part) == "tf32") is is_allowed
    finally:
        set_fp32_mode("fp32")


OF_TORCH: Any = torch.backends
NEWER_PLACES: dict[str, Callable[[], Any]] = {
    "all": lambda: OF_TORCH,
    "cudnn": lambda: OF_TORCH.cudnn,
    "conv": lambda: OF_TORCH.cudnn.conv,
    "matmul": lambda: OF_TORCH.cuda.matmul,
    "cpu": lambda: OF_TORCH.mkldnn.conv,
}


@pytest.mark.skipif(not NEWER_SETTINGS, reason="before torch 2.9 there is one way to say it")
@pytest.mark.parametrize("place", NEWER_PLACES)
def test_fp32_is_fp32_also_where_a_case_has_allowed_tf32_in_the_newer_way(place: str) -> None:
    try:
        NEWER_PLACES[place]().fp32_precision = "tf32"
        set_fp32_mode("fp32")
        assert torch.backends.cudnn.allow_tf32 is False
        assert torch.backends.cuda.matmul.allow_tf32 is False
        assert "tf32" not in {each().fp32_precision for each in NEWER_PLACES.values()}
    finally:
        NEWER_PLACES[place]().fp32_precision = "none"
        set_fp32_mode("fp32")


class OneLayer(TrainingCase):
    sample_shape, batch = (16,), 4

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(16, 10)


def training_of(case: TrainingCase, *devices: int, precision: Precision = "fp32") -> Training:
    request = request_for("dp", precision=precision)
    strategy = DataParallelStrategy(request_for("dp"))
    strategy.devices = devices
    case.size = case.named_size(None)
    batches = training_batches(case, request, batch=4, rank=0, world_size=1)
    return Training(case, request, strategy, batches)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_gpu_may_lack_a_precision(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(CaseError, match=f"--precision {precision}: Tesla V100 has no .*fp16"):
        training_of(OneLayer(), 0, precision=precision)


def test_a_method_without_return_is_named_with_what_it_must_return() -> None:
    class Mute(OneLayer):
        def optimizer(self, model: torch.nn.Module, gpus: int) -> Any:
            return None

    with pytest.raises(CaseError, match=r"^Mute.optimizer\(\) returned NoneType instead of Opt"):
        training_of(Mute())


@pytest.mark.parametrize(
    ("returned", "said"), [(torch.ones(3), r"a tensor of shape \[3\]"), (1.0, "float instead of")]
)
def test_a_loss_that_is_no_single_number_is_named(returned: Any, said: str) -> None:
    class Many(OneLayer):
        def loss(self, output: Any, target: Any) -> Any:
            return returned

        def optimizer(self, model: torch.nn.Module, gpus: int) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters())

    training = training_of(Many())
    with pytest.raises(CaseError, match=rf"^Many.loss\(\) returned {said}"):
        training.step()


def fp32_precision(part: str) -> str:
    return str(torch._C._get_fp32_precision_getter("cuda", part))


@pytest.mark.skipif(not NEWER_SETTINGS, reason="an older torch asks fake GPUs for a driver")
def test_the_layers_of_mp_lie_on_the_devices_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sequence(OneLayer):
        def model(self) -> torch.nn.Module:
            return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))

    case, first = Sequence(), torch.device("cuda", 0)
    case.size = case.named_size(None)
    model = case.model()
    monkeypatch.setattr(training, "cuda_device", lambda devices, position: first)
    strategy = ModelParallelStrategy(replace(request_for("mp", gpus=2), devices=(0, 1)))
    # Tensors of devices that need not be there, which compute nothing.
    with FakeTensorMode(allow_non_fake_inputs=True):
        wrapped = strategy.wrap(model, case)
        output = wrapped(torch.rand(4, 16, device=first))
    last = torch.device("cuda", 1)
    assert output.device == last
    assert [weight.device for weight in wrapped.parameters()] == [first] * 4 + [last] * 4
    # The optimiser is given the case's own model.
    assert {*map(id, model.parameters())} == {*map(id, wrapped.parameters())}
