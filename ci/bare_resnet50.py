"""Train ResNet-50 in a bare loop: images/s with a batch copied in each step, and without copies."""

import argparse
import statistics
import time

import torch

from bench_cases.test_resnet50 import Resnet50
from gpuscale.measure.worker.training import set_fp32_mode

BARE_SECONDS = 5.0


def bare_images_per_s(
    device: str, *, size_name: str, precision: str, channels_last: bool
) -> tuple[float, float]:
    """Return the images/s of two bare loops, each the median of three measurements.

    The first loop copies the batch to the device in every step; the second keeps the batch there.
    """
    # As in the ranks of a run.
    torch.set_num_threads(1)
    set_fp32_mode("fp32")
    case = Resnet50()
    size = case.named_size(size_name)
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = case.model().to(device).to(memory_format=form)
    optimizer = case.optimizer(model, 1)
    host_inputs = torch.rand(size.batch, *size.sample_shape)
    host_targets = torch.randint(case.classes, (size.batch,))
    if device == "cuda":
        host_inputs, host_targets = host_inputs.pin_memory(), host_targets.pin_memory()

    def on_device() -> tuple[torch.Tensor, torch.Tensor]:
        inputs = host_inputs.to(device, non_blocking=True, memory_format=form)
        return inputs, host_targets.to(device, non_blocking=True)

    resident = on_device()

    def steps(count: int, *, copies: bool = True) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            inputs, targets = on_device() if copies else resident
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                loss = case.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count

    steps(10)
    count = max(3, round(BARE_SECONDS / steps(3)))
    copying, staying = (
        size.batch / statistics.median(steps(count, copies=copies) for _ in range(3))
        for copies in (True, False)
    )
    return copying, staying


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True)
    parser.add_argument("--size", help="default: full on a GPU, smoke on the CPU")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    asked = parser.parse_args()
    paces = bare_images_per_s(
        asked.device,
        size_name=asked.size or ("full" if asked.device == "cuda" else "smoke"),
        precision=asked.precision,
        channels_last=asked.channels_last,
    )
    print(*paces)  # noqa: T201 - its one result
