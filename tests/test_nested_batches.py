"""Batches of any nesting reach the model: dicts, several inputs, integers, named tuples."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from measuring import run_pytest, write_case

from gpuscale import Size, TrainingCase
from gpuscale.measure.worker.data import PooledBatches, SyntheticDataset, on_device

SIZE = Size(batch=4, sample_shape=(6,))
QUICK = ("--device", "cpu", "--gpus", "1,2", "--runs", "1", "--run-seconds", "0.2")


class Pair(NamedTuple):
    image: torch.Tensor
    tokens: torch.Tensor


class TwoInputs(TrainingCase):
    def sample(self, index: int, size: Size) -> tuple[Pair, dict[str, Any]]:
        numbered = torch.full(size.sample_shape, index)
        return Pair(torch.ones(3, 2, 2) * index, numbered), {"label": index, "masks": [numbered]}


def batches_of(case: TrainingCase) -> PooledBatches:
    return PooledBatches(SyntheticDataset(case, SIZE), batch=4, rank=0, pin_memory=False)


def test_a_batch_keeps_the_nesting_and_the_types_of_its_samples() -> None:
    batch = next(batches_of(TwoInputs()))
    inputs, targets = on_device(batch, torch.device("cpu"), torch.channels_last)
    assert isinstance(inputs, Pair)
    assert (inputs.image.shape, inputs.tokens.dtype) == ((4, 3, 2, 2), torch.int64)
    assert inputs.image.is_contiguous(memory_format=torch.channels_last)
    assert inputs.tokens.is_contiguous()
    assert targets["label"].tolist() == targets["masks"][0][:, 0].tolist()


def test_a_sample_of_three_parts_is_refused() -> None:
    class Three(TrainingCase):
        def sample(self, index: int, size: Size) -> object:
            return torch.zeros(6), 1, 2

    with pytest.raises(ValueError, match="too many values"):
        on_device(next(batches_of(Three())), torch.device("cpu"), torch.preserve_format)


# As language models of others are fed: one dict with the labels inside, a loss from the model.
DICTS = """
class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 8)
        self.tags = torch.nn.Linear(8, 3)

    def forward(self, input_ids, labels):
        logits = self.tags(self.words(input_ids))
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class Case(Tiny):
    strategies = ("dp", "ddp")
    sample_shape = (6,)

    def sample(self, index, size):
        words = (torch.arange(6) * (index + 1)) % 50
        return {"input_ids": words, "labels": words % 3}

    def model(self):
        return Tagger()

    def forward(self, model, batch):
        return model(**batch)

    def loss(self, output, batch):
        assert batch["labels"].shape == (8, 6)
        return output["loss"]

    def optimizer(self, model, gpus):
        return torch.optim.SGD([{"params": model.words.parameters(), "lr": 0.01},
                                {"params": model.tags.parameters()}], lr=0.1)
"""


@pytest.mark.parametrize("data", ["synthetic", "loader"])
def test_a_case_with_dicts_trains_by_dp_and_ddp(tmp_path: Path, data: str) -> None:
    write_case(tmp_path, DICTS)
    workers = () if data == "synthetic" else ("--data-workers", "1")
    session = run_pytest(tmp_path, *QUICK, "--data", data, *workers).ended()
    trained = {(run.configuration.strategy, run.gpus) for run in session.results.runs}
    assert trained == {("dp", 1), ("ddp", 1), ("ddp", 2)}
    assert all(run.is_valid for run in session.results.runs)
