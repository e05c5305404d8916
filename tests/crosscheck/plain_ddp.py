"""mnist_cnn under plain DDP, as torch's tutorial writes it: no part of gpuscale's worker.

    torchrun --nproc-per-node 2 tests/crosscheck/plain_ddp.py

Rank 0 prints the median over pairs of steps of seconds per step: gpuscale's windows of this case
hold two steps, and the median of single steps would leave out more of the slow ones. With
`--part N` it prints the mean over an Nth of an epoch of 51,000 images, divided among the ranks,
and the number of steps.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from bench_cases.test_mnist_cnn import MnistCnn
from gpuscale.measure.worker.data import SyntheticDataset

WARMUP_STEPS, STEPS = 8, 30


def main() -> None:
    """Train and time single steps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(42)
    case = MnistCnn()
    size = case.named_size("smoke")
    dataset = SyntheticDataset(case, size)
    loader = DataLoader(
        dataset, batch_size=size.batch, sampler=DistributedSampler(dataset), drop_last=True
    )
    part = int(sys.argv[sys.argv.index("--part") + 1]) if "--part" in sys.argv else None
    steps = len(loader) // part if part else WARMUP_STEPS + STEPS
    model = DistributedDataParallel(case.model())
    optimizer = case.optimizer(model, dist.get_world_size())
    times_s = []
    started = time.perf_counter()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        case.loss(model(images), labels).backward()
        optimizer.step()
        now = time.perf_counter()
        if part or step >= WARMUP_STEPS:
            times_s.append(now - started)
        started = now
        if step + 1 == steps:
            break
    if dist.get_rank() == 0 and part:
        print(f"{statistics.fmean(times_s):.6f} {len(times_s)}", flush=True)  # noqa: T201 - its one result
    elif dist.get_rank() == 0:
        pairs_s = [sum(pair) / 2 for pair in zip(times_s[::2], times_s[1::2], strict=True)]
        print(f"{statistics.median(pairs_s):.6f}", flush=True)  # noqa: T201 - its one result
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
