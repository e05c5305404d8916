"""Batches of any nesting reach the model: dicts, several inputs, integers, named tuples."""

from typing import Any, NamedTuple

import pytest
import torch

from gpuscale import Size, TrainingCase
from gpuscale.measure.worker.data import PooledBatches, SyntheticDataset, on_device

SIZE = Size(batch=4, sample_shape=(6,))


class Pair(NamedTuple):
    image: torch.Tensor
    tokens: torch.Tensor


class TwoInputs(TrainingCase):
    def sample(self, index: int, size: Size) -> tuple[Pair, dict[str, Any]]:
        numbered = torch.full(size.sample_shape, index)
        return Pair(torch.ones(3, 2, 2) * index, numbered), {"label": index, "masks": [numbered]}


def batches_of(case: TrainingCase) -> PooledBatches:
    case.size = SIZE
    return PooledBatches(SyntheticDataset(case), batch=4, rank=0, pin_memory=False)


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
