"""A training case, the one class that users write. Free of torch until a rank builds it."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gpuscale.errors import CaseError

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from gpuscale.records.configuration import ScalingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a case is trained: batch and sample shape."""

    batch: int
    """Samples per GPU under weak scaling; samples over all GPUs under strong scaling."""
    sample_shape: tuple[int, ...]


class TrainingCase:
    """A training workload: model, data, loss, optimiser and batch size.

    Subclass it, set `sample_shape` and `batch` (or `sizes`), and write `model`, `loss` and
    `optimizer`. Everything else has a default that suits image classification.
    """

    strategies: ClassVar[tuple[str, ...]] = ("ddp",)
    scaling: ClassVar["ScalingMode"] = "weak"
    sample_shape: ClassVar[tuple[int, ...]] = ()
    batch: ClassVar[int] = 0
    classes: ClassVar[int] = 10
    training_samples: ClassVar[int] = 50_000
    """Length of one epoch of synthetic data."""
    raw_image_shape: ClassVar[tuple[int, ...] | None] = None
    """Height and width (and 3 for colour) of the images that `transform` takes."""
    sizes: ClassVar[Mapping[str, Size]] = {}
    """Named sizes; without any, `batch` and `sample_shape` are the size of every name."""

    @classmethod
    def name(cls) -> str:
        """The case's name in every table and file: the class name in snake case."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def model(self) -> "torch.nn.Module":
        """The model, on the CPU, freshly initialised; ranks call it with one seed."""
        raise NotImplementedError(f"{type(self).__name__}.model() is not written")

    def loss(self, output: Any, target: "torch.Tensor") -> "torch.Tensor":
        """The scalar loss of one batch."""
        raise NotImplementedError(f"{type(self).__name__}.loss() is not written")

    def optimizer(
        self, parameters: Iterable["torch.nn.Parameter"], gpus: int
    ) -> "torch.optim.Optimizer":
        """The optimiser; `gpus` is there for learning rates that scale with it."""
        raise NotImplementedError(f"{type(self).__name__}.optimizer() is not written")

    def scheduler(
        self, optimizer: "torch.optim.Optimizer"
    ) -> "torch.optim.lr_scheduler.LRScheduler | None":
        """A learning-rate schedule that is stepped after each epoch, or None."""
        return None

    def forward(self, model: Callable[..., Any], inputs: "torch.Tensor") -> Any:
        """The model's output for a batch; override it for models with other signatures."""
        return model(inputs)

    def batch_per_gpu(self, size: Size, gpus: int) -> int:
        """Samples that each GPU trains on in a step; a CaseError where they are no whole number."""
        if self.scaling == "weak":
            return size.batch
        if size.batch % gpus:
            raise CaseError(
                f"{self.name()}: a global batch of {size.batch} cannot be divided among "
                f"{gpus} GPUs; choose a number of GPUs that divides it"
            )
        return size.batch // gpus

    def transform(self, size: Size) -> Callable[[Any], "torch.Tensor"] | None:
        """The transforms from a PIL image to a sample, or None where data are tensors already."""
        return None

    def real_dataset(
        self, root: Path, size: Size, *, download: bool
    ) -> "Dataset[tuple[torch.Tensor, int]]":
        """The real training data below `root`, with the transforms of the case."""
        raise CaseError(
            f"{self.name()} has no real data; leave out --data-root, or write "
            f"{type(self).__name__}.real_dataset()"
        )

    def named_size(self, name: str | None) -> Size:
        """The size of that name; a CaseError where the case has none, or does not tell its own."""
        if self.sizes:
            if name is None or name not in self.sizes:
                known = ", ".join(sorted(self.sizes))
                raise CaseError(f"{self.name()} has no size '{name}'; it has {known}")
            return self.sizes[name]
        if not self.sample_shape or self.batch < 1:
            remedy = f"set sample_shape and batch (at least 1) on {type(self).__name__}"
            raise CaseError(f"{self.name()}: {remedy}")
        return Size(batch=self.batch, sample_shape=self.sample_shape)
