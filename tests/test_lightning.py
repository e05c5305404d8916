"""The strategy `lightning`: what `ddp` trains, by Lightning's own loop."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from builders import environment
from changing import replace
from forked_ranks import answer, answers_of
from measuring import run_pytest, write_case
from statements import known
from test_options import GIVEN
from test_strategies import PRECISIONS, join, request_for
from torch.utils.data import Dataset

from gpuscale import TrainingCase
from gpuscale.measure.worker.data import LoadedBatches
from gpuscale.measure.worker.entry import parameter_digest
from gpuscale.measure.worker.loop import timed_window
from gpuscale.measure.worker.strategies.data_parallel import (
    DistributedDataParallelStrategy,
    ProcessGroupStrategy,
)
from gpuscale.measure.worker.training import Training
from gpuscale.plugin.items import ItemPlan, skip_reason
from gpuscale.plugin.options import parse_options
from gpuscale.records.configuration import Precision

needs_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="pip install 'gpuscale[lightning]'"
)
STEPS_OF_AN_EPOCH = 3
WAYS = (*((precision, None) for precision in PRECISIONS), ("fp32", 2))
"""Precisions, and accumulated batches."""


class Scheduled(TrainingCase):
    """A case with buffers that DDP broadcasts, dropout, and another learning rate each epoch."""

    def model(self) -> torch.nn.Module:
        torch.manual_seed(1)
        layers = (torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 10))
        return torch.nn.Sequential(*layers)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output, target)

    def optimizer(self, model: torch.nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 2 * 4 * STEPS_OF_AN_EPOCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(16, generator=torch.Generator().manual_seed(index)), index % 10


def train(
    kind: type[Training], group: ProcessGroupStrategy, precision: Precision, accumulate: int | None
) -> tuple[str, float | None]:
    """Return the parameters after ten steps, three of them without synchronisation."""
    place = {"rank": group.rank, "world_size": 2}
    batches = LoadedBatches(Samples(), batch=4, **place, workers=0, pin_memory=False)
    request = request_for("ddp", gpus=2, precision=precision, accumulate=accumulate)
    training = kind(Scheduled(), request, group, batches)
    torch.manual_seed(group.rank)
    timed_window(training, 4)
    training.remember()
    timed_window(training, 3, synchronized=False)
    training.realign()
    timed_window(training, 3)
    return parameter_digest(training.model), training.final_loss()


def train_both_ways(rank: int, port: int, folder: Path) -> None:
    from gpuscale.measure.worker.strategies.lightning import LightningStrategy, LightningTraining

    wrapped = join(rank, port, LightningStrategy)
    # In the process group that is there.
    plain = object.__new__(DistributedDataParallelStrategy)
    vars(plain).update(vars(wrapped))
    # Else ddp alone synchronises the very first batch that it accumulates, for static_graph.
    plain._has_run = True
    found = {
        way: (train(Training, plain, *way), train(LightningTraining, wrapped, *way)) for way in WAYS
    }
    answer(folder, plain, found)


@needs_lightning
def test_it_trains_what_ddp_trains_bit_for_bit_in_every_precision() -> None:
    (_, of_first), (_, of_second) = answers_of(2, train_both_ways)
    for way in WAYS:
        (digest, loss), of_lightning = of_first[way]
        assert loss is not None
        assert of_lightning == (digest, loss), way
        assert [each[0] for each in of_second[way]] == [digest] * 2


@needs_lightning
def test_it_is_measured_beside_ddp_and_fails_with_its_own_error(tmp_path: Path) -> None:
    write_case(tmp_path, 'class Case(Tiny):\n    strategies = ("ddp", "lightning")\n')
    loss = "    def loss(self, output, target):\n        1 / 0\n"
    broken = f'class Broken(Tiny):\n    strategies = ("lightning",)\n{loss}\nCase = Broken'
    write_case(tmp_path, broken, name="test_broken.py")
    session = run_pytest(
        tmp_path,
        *("--gpus", "2", "--runs", "1", "--device", "cpu", "--run-seconds", "0.1"),
        # Lightning by itself takes this for a job whose four ranks it is one of.
        SLURM_NTASKS="4",
        SLURM_JOB_NAME="train",
        SLURM_PROCID="0",
    )
    runs = {run.label: run for run in session.results.runs}
    assert runs["case/ddp on 2 CPU ranks"].is_valid, session.output
    measured_run = runs["case/lightning on 2 CPU ranks"]
    assert measured_run.is_valid, session.output
    assert measured_run.measured["exposed_communication_s"] is not None
    for rank in measured_run.ranks:
        phases = known(rank.phases)
        assert min(phases.data_s, phases.forward_s, phases.backward_s) > 0
    failure = known(runs["broken/lightning on 2 CPU ranks"].failure)
    assert failure.message.endswith("raised ZeroDivisionError: division by zero")


def test_without_its_extra_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    plan = ItemPlan(case=Scheduled, strategy="lightning", gpus=1, run=1)
    reason = known(skip_reason(plan, environment(), parse_options(GIVEN)))
    assert "pip install 'gpuscale[lightning]'" in reason
    assert skip_reason(replace(plan, strategy="ddp"), environment(), parse_options(GIVEN)) is None
