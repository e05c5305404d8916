"""The MNIST CNN run on ARC4 (University of Leeds): weak scaling, 128 images per GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, random_split
from torchvision import datasets

from gpuscale import Size, TrainingCase

_VALIDATION_SHARE = 0.15


class MnistCnn(TrainingCase):
    """Four convolutions and a linear layer on 28×28 digits; Adam with a learning rate of 1e-3."""

    strategies = ("dp", "ddp", "lightning")
    raw_image_shape = (28, 28)
    training_samples = 51_000
    sizes = {
        "full": Size(batch=128, sample_shape=(1, 28, 28)),
        "smoke": Size(batch=16, sample_shape=(1, 28, 28)),
    }

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(128, self.classes),
        )

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def real_dataset(self, root: Path, size: Size, *, download: bool) -> Dataset[Any]:
        """Return 51,000 of the 60,000 training digits; the published runs validated on the rest."""
        digits = datasets.MNIST(root, train=True, transform=self.transform(size), download=download)
        validation = int(_VALIDATION_SHARE * len(digits))
        seeded = torch.Generator().manual_seed(42)
        training, _ = random_split(digits, [len(digits) - validation, validation], seeded)
        return training


@pytest.mark.gpuscale(case=MnistCnn)
def test_mnist_cnn(scaling: Callable[[], object]) -> None:
    scaling()
