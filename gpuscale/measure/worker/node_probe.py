"""Probe the nodes of a job: measure how fast each node computes and each pair communicates."""

import os
import socket
import timeit
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from gpuscale.base.devices import is_gpu
from gpuscale.base.host import die_with_parent
from gpuscale.measure.evidence.network import read_ports
from gpuscale.measure.evidence.numa import cpu_numa_nodes
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker.machine import numa_node_of
from gpuscale.measure.worker.strategies import cuda_device
from gpuscale.records import NodeProbe
from gpuscale.records.request import NodeProbeRequest, SendTime

_GPU_MATRIX = 4096
_CPU_MATRIX = 512
_COMPUTATIONS = 15
_FLOAT_BYTES = 4


def probe(directory: str) -> None:
    """Probe this node, as one of the ranks that carry out the request in the directory."""
    die_with_parent()
    run_directory, rank = RunDirectory(path=Path(directory)), int(os.environ["RANK"])
    request = run_directory.probe_request.read()
    torch.set_num_threads(1)
    on_gpu = is_gpu(request.device)
    device = cuda_device((0,) if on_gpu else (), 0)
    # Before the process group: no rank waits for another while it computes.
    compute_s = tuple(_compute_times(on_gpu))
    patience = timedelta(seconds=request.timeout_s)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=patience)
    sends = tuple(_send_times(request, rank, dist.get_world_size(), device))
    seen = NodeProbe(
        host=socket.gethostname(),
        compute_s=compute_s,
        sends=sends,
        ports=read_ports(),
        gpu_numa_nodes=_gpu_numa_nodes() if on_gpu else (),
        cpu_numa_nodes=cpu_numa_nodes(os.sched_getaffinity(0)),
    )
    run_directory.probe(rank).write(seen)
    # No rank may exit while another needs it: NCCL's sends return before they are made, and the
    # first rank keeps the store that the others ask when they open a connection.
    if on_gpu:
        torch.cuda.synchronize(device)
    dist.all_reduce(torch.zeros(1))
    # Destroying the group can hang (measure/worker/entry.py); everything is written.
    os._exit(0)


def _gpu_numa_nodes() -> tuple[int | None, ...]:
    properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(map(numa_node_of, properties))


def _rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Arrange all pairs of nodes in rounds in which no node occurs twice (the circle method)."""
    places = [*range(nodes), *([-1] if nodes % 2 else [])]
    table = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        table.append([(min(pair), max(pair)) for pair in pairs if min(pair) >= 0])
        places = [places[0], places[-1], *places[1:-1]]
    return table


def _compute_times(on_gpu: bool) -> Iterator[float]:
    size, devices = _CPU_MATRIX, [torch.device("cpu")]
    if on_gpu:
        size = _GPU_MATRIX
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    for device in devices:
        matrix = torch.rand(size, size, device=device)

        def work(matrix: torch.Tensor = matrix) -> None:
            # Reading the result on the host waits until it is there.
            float(torch.mm(matrix, matrix)[0, 0].item())

        yield _shortest(work, _COMPUTATIONS)


def _send_times(
    request: NodeProbeRequest, rank: int, nodes: int, device: torch.device
) -> Iterator[SendTime]:
    message = torch.zeros(request.message_bytes // _FLOAT_BYTES, device=device)
    receipt = torch.zeros(1, device=device)

    def send(peer: int) -> None:
        dist.send(message, peer)
        dist.recv(receipt, peer)
        float(receipt.item())

    def answer(peer: int) -> None:
        dist.recv(message, peer)
        dist.send(receipt, peer)

    for pairs in _rounds(nodes):
        dist.all_reduce(torch.zeros(1))
        for pair in pairs:
            if rank not in pair:
                continue
            peer = sum(pair) - rank
            # Each direction in turn; the lower rank sends first.
            for sender in pair:
                if sender == rank:
                    yield SendTime(to=peer, time_s=_shortest(partial(send, peer), request.repeats))
                else:
                    _shortest(partial(answer, peer), request.repeats)


def _shortest(work: Callable[[], None], times: int) -> float:
    """Return the seconds of the fastest of several repetitions, after one untimed repetition."""
    work()
    return min(timeit.repeat(work, number=1, repeat=times))
