"""ResNet-50 on ImageNet at 256×256, as on JUWELS Booster (Forschungszentrum Jülich)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchvision import datasets, models

from gpuscale import Size, TrainingCase

# From four nodes of four GPUs on, the published runs use half the batch on each GPU.
_GPUS_OF_HALF_BATCH = 16


class Resnet50(TrainingCase):
    """torchvision's ResNet-50 with 1000 classes; Adam at a learning rate of 0.02, weak scaling."""

    strategies = ("ddp", "fsdp", "lightning", "pipeline", "mp")
    classes = 1000
    # Close to the mean size of ImageNet's images.
    raw_image_shape = (375, 500, 3)
    training_samples = 1_281_167
    sizes = {
        "full": Size(batch=256, sample_shape=(3, 256, 256)),
        "smoke": Size(batch=8, sample_shape=(3, 32, 32)),
    }

    def batch_per_gpu(self, size: Size, gpus: int) -> int:
        return size.batch // 2 if gpus >= _GPUS_OF_HALF_BATCH else size.batch

    def model(self) -> nn.Module:
        network: nn.Module = models.resnet50(weights=None, num_classes=self.classes)
        return network

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, models.ResNet)
        stem = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        head = nn.Sequential(model.avgpool, nn.Flatten(), model.fc)
        return [stem, *model.layer1, *model.layer2, *model.layer3, *model.layer4, head]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.02)

    def real_dataset(self, root: Path, size: Size, *, download: bool) -> Dataset[Any]:
        """Return the images below `root`, one folder per class; ImageNet cannot be downloaded."""
        data: Dataset[Any] = datasets.ImageFolder(root, transform=self.transform(size))
        return data


@pytest.mark.gpuscale(case=Resnet50)
def test_resnet50(scaling: Callable[[], object]) -> None:
    scaling()
