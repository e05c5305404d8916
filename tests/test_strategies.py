"""How ranks are made parallel: what they wait for, and in which number format they compute."""

import multiprocessing
import os
import socket
import threading
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

import pytest
import torch
from changing import replace
from measuring import REPOSITORY
from test_overhead import request_for_cpu

from gpuscale.records import RunRequest
from gpuscale.records.configuration import Precision
from gpuscale.strategies import STRATEGIES
from gpuscale.worker.strategies.ddp import DistributedDataParallelStrategy
from gpuscale.worker.strategies.dp import DataParallelStrategy
from gpuscale.worker.training import parameter_digest, set_fp32_mode

PATIENCE_S = 60.0
PRECISIONS: tuple[Precision, ...] = ("tf32", "fp32", "bf16", "fp16")


def request_for(strategy: str, *, gpus: int = 1, precision: Precision = "fp32") -> RunRequest:
    plain = request_for_cpu()
    configuration = replace(plain.configuration, strategy=strategy, precision=precision)
    return replace(plain, configuration=configuration, gpus=gpus)


def be_rank(
    rank: int, port: int, is_through: "Event", answers: "Queue[tuple[int, bool, bool]]"
) -> None:
    """A rank of two: after synchronised steps one without, before which rank 0 waits for 1."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    strategy = DistributedDataParallelStrategy(request_for("ddp", gpus=2))
    model = strategy.wrap(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)))

    def step() -> None:
        model(torch.rand(8, 4)).sum().backward()

    for _ in range(2):
        step()
    strategy.barrier()
    with strategy.unsynchronized(model):
        came_through = is_through.wait(PATIENCE_S) if rank == 0 else True
        step()
    is_through.set()
    broadcasts_again = bool(model.require_forward_param_sync)
    strategy.barrier()
    step()
    answers.put((rank, came_through, broadcasts_again))
    answers.close()
    answers.join_thread()
    strategy.barrier()
    os._exit(0)


def test_a_late_rank_0_keeps_nobody_waiting_in_a_step_without_synchronisation() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    is_through = context.Event()
    answers: Queue[tuple[int, bool, bool]] = context.Queue()
    ranks = [
        context.Process(target=be_rank, args=(rank, port, is_through, answers)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    try:
        found = sorted(answers.get(timeout=3 * PATIENCE_S) for _ in ranks)
    finally:
        for process in ranks:
            process.join(30)
            process.kill()
    assert found == [(0, True, True), (1, True, True)]


def test_the_docs_say_what_every_strategy_demands() -> None:
    page = (REPOSITORY / "docs" / "measuring.md").read_text()
    for name, demands in STRATEGIES.items():
        refused = {"CPU ranks": demands.not_on_cpu, "`--compile`": demands.not_compiled}
        cannot = "; ".join(f"{what}: {why}" for what, why in refused.items() if why) or "–"
        assert f"| `{name}` | {demands.words} | {demands.single} | {cannot} |\n" in page


def output_dtype_on_a_new_thread(model: torch.nn.Module) -> torch.dtype:
    """As DataParallel calls its replicas."""
    found: list[torch.dtype] = []
    thread = threading.Thread(target=lambda: found.append(model(torch.rand(2, 4)).dtype))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_replica_of_dp_computes_in_the_format_that_was_asked_for(
    precision: Precision, dtype: torch.dtype
) -> None:
    model = torch.nn.Linear(4, 2)
    wrapped = DataParallelStrategy(request_for("dp", precision=precision)).wrap(model)
    assert isinstance(wrapped, torch.nn.DataParallel)
    assert output_dtype_on_a_new_thread(wrapped.module) == dtype
    assert parameter_digest(wrapped) == parameter_digest(model)


def test_dp_leaves_a_model_alone_that_needs_no_autocast() -> None:
    model = torch.nn.Linear(4, 2)
    wrapped = DataParallelStrategy(request_for("dp")).wrap(model)
    assert isinstance(wrapped, torch.nn.DataParallel)
    assert wrapped.module is model


def test_torch_gives_one_answer_on_tf32_however_it_is_asked() -> None:
    try:
        for precision in PRECISIONS:
            set_fp32_mode(precision)
            is_allowed = precision == "tf32"
            # The older questions are those of torch.compile; they fail where settings differ.
            assert torch.backends.cuda.matmul.allow_tf32 is is_allowed
            assert torch.backends.cudnn.allow_tf32 is is_allowed
            for part in ("matmul", "conv", "rnn"):
                assert (fp32_precision(part) == "tf32") is is_allowed
    finally:
        set_fp32_mode("fp32")


def fp32_precision(part: str) -> str:
    return str(torch._C._get_fp32_precision_getter("cuda", part))
