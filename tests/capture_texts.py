"""Writes how the installed torch words what gpuscale recognises, into tests/data/torch_texts.json.

    python tests/capture_texts.py

in an environment with that torch alone; it needs no gpuscale. test_foreign_texts.py reads them.
"""

import json
import multiprocessing
import os
import resource
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SAMPLES = Path(__file__).parent / "data" / "torch_texts.json"
PEER_S = 3.0
MEMORY_BYTES = 2**29


def shapes(device: str) -> dict[str, Callable[[], Any]]:
    """Errors of mismatched shapes, by the operation that raises them."""
    functional = nn.functional
    made: dict[str, Any] = {"device": device}

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, **made)

    def indices(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.long, **made)

    return {
        "linear": lambda: nn.Linear(16, 10, **made)(zeros(2, 64)),
        "linear of a vector": lambda: nn.Linear(4, 10, **made)(zeros(5)),
        "linear without bias": lambda: nn.Linear(4, 10, bias=False, **made)(zeros(2, 5)),
        "bmm": lambda: torch.bmm(zeros(2, 3, 4), zeros(3, 4, 5)),
        "conv, channels": lambda: nn.Conv2d(3, 10, 3, **made)(zeros(2, 1, 9, 9)),
        "conv, dimensions": lambda: nn.Conv2d(3, 10, 3, **made)(zeros(2, 9)),
        "conv, kernel": lambda: nn.Conv2d(3, 10, 9, **made)(zeros(2, 3, 4, 4)),
        "transposed conv": lambda: nn.ConvTranspose2d(3, 10, 3, **made)(zeros(2, 1, 9, 9)),
        "pool": lambda: nn.MaxPool2d(4)(zeros(2, 3, 2, 2)),
        "batch norm, dimensions": lambda: nn.BatchNorm2d(4, **made)(zeros(2, 4)),
        "batch norm, channels": lambda: nn.BatchNorm2d(4, **made)(zeros(2, 5, 3, 3)),
        "group norm": lambda: nn.GroupNorm(2, 4, **made)(zeros(2, 6, 3, 3)),
        "layer norm": lambda: nn.LayerNorm(4, **made)(zeros(2, 5)),
        "lstm": lambda: nn.LSTM(4, 8, **made)(zeros(2, 3, 5)),
        "attention": lambda: nn.MultiheadAttention(8, 2, **made)(*[zeros(2, 3, 6)] * 3),
        "sum": lambda: zeros(2, 3) + zeros(2, 4),
        "cat": lambda: torch.cat([zeros(2, 3), zeros(3, 4)]),
        "view": lambda: zeros(2, 3).view(4, 4),
        "unflatten": lambda: nn.Unflatten(1, (2, 2))(zeros(2, 5)),
        "cross entropy, batch": lambda: functional.cross_entropy(zeros(4, 10), indices(2)),
        "cross entropy, size": lambda: functional.cross_entropy(zeros(2, 3, 10), indices(2)),
        "binary cross entropy": lambda: functional.binary_cross_entropy(zeros(2, 3), zeros(2, 4)),
        "with logits": lambda: functional.binary_cross_entropy_with_logits(
            zeros(2, 3), zeros(2, 4)
        ),
        "l1": lambda: functional.l1_loss(zeros(2, 3), zeros(2, 4)),
    }


def of_cpu() -> dict[str, Callable[[], Any]]:
    return {
        "multi-target": lambda: nn.functional.nll_loss(
            torch.zeros(2, 10), torch.zeros(2, 3).long()
        ),
        "out of bounds": lambda: nn.functional.cross_entropy(
            torch.zeros(2, 10), torch.full((2,), 19)
        ),
    }


def said_by(work: Callable[[], Any]) -> str | None:
    try:
        work()
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        return f"{type(error).__name__}: {text}"
    return None


def out_of_memory(results: Any) -> None:
    """Allocate more than a limited process may, at once and by convolutions."""
    torch.set_num_threads(1)
    conv = nn.Conv2d(64, 64, 3)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    results.put(said_by(lambda: torch.empty(2**40)))
    images = torch.zeros(1, 64, 900, 900)
    results.put(said_by(lambda: [conv(images) for _ in iter(list, 0)] and None))


def lose_peer(rank: int, port: int, results: Any, *, hangs: bool) -> None:
    """Reduce with a rank that has died, or does not answer."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    patience = timedelta(seconds=PEER_S)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=patience)
    dist.barrier()
    if rank == 1:
        if hangs:
            multiprocessing.Event().wait(4 * PEER_S)
        os._exit(1)
    results.put(said_by(lambda: [dist.all_reduce(torch.zeros(9)) for _ in range(99)]))
    # The store of a rank that is gone: here of nobody.
    wait = timedelta(seconds=1)
    store = ("127.0.0.1", 1, 2, False, wait)
    results.put(said_by(lambda: dist.TCPStore(*store)))  # type: ignore[attr-defined]
    os._exit(0)


def answers(number: int, *targets: tuple[Callable[..., None], tuple[Any, ...], Any]) -> list[Any]:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=target, args=(*arguments, results), kwargs=named)
        for target, arguments, named in targets
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in range(number)]
    for process in processes:
        process.kill()
        process.join()
    return found


def with_lost_peer(*, hangs: bool) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [(lose_peer, (rank, port), {"hangs": hangs}) for rank in (0, 1)]
    return answers(2, *ranks)


def main() -> None:
    gone, store = with_lost_peer(hangs=False)
    late, _ = with_lost_peer(hangs=True)
    allocator, convolution = answers(2, (out_of_memory, (), {}))
    on_cpu = {**shapes("cpu"), **of_cpu()}
    found = {
        "shapes": {
            **{f"{name} (meta)": said_by(work) for name, work in shapes("meta").items()},
            **{name: said_by(work) for name, work in on_cpu.items()},
        },
        "lost peer": {"gone": gone, "late": late, "store": store},
        "out of memory": {"allocator": allocator, "convolution": convolution},
    }
    kept = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}
    kept[torch.__version__.split("+")[0]] = found
    SAMPLES.write_text(json.dumps(dict(sorted(kept.items())), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
