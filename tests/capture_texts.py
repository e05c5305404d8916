"""Writes how the installed torch words what gpuscale recognises, into tests/data/torch_texts.json.

    python tests/capture_texts.py

in an environment with that torch alone; it needs no gpuscale. They are read by
test_known_error_messages.py.
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
    found = {
        "lost peer": {"gone": gone, "late": late, "store": store},
        "out of memory": {"allocator": allocator, "convolution": convolution},
    }
    kept = json.loads(SAMPLES.read_text()) if SAMPLES.exists() else {}
    kept[torch.__version__.split("+")[0]] = found
    SAMPLES.write_text(json.dumps(dict(sorted(kept.items())), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
