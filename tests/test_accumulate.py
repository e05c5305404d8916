"""Gradients of several batches add up to those of one, and are synchronised once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import run_pytest, write_case
from test_strategies import request_for

from gpuscale import TrainingCase
from gpuscale.measure.worker.data import PooledBatches
from gpuscale.measure.worker.strategies.data_parallel import DataParallelStrategy
from gpuscale.measure.worker.training import Training
from gpuscale.records import RunRequest

MICRO, BATCHES = 2, 4

# What DDP must bear together with steps that are not synchronised, over gloo.
UNUSED = """
class Forked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(16, 10), torch.nn.Linear(16, 10)

    def forward(self, inputs):
        return self.used(inputs)


class Unused(Tiny):
    strategy_options = {"ddp": {"find_unused_parameters": True, "comm_hook": "fp16_compress"}}

    def model(self):
        return Forked()

Case = Unused
"""
STATIC = """
class Static(Tiny):
    strategy_options = {"ddp": {"static_graph": True, "gradient_as_bucket_view": True,
                                "bucket_cap_mb": 1, "comm_hook": "powerSGD"}}

Case = Static
"""
NORMED = """
class Normed(Tiny):
    strategies = ("ddp", "fsdp")
    strategy_options = {"ddp": {"comm_hook": "bf16_compress"}}

    def model(self):
        return torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 10))

Case = Normed
"""


class Line(TrainingCase):
    def model(self) -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Linear(3, 1)

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(output, target)

    def optimizer(self, model: torch.nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Given(PooledBatches):
    def __init__(self, samples: torch.Tensor, batch: int) -> None:
        self._batches: Iterator[torch.Tensor] = iter(samples.split(batch))

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = next(self._batches)
        return inputs, inputs.sum(1, keepdim=True)


def after_a_step(samples: torch.Tensor, accumulate: int | None) -> tuple[list[float], float]:
    request = request_for("dp", accumulate=accumulate)
    batches = Given(samples, len(samples) // (accumulate or 1))
    training = Training(Line(), request, DataParallelStrategy(request), batches)
    training.step()
    values = [each for p in training.model.parameters() for each in p.detach().flatten().tolist()]
    return values, training.final_loss()


def test_a_step_of_several_batches_is_that_of_one_as_large() -> None:
    samples = torch.rand(MICRO * BATCHES, 3)
    weights, loss = after_a_step(samples, BATCHES)
    expected, expected_loss = after_a_step(samples, None)
    # A weight may be near zero, while its terms are not.
    assert weights == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert loss == pytest.approx(expected_loss, rel=1e-5)


class Noting(DataParallelStrategy):
    """A strategy that records for each batch if its gradients stay with the rank."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        self.noted: list[bool] = []
        self._stays = False

    @contextmanager
    def accumulating(self, model: torch.nn.Module) -> Iterator[None]:
        self._stays = True
        yield
        self._stays = False

    def forward_backward(self, training: Training, inputs: Any, targets: Any) -> torch.Tensor:
        self.noted.append(self._stays)
        return super().forward_backward(training, inputs, targets)


def test_gradients_are_synchronised_with_the_last_batch_of_a_step_alone() -> None:
    request = request_for("dp", accumulate=3)
    strategy = Noting(request)
    training = Training(Line(), request, strategy, Given(torch.rand(12, 3), 2))
    for _ in range(2):
        training.step()
    assert strategy.noted == [True, True, False] * 2


def test_accumulated_batches_agree_under_every_ddp_option_and_name_a_result(tmp_path: Path) -> None:
    for name, case in (("unused", UNUSED), ("static", STATIC), ("normed", NORMED)):
        write_case(tmp_path, case, name=f"test_{name}.py")
    arguments = ("--device", "cpu", "--gpus", "2", "--runs", "1", "--run-seconds", "0.2")
    accumulated = run_pytest(tmp_path, *arguments, "--accumulate", "2").ended()
    for run in accumulated.results.runs:
        # That includes equal digests, and of fsdp a gradient that is the mean over the ranks.
        assert run.is_valid
        assert len(run.unsynced_windows) >= 3
    found = {run.configuration.label: run for run in accumulated.results.runs}
    options = {name: run.configuration.strategy_options for name, run in found.items()}
    # Of fsdp none, where this torch has it.
    assert {name: its for name, its in options.items() if its} == {
        "unused/ddp": "comm_hook=fp16_compress, find_unused_parameters=True",
        "static/ddp": "bucket_cap_mb=1, comm_hook=powerSGD, gradient_as_bucket_view=True, "
        "static_graph=True",
        "normed/ddp": "comm_hook=bf16_compress",
    }
    assert {run.configuration.accumulate for run in found.values()} == {2}
    # Of the tiny case each batch has eight samples.
    assert {run.batch_per_gpu for run in found.values()} == {16}
    assert "2 batches a step, comm_hook=bf16_compress" in accumulated.output
