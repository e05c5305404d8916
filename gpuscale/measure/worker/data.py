"""Endless streams of batches, from a pool that is created once or from a DataLoader."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from gpuscale.base.errors import CaseError
from gpuscale.base.host import is_gpu
from gpuscale.base.process_ends import die_with_parent
from gpuscale.records import RunRequest
from gpuscale.workload.cases import TrainingCase

Batch = Any
"""Inputs and targets, or a dict that contains both; values may be nested."""

SEED = 42
# Number of generated samples, which all indices share: at ImageNet's size, generating every sample
# would dominate the measurement.
_POOL = 64
_FEWEST_POOLED_BATCHES = 2


class SyntheticDataset(Dataset[Any]):
    """A dataset that repeats a few deterministic, generated samples in place of real data."""

    def __init__(self, case: TrainingCase, indices: Iterable[int] = range(_POOL)) -> None:
        self._length = case.training_samples
        self._transform = case.transform(case.size)
        self._samples = [case.sample(index, case.size) for index in indices]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        sample = self._samples[index % len(self._samples)]
        if self._transform is None:
            return sample
        inputs, target = sample
        return self._transform(inputs), target


def example_batch(case: TrainingCase) -> Batch:
    """Return a batch of two synthetic samples; batch norm would reject a single sample."""
    dataset = SyntheticDataset(case, (0, min(case.classes, _POOL) - 1))
    return default_collate([dataset[0], dataset[1]])


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return a nested structure with `change` applied to each tensor and other values unchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(change, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        changed = [map_tensors(change, item) for item in value]
        # A named tuple takes its fields as separate arguments.
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value


def on_device(
    batch: Batch, device: torch.device, memory_format: torch.memory_format
) -> tuple[Any, Any]:
    """Move a batch to a device, with images in `memory_format`; return inputs and targets."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        is_image = tensor.dim() == 4 and tensor.is_floating_point()
        form = memory_format if is_image else torch.preserve_format
        return tensor.to(device, non_blocking=True, memory_format=form)

    moved = map_tensors(move, batch)
    if isinstance(moved, dict):
        return moved, moved
    inputs, targets = moved
    return inputs, targets


class PooledBatches:
    """An endless cycle of synthetic batches, created in advance so that no step needs a loader."""

    # It never ends, since the first batch of an epoch would be late.
    epoch = 0

    def __init__(
        self, dataset: SyntheticDataset, *, batch: int, rank: int, pin_memory: bool
    ) -> None:
        samples = [dataset[slot] for slot in range(min(_POOL, len(dataset)))]
        generator = torch.Generator().manual_seed(SEED + rank)
        pool: list[Batch] = []
        for _ in range(max(_FEWEST_POOLED_BATCHES, _POOL // batch)):
            slots = torch.randint(len(samples), (batch,), generator=generator).tolist()
            made = default_collate([samples[slot] for slot in slots])
            pool.append(map_tensors(torch.Tensor.pin_memory, made) if pin_memory else made)
        self._pool, self._are_pinned = cycle(pool), pin_memory

    def __next__(self) -> Batch:
        batch = next(self._pool)
        # A GPU gets a copy anyway; on a CPU, an in-place operation could change the pool.
        return batch if self._are_pinned else map_tensors(torch.Tensor.clone, batch)


class LoadedBatches:
    """Batches that a DataLoader loads from a dataset, epoch after epoch."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch: int,
        rank: int,
        world_size: int,
        workers: int,
        pin_memory: bool,
    ) -> None:
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=SEED, drop_last=True
        )
        self._loader: DataLoader[Batch] = DataLoader(
            dataset,
            batch_size=batch,
            sampler=self._sampler,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            # By default a worker checks every five seconds whether its rank is alive. Until then it
            # would hold the device of a crashed rank, which in exclusive mode blocks the next run.
            worker_init_fn=lambda worker: die_with_parent(),
            # Workers of a fork server would outlive the rank, and each would first import torch.
            multiprocessing_context="fork" if workers else None,
            drop_last=True,
        )
        if len(self._loader) == 0:
            raise CaseError(
                f"a batch of {batch} on each of {world_size} ranks is larger than the data; "
                "choose a smaller size or fewer GPUs"
            )
        self.epoch = 0
        self._iterator: Iterator[Batch] = iter(self._loader)

    def __next__(self) -> Batch:
        try:
            return next(self._iterator)
        except StopIteration:
            self.epoch += 1
            self._sampler.set_epoch(self.epoch)
            self._iterator = iter(self._loader)
            return next(self._iterator)


Batches = PooledBatches | LoadedBatches
"""An endless stream of one rank's batches, in host memory; `epoch` counts completed epochs."""


def real_dataset(case: TrainingCase, request: RunRequest) -> Dataset[Any]:
    """Load real data from `--data-root`, downloading it if allowed; raise CaseError on failure."""
    root = Path(request.data_root or "")
    try:
        return case.real_dataset(root, case.size, download=request.download)
    except (OSError, RuntimeError) as error:
        raise CaseError(
            f"--data-root {root}: no data of {case.name()} there ({error}); put them there, or add "
            "--download if the case can fetch them"
        ) from error


def training_batches(
    case: TrainingCase, request: RunRequest, *, batch: int, rank: int, world_size: int
) -> Batches:
    """Return an endless stream of batches of `batch` samples for one of `world_size` ranks."""
    pin_memory = is_gpu(request.configuration.device)
    if request.configuration.data == "synthetic":
        return PooledBatches(SyntheticDataset(case), batch=batch, rank=rank, pin_memory=pin_memory)
    return LoadedBatches(
        SyntheticDataset(case) if request.data_root is None else real_dataset(case, request),
        batch=batch,
        rank=rank,
        world_size=world_size,
        workers=request.configuration.data_workers or 0,
        pin_memory=pin_memory,
    )
