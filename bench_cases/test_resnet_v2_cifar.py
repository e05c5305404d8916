"""ResNet-50 V2 and ResNet-152 V2 on CIFAR-10 at 128×128, as on CTE-POWER (Barcelona)."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from torchvision import datasets

from gpuscale import Size, TrainingCase


def _normalized(channels: int) -> nn.Sequential:
    """Return batch normalisation with Keras' constants, followed by ReLU."""
    return nn.Sequential(nn.BatchNorm2d(channels, eps=1.001e-5, momentum=0.01), nn.ReLU())


class PreActivationBlock(nn.Module):
    """A bottleneck block that normalises its input before the convolutions, as in ResNet V2.

    The stride is that of the 3×3 convolution. The shortcut is a convolution of the normalised input
    if the block adds channels; otherwise it is the input, subsampled by the stride.
    """

    def __init__(self, channels_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.preactivation = _normalized(channels_in)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False),
            _normalized(width),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            _normalized(width),
            nn.Conv2d(width, channels_out, 1),
        )
        self.widening = None
        if channels_in != channels_out:
            self.widening = nn.Conv2d(channels_in, channels_out, 1, stride=stride)
        self.subsampling = nn.MaxPool2d(1, stride) if stride > 1 else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        active = self.preactivation(inputs)
        shortcut = self.subsampling(inputs) if self.widening is None else self.widening(active)
        output: torch.Tensor = shortcut + self.convolutions(active)
        return output


def resnet_v2(blocks: tuple[int, int, int, int], classes: int) -> nn.Sequential:
    """Return Keras' ResNetV2 as a sequence of modules, given the number of blocks per stage."""
    stages = zip((64, 128, 256, 512), blocks, (2, 2, 2, 1), strict=True)
    # Keras halves the resolution in the last block of a stage.
    plan = [
        (width, stride if block == count else 1)
        for width, count, stride in stages
        for block in range(1, count + 1)
    ]
    channels = [64, *(4 * width for width, _ in plan)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3),
        # MaxPool2d would pad with −∞, unlike Keras; the results differ for negative values.
        nn.ZeroPad2d(1),
        nn.MaxPool2d(3, stride=2),
        *(
            PreActivationBlock(channels_in, width, stride=stride)
            for (channels_in, _), (width, stride) in zip(pairwise(channels), plan, strict=True)
        ),
        _normalized(channels[-1]),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels[-1], classes),
    )


class Resnet50v2Cifar(TrainingCase):
    """Keras' ResNet50V2 with 10 classes; SGD at a learning rate of 0.01 per GPU, weak scaling."""

    strategies = ("ddp",)
    raw_image_shape = (32, 32, 3)
    training_samples = 50_000
    sizes = {
        "full": Size(batch=256, sample_shape=(3, 128, 128)),
        "smoke": Size(batch=4, sample_shape=(3, 32, 32)),
    }
    depths: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)

    def model(self) -> nn.Module:
        return resnet_v2(self.depths, self.classes)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01 * gpus)

    def real_dataset(self, root: Path, size: Size, *, download: bool) -> Dataset[Any]:
        data: Dataset[Any] = datasets.CIFAR10(
            root, train=True, transform=self.transform(size), download=download
        )
        return data


class Resnet152v2Cifar(Resnet50v2Cifar):
    """Keras' ResNet152V2, trained like `Resnet50v2Cifar`."""

    depths = (3, 8, 36, 3)


@pytest.mark.gpuscale(case=Resnet50v2Cifar)
def test_resnet50v2_cifar(scaling: Callable[[], object]) -> None:
    scaling()


@pytest.mark.gpuscale(case=Resnet152v2Cifar)
def test_resnet152v2_cifar(scaling: Callable[[], object]) -> None:
    scaling()
