"""ResNet-50 on CIFAR-10 at 128×128, as on CTE-POWER (Barcelona Supercomputing Center)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchvision import datasets, models
from torchvision.transforms import v2

from gpuscale import Size, TrainingCase


class Resnet50Cifar(TrainingCase):
    """torchvision's ResNet-50 with 10 classes, SGD at 0.01 per GPU, weak scaling.

    The source trains Keras' ResNet50V2 under TensorFlow's MirroredStrategy.
    """

    strategies = ("ddp",)
    raw_image_shape = (32, 32, 3)
    training_samples = 50_000
    sizes = {
        "full": Size(batch=256, sample_shape=(3, 128, 128)),
        "smoke": Size(batch=4, sample_shape=(3, 32, 32)),
    }

    def model(self) -> nn.Module:
        network: nn.Module = models.resnet50(weights=None, num_classes=self.classes)
        return network

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01 * gpus)

    def transform(self, size: Size) -> Callable[[Any], torch.Tensor]:
        steps: Callable[[Any], torch.Tensor] = v2.Compose(
            [
                v2.ToImage(),
                v2.Resize(size.sample_shape[1:], antialias=True),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )
        return steps

    def real_dataset(
        self, root: Path, size: Size, *, download: bool
    ) -> Dataset[tuple[torch.Tensor, int]]:
        data: Dataset[tuple[torch.Tensor, int]] = datasets.CIFAR10(
            root, train=True, transform=self.transform(size), download=download
        )
        return data


@pytest.mark.gpuscale(case=Resnet50Cifar)
def test_resnet50_cifar(scaling: Callable[[], object]) -> None:
    scaling()
