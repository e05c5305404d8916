"""The MNIST `Net` of the PARAM GPU workshop: strong scaling, 128 images across all GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchvision import datasets
from torchvision.transforms import v2

from gpuscale import Size, TrainingCase

# Mean and standard deviation of MNIST's training pixels, as in PyTorch's MNIST example.
_MEAN, _STD = (0.1307,), (0.3081,)


class MnistNet(TrainingCase):
    """Two convolutions and two linear layers; Adadelta, learning rate 1, cut by 30 % per epoch."""

    strategies = ("dp", "ddp")
    scaling = "strong"
    raw_image_shape = (28, 28)
    training_samples = 60_000
    sizes = {
        "full": Size(batch=128, sample_shape=(1, 28, 28)),
        "smoke": Size(batch=64, sample_shape=(1, 28, 28)),
    }

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, self.classes),
            nn.LogSoftmax(dim=1),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.nll_loss(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.Adadelta(model.parameters(), lr=1.0)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    def transform(self, size: Size) -> Callable[[Any], Any]:
        steps: Callable[[Any], Any] = v2.Compose(
            [super().transform(size), v2.Normalize(_MEAN, _STD)]
        )
        return steps

    def real_dataset(self, root: Path, size: Size, *, download: bool) -> Dataset[Any]:
        data: Dataset[Any] = datasets.MNIST(
            root, train=True, transform=self.transform(size), download=download
        )
        return data


@pytest.mark.gpuscale(case=MnistNet)
def test_mnist_net(scaling: Callable[[], object]) -> None:
    scaling()
