"""Batches without end: from a pool made once, or samples through a DataLoader."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from gpuscale.cases import Size, TrainingCase
from gpuscale.errors import CaseError
from gpuscale.host import die_with_parent
from gpuscale.records import RunRequest

Batch = tuple[torch.Tensor, torch.Tensor]

# So many samples are generated and then shared by all indices: at ImageNet's size the
# generator would otherwise be what is measured.
_POOL = 64
_FEWEST_POOLED_BATCHES = 2
_BATCHES_IN_ADVANCE = 2
_SHARED_MEMORY = Path("/dev/shm")
_MIB = 2**20
_SEED = 42


class SyntheticDataset(Dataset[tuple[Any, int]]):
    """A deterministic, learnable stand-in for a case's data.

    Where the case names a raw image shape, samples are PIL images that pass through the case's
    own transforms, as a file's would; otherwise they are float tensors of its sample shape.
    Each class has a pattern of its own under noise, so that the loss falls as in real training.
    """

    def __init__(self, case: TrainingCase, size: Size) -> None:
        self._length = case.training_samples
        self._classes = case.classes
        self._transform = case.transform(size)
        shape = case.raw_image_shape if self._transform else size.sample_shape
        if shape is None:
            raise CaseError(f"{case.name()}: a case with transforms needs raw_image_shape")
        self._samples = torch.stack([self._generate(slot, shape) for slot in range(_POOL)])

    def _generate(self, slot: int, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(slot % self._classes)
        pattern = torch.rand(shape, generator=generator)
        noise = torch.rand(shape, generator=generator.manual_seed(self._classes + slot))
        sample = (pattern + noise) / 2
        return (sample * 255).to(torch.uint8) if self._transform else sample

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        slot = index % _POOL
        sample = self._samples[slot]
        if self._transform:
            from PIL import Image

            return self._transform(Image.fromarray(sample.numpy())), slot % self._classes
        return sample, slot % self._classes


class Batches(Protocol):
    """An endless iterator over one rank's share of the data."""

    epoch: int
    """Epochs that have ended."""

    def __next__(self) -> Batch:
        """The next batch, in host memory."""
        ...


class PooledBatches:
    """Batches of synthetic samples that are made once, so that no loader takes part in a step.

    Each rank has others. They have no end of an epoch, whose first batch comes late.
    """

    epoch = 0

    def __init__(
        self, dataset: SyntheticDataset, *, batch: int, rank: int, pin_memory: bool
    ) -> None:
        samples = [dataset[slot] for slot in range(min(_POOL, len(dataset)))]
        generator = torch.Generator().manual_seed(_SEED + rank)
        self._pool: list[Batch] = []
        for _ in range(max(_FEWEST_POOLED_BATCHES, _POOL // batch)):
            slots = torch.randint(len(samples), (batch,), generator=generator).tolist()
            inputs, targets = default_collate([samples[slot] for slot in slots])
            if pin_memory:
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            self._pool.append((inputs, targets))
        self._pinned = pin_memory
        self._given = 0

    def __next__(self) -> Batch:
        inputs, targets = self._pool[self._given % len(self._pool)]
        self._given += 1
        # The copy to a GPU leaves the pool as it is. A CPU rank has none, and a model that works
        # in place would change the samples.
        return (inputs, targets) if self._pinned else (inputs.clone(), targets.clone())


class LoadedBatches:
    """Batches of a dataset through a DataLoader, epoch after epoch."""

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
            dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=_SEED, drop_last=True
        )
        self._loader: DataLoader[Batch] = DataLoader(
            dataset,
            batch_size=batch,
            sampler=self._sampler,
            num_workers=workers,
            pin_memory=pin_memory,
            persistent_workers=workers > 0,
            prefetch_factor=_BATCHES_IN_ADVANCE if workers else None,
            worker_init_fn=_end_with_rank,
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


def refuse_small_shared_memory(
    dataset: Dataset[Any], *, batch: int, workers: int, ranks: int, free_bytes: int
) -> None:
    """Checks that batches can be handed over from loader processes to the ranks of this node.

    A worker that writes past the end is killed by SIGBUS, which names no reason.

    Raises:
        CaseError: `free_bytes` of shared memory do not hold the batches that are made in advance.
    """
    sample = default_collate([dataset[0]])
    batch_bytes = batch * sum(t.nbytes for t in sample if isinstance(t, torch.Tensor))
    needed_bytes = ranks * workers * _BATCHES_IN_ADVANCE * batch_bytes
    if needed_bytes > free_bytes:
        raise CaseError(
            f"{_SHARED_MEMORY} has {free_bytes / _MIB:.1f} MiB free, and the loaders of this node "
            f"need {needed_bytes / _MIB:.1f} MiB; give the container more "
            "(--shm-size, or --ipc=host), or choose fewer --data-workers"
        )


def _end_with_rank(worker: int) -> None:
    # By itself a worker looks for its rank every five seconds; until then it would hold the
    # device of a rank that crashed, and in exclusive mode the next run could not have it.
    die_with_parent()


def real_dataset(
    case: TrainingCase, request: RunRequest, size: Size, *, download: bool
) -> Dataset[Any]:
    """The case's real data below `--data-root`."""
    root = Path(request.data_root or "")
    try:
        return case.real_dataset(root, size, download=download)
    except (OSError, RuntimeError) as error:
        remedy = (
            "fetch the data by other means, and leave out --download"
            if download
            else "lay them there, or add --download where the case can"
        )
        raise CaseError(
            f"--data-root {root}: no data of {case.name()} there ({error}); {remedy}"
        ) from error


def training_batches(
    case: TrainingCase, request: RunRequest, size: Size, *, batch: int, rank: int, world_size: int
) -> Batches:
    """The batches that one rank trains on, from the source that its configuration names."""
    pin_memory = request.configuration.device == "cuda"
    if request.configuration.data == "synthetic":
        synthetic = SyntheticDataset(case, size)
        return PooledBatches(synthetic, batch=batch, rank=rank, pin_memory=pin_memory)
    dataset: Dataset[Any]
    if request.data_root is None:
        dataset = SyntheticDataset(case, size)
    else:
        dataset = real_dataset(case, request, size, download=request.download)
    workers = request.configuration.data_workers or 0
    if workers and _SHARED_MEMORY.is_dir():
        refuse_small_shared_memory(
            dataset,
            batch=batch,
            workers=workers,
            ranks=min(world_size, len(request.devices) or world_size),
            free_bytes=shutil.disk_usage(_SHARED_MEMORY).free,
        )
    return LoadedBatches(
        dataset,
        batch=batch,
        rank=rank,
        world_size=world_size,
        workers=workers,
        pin_memory=pin_memory,
    )
