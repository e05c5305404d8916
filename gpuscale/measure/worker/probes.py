"""Probe a job's nodes: the speed of devices, of copies, and of communication between nodes."""

import math
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gpuscale.base.host import cpu_numa_nodes, is_gpu
from gpuscale.measure.evidence.network import read_ports
from gpuscale.measure.run_directory import RunDirectory
from gpuscale.measure.worker.gpus import numa_node_of
from gpuscale.measure.worker.training import HALF_TYPES, cuda_device, set_fp32_mode
from gpuscale.records.probes import INSIDE, MATRIX, PAIR, SEND, NodeProbe, NodeProbeRequest, Probe

_BLOCKS, _KEPT = 20, 5
"""Number of blocks into which a probe's time is divided; the rates of the last `_KEPT` are used."""
_STEADY = 0.005
"""A rate is steady if two successive means of `_KEPT` blocks differ by less than this fraction."""
_CHUNK_BYTES, _MOST_READ_BYTES = 4 * 1024**2, 64 * 1024**2
_FLOAT_BYTES = 4
_REPEATS = 9
"""Number of timed repetitions of each message; up to a third may be delayed by chance."""

Work = tuple[Callable[[], object], float]
"""A function to repeat, and the work per call: bytes, floating-point operations or loops."""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that takes part in the probes, and the device of the rank."""

    request: NodeProbeRequest
    rank: int
    device: torch.device

    @property
    def node(self) -> int:
        return self.rank // self.request.ranks_per_node

    @property
    def local_rank(self) -> int:
        return self.rank % self.request.ranks_per_node

    def vector(self, size_bytes: int, *, on_host: bool = False) -> torch.Tensor:
        """Return zeros in device memory or, if `on_host`, in host memory (pinned for a GPU)."""
        size = size_bytes // _FLOAT_BYTES
        if on_host:
            return torch.zeros(size, pin_memory=self.device.type == "cuda")
        return torch.zeros(size, device=self.device)

    def time_s(self, call: Callable[[], object], calls: int = 1) -> float:
        """Call a function `calls` times; return the seconds until the device has done the work."""
        self.finish()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        self.finish()
        return time.perf_counter() - started

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def probe(self, name: str, rates: list[float], *, of_node: bool, **about: Any) -> Probe:
        """Return a Probe of the device, or of the node if `of_node`; `about` holds more fields."""
        of: dict[str, Any] = {}
        if not of_node:
            of["device"] = f"CPU rank {self.local_rank}"
            if self.device.type == "cuda":
                uuid = torch.cuda.get_device_properties(self.device).uuid
                of = {"device": f"GPU {self.local_rank}", "uuid": str(uuid)}
        return Probe(name=name, host=socket.gethostname(), rates=tuple(rates), **of, **about)


def probe(directory: str) -> None:
    """Carry out this rank's part of a probe request, write the results, and end this process."""
    run_directory, rank = RunDirectory(path=Path(directory)), int(os.environ["RANK"])
    request = run_directory.probe_request.read()
    torch.set_num_threads(1)
    set_fp32_mode(request.precision)
    on_gpu, here = is_gpu(request.device), rank % request.ranks_per_node
    devices = tuple(range(torch.cuda.device_count())) if on_gpu else ()
    place = _Place(request=request, rank=rank, device=cuda_device(devices, here))
    # Run before the process group exists, so that no rank waits for another while computing.
    found = list(_alone(place))
    patience = timedelta(seconds=request.timeout_s)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=patience)
    found += _together(place)
    seen = NodeProbe(
        host=socket.gethostname(),
        probes=tuple(found),
        ports=read_ports(),
        gpu_numa_nodes=tuple(map(numa_node_of, map(torch.cuda.get_device_properties, devices))),
        cpu_numa_nodes=cpu_numa_nodes(os.sched_getaffinity(0)),
    )
    run_directory.probe(rank).write(seen)
    # No rank may exit while another needs it: NCCL's sends return before they are complete, and
    # rank 0 hosts the store that other ranks query to open a connection.
    place.finish()
    dist.all_reduce(torch.zeros(1))
    # Skip destroying the group, which can hang (measure/worker/entry.py).
    os._exit(0)


def _core(place: _Place) -> Work:
    loops = range(20_000)
    return lambda: all(True for _ in loops), len(loops)


def _matrices(place: _Place) -> Work:
    size = 8192 if place.device.type == "cuda" else 256
    matrix = torch.rand(size, size, device=place.device)
    matrix = matrix.to(HALF_TYPES.get(place.request.precision, torch.float32))
    product = torch.empty_like(matrix)
    return lambda: torch.mm(matrix, matrix, out=product), 2 * size**3


def _copies(place: _Place, *, from_host: bool, to_host: bool) -> Work:
    size = (256 if place.device.type == "cuda" else 16) * 1024**2
    source, target = (place.vector(size, on_host=where) for where in (from_host, to_host))
    return lambda: target.copy_(source, non_blocking=True), size


def _storage(place: _Place) -> Work | None:
    """Return (function to read files uncached, their size); None if no files or local rank > 0."""
    root, files, size = place.request.data_root, list[Path](), 0
    if root is not None and place.local_rank == 0:
        for path in (Path(at, name) for at, _, names in os.walk(root) for name in sorted(names)):
            if size < _MOST_READ_BYTES and path.is_file():
                files.append(path)
                size += path.stat().st_size

    def read() -> None:
        for path in files:
            with path.open("rb", buffering=0) as file:
                with suppress(OSError):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(_CHUNK_BYTES):
                    pass

    return (read, size) if size else None


_ALONE: Mapping[str, Callable[[_Place], Work | None]] = {
    "core": _core,
    MATRIX: _matrices,
    "memory": partial(_copies, from_host=False, to_host=False),
    "host to device": partial(_copies, from_host=True, to_host=False),
    "device to host": partial(_copies, from_host=False, to_host=True),
    "storage": _storage,
}
"""Probes that a rank runs without other ranks; all ranks of a node run them at the same time."""


def _alone(place: _Place) -> Iterator[Probe]:
    request = place.request
    for name in request.names:
        if name in _ALONE and (work := _ALONE[name](place)) is not None:
            is_matrix = name == MATRIX
            rate = _steady_rate(place, work, request.seconds / (1 if is_matrix else 4))
            precision = (request.precision or "fp32") if is_matrix else None
            yield place.probe(name, [rate], of_node=name == "storage", precision=precision)


def _steady_rate(place: _Place, work: Work, limit_s: float) -> float:
    """Repeat work until the rate is steady or time is up; return the median of the last rates."""
    call, amount = work
    place.time_s(call)
    calls = max(1, math.ceil(limit_s / _BLOCKS / place.time_s(call)))
    rates, end_s = list[float](), time.monotonic() + limit_s
    while time.monotonic() < end_s or len(rates) < _KEPT:
        rates.append(calls * amount / place.time_s(call, calls))
        now, before = rates[-_KEPT:], rates[-2 * _KEPT : -_KEPT]
        if len(before) == _KEPT and abs(sum(now) / sum(before) - 1) < _STEADY:
            break
    return statistics.median(rates[-_KEPT:])


def _together(place: _Place) -> Iterator[Probe]:
    request, each = place.request, place.request.ranks_per_node
    hosts = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    if INSIDE in request.names and each > 1:
        yield from _all_reduces(place, INSIDE, place.node)
    for pairs in request.rounds:
        dist.all_reduce(torch.zeros(1))
        for pair in (pair for pair in pairs if place.node in pair):
            other = sum(pair) - place.node
            peer = hosts[other * each]
            if SEND in request.names:
                to = other * each + place.local_rank
                for sender in pair:
                    is_sender = sender == place.node
                    call = partial(_send if is_sender else _answer, to)
                    yield from _exchanges(place, SEND, call, reports=is_sender, peer=peer)
            if PAIR in request.names:
                yield from _all_reduces(place, PAIR, *pair, peer=peer)


def _send(to: int, message: torch.Tensor) -> None:
    dist.send(message, to)
    dist.recv(message[:1], to)


def _answer(to: int, message: torch.Tensor) -> None:
    dist.recv(message, to)
    dist.send(message[:1], to)


def _all_reduces(place: _Place, name: str, *nodes: int, **about: Any) -> Iterator[Probe]:
    """Time all-reduces among `nodes`: all ranks there must call this; the first yields probes."""
    each = place.request.ranks_per_node
    ranks = [node * each + local for node in sorted(nodes) for local in range(each)]
    group: Any = dist.new_group(ranks, use_local_synchronization=True)

    def call(message: torch.Tensor) -> None:
        dist.all_reduce(message, group=group)

    # One rank reports for all, since an all-reduce ends only when the slowest rank has ended.
    return _exchanges(place, name, call, reports=place.rank == ranks[0], of_node=True, **about)


def _exchanges(
    place: _Place,
    name: str,
    call: Callable[[torch.Tensor], None],
    *,
    reports: bool,
    of_node: bool = False,
    **about: Any,
) -> Iterator[Probe]:
    for size in place.request.message_bytes:
        repeated = partial(call, place.vector(size))
        # The first repetition opens connections.
        rates = [size / place.time_s(repeated) for _ in range(_REPEATS + 1)][1:]
        if reports:
            yield place.probe(name, rates, of_node=of_node, message_bytes=size, **about)
