"""One rank a node: how fast it computes, and how fast each pair of nodes communicates."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from gpuscale.encoding import from_json, to_json
from gpuscale.records import NodeProbe, NodeProbeRequest, SendTime
from gpuscale.run_directory import RunDirectory, write_atomically
from gpuscale.worker.lifeline import die_with_parent

_GPU_MATRIX = 4096
_CPU_MATRIX = 512
_COMPUTATIONS = 15
_BYTES_OF_A_FLOAT = 4


def main(directory: str, device: str) -> None:
    """Be the rank of this node, and leave its NodeProbe; `device` is `cuda` or `cpu`."""
    die_with_parent()
    run_directory = RunDirectory(path=Path(directory))
    request = from_json(NodeProbeRequest, run_directory.request.read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    on_gpu = device == "cuda"
    where = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    # Alone first: no rank waits for another while it computes.
    compute_s = tuple(_compute_times(on_gpu))
    patience = timedelta(seconds=request.timeout_s)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=patience)
    probe = NodeProbe(
        host=socket.gethostname(),
        compute_s=compute_s,
        sends=tuple(_send_times(request, rank, dist.get_world_size(), where)),
    )
    write_atomically(run_directory.outcome(rank), to_json(probe))
    _wait_for_all(where)
    # A group that is taken down can hang (worker/entry.py); everything is written.
    os._exit(0)


def _wait_for_all(where: torch.device) -> None:
    """Return once no rank needs another any more.

    NCCL's sends come back before they are made, and the first rank keeps the store that the
    others ask when they open a connection.
    """
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    dist.all_reduce(torch.zeros(1))


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which no node is in two pairs (the circle method)."""
    places = [*range(nodes), *([-1] if nodes % 2 else [])]
    table = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        table.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        places = [places[0], places[-1], *places[1:-1]]
    return table


def _compute_times(on_gpu: bool) -> Iterator[float]:
    devices = range(torch.cuda.device_count()) if on_gpu else (None,)
    size = _GPU_MATRIX if on_gpu else _CPU_MATRIX
    for index in devices:
        device = torch.device("cpu") if index is None else torch.device("cuda", index)
        matrix = torch.rand(size, size, device=device)

        def work(matrix: torch.Tensor = matrix) -> None:
            # The read brings the result to the host, so that it is there.
            float(torch.mm(matrix, matrix)[0, 0].item())

        yield _shortest(work, _COMPUTATIONS)


def _send_times(
    request: NodeProbeRequest, rank: int, nodes: int, where: torch.device
) -> Iterator[SendTime]:
    message = torch.zeros(request.message_bytes // _BYTES_OF_A_FLOAT, device=where)
    receipt = torch.zeros(1, device=where)

    def send(peer: int) -> None:
        dist.send(message, peer)
        dist.recv(receipt, peer)
        float(receipt.item())

    def answer(peer: int) -> None:
        dist.recv(message, peer)
        dist.send(receipt, peer)

    for pairs in rounds(nodes):
        dist.all_reduce(torch.zeros(1))
        for pair in pairs:
            if rank not in pair:
                continue
            peer = sum(pair) - rank
            # Each way in turn, the lower one first.
            for sender in pair:
                if sender == rank:
                    yield SendTime(to=peer, time_s=_shortest(partial(send, peer), request.repeats))
                else:
                    _shortest(partial(answer, peer), request.repeats)


def _shortest(work: Callable[[], None], times: int) -> float:
    """Seconds of the quickest of several times, after a first one that does not count."""
    work()
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
