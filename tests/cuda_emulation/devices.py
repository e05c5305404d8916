"""CUDA devices that are not there, with the names of `torch.cuda` for what can be asked of them.

Work is done at once; but an event can be read only once the host has waited for its device.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

UUIDS = (
    "00000000-aaaa-4000-8000-000000000000",
    "11111111-bbbb-4000-8000-000000000001",
    "22222222-cccc-4000-8000-000000000002",
    "33333333-dddd-4000-8000-000000000003",
)
"""The first devices of the NVML library of the tests (tests/nvml/fake_nvml.c)."""
COUNT = int(os.environ.get("EMULATED_CUDA_DEVICES", "2"))
CAPABILITY = tuple(map(int, os.environ.get("EMULATED_CUDA_CAPABILITY", "8.0").split(".")))
ROCM_TARGET = os.environ.get("EMULATED_ROCM")
"""Such as `gfx90a`: torch then is one for ROCm."""
LARGEST_SIDE = int(os.environ.get("EMULATED_LARGEST_SIDE", str(2**31)))
"""The most rows and columns of a random matrix, since the CPU has to multiply it."""

of_thread = threading.local()
_pid_of_cuda: int | None = None
_live_bytes, _peak_bytes = [0] * COUNT, [0] * COUNT
_submitted, _done = [0] * COUNT, [0] * COUNT
"""Work of each device, and up to where the host knows it to be done."""


def memory_bytes() -> int:
    """The memory of each device, which may be set after the import."""
    return int(os.environ.get("EMULATED_CUDA_MEMORY", str(16 * 1024**3)))


def allocate(number: int, size_bytes: int) -> None:
    """Take memory of a device, if it has that much left."""
    if _live_bytes[number] + size_bytes > memory_bytes():
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size_bytes / 1024**2:.2f} MiB. GPU {number} "
            f"has a total capacity of {memory_bytes() / 1024**2:.2f} MiB"
        )
    _live_bytes[number] += size_bytes
    _peak_bytes[number] = max(_peak_bytes[number], _live_bytes[number])


def free(number: int, size_bytes: int) -> None:
    """Give it back."""
    _live_bytes[number] -= size_bytes


def submit(number: int) -> None:
    """Put work into a device's queue."""
    init()
    # The device on which all work fails.
    if os.environ.get("EMULATED_CUDA_LOST") == str(number):
        raise RuntimeError("CUDA error: unspecified launch failure")
    _submitted[number] += 1


def index_of(device: Any) -> int:
    """The number of a device as torch.cuda takes it: None, a number, a name or a device."""
    if device is None:
        return current_device()
    found = torch.device(device) if isinstance(device, str) else device
    number = found.index if isinstance(found, torch.device) else int(found)
    number = current_device() if number is None or number < 0 else number
    if number >= device_count():
        raise RuntimeError("CUDA error: invalid device ordinal")
    return int(number)


class Stream:
    """A queue of a device: everything is done at once, in the order in which it is asked."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device_index = index_of(device)
        self.device = torch.device("cuda", self.device_index)

    def wait_stream(self, stream: "Stream") -> None: ...

    def wait_event(self, event: "Event") -> None: ...

    def synchronize(self) -> None:
        synchronize(self.device_index)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """A mark in a queue, whose time can be read once the device is known to have come there."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._has_time = enable_timing
        self._device: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._device = current_device() if stream is None else stream.device_index
        submit(self._device)
        self._place, self._time_s = _submitted[self._device], time.perf_counter()

    def query(self) -> bool:
        return self._device is None or self._place <= _done[self._device]

    def wait(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None:
        if self._device is not None:
            _done[self._device] = max(_done[self._device], self._place)

    def elapsed_time(self, end: "Event") -> float:
        if not (self._has_time and end._has_time):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._device is None or end._device is None or self._device != end._device:
            raise RuntimeError("CUDA error: invalid resource handle")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return (end._time_s - self._time_s) * 1000


def visible() -> tuple[int, ...]:
    """The devices that `CUDA_VISIBLE_DEVICES` leaves, up to the first that is unknown."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(range(COUNT))
    found: list[int] = []
    for word in listed.split(","):
        uuids = [n for n, uuid in enumerate(UUIDS[:COUNT]) if f"GPU-{uuid}".startswith(word)]
        number = int(word) if word.isdigit() else next(iter(uuids if word else []), COUNT)
        if number >= COUNT:
            break
        found.append(number)
    return tuple(found)


def init() -> None:
    """Start CUDA in this process, which must not be the child of one that has."""
    global _pid_of_cuda
    if _pid_of_cuda not in (None, os.getpid()):
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        )
    if not visible():
        raise RuntimeError("No CUDA GPUs are available")
    _pid_of_cuda = os.getpid()


def device_count() -> int:
    return len(visible())


def current_device() -> int:
    init()
    return getattr(of_thread, "device", 0)


def set_device(device: Any) -> None:
    init()
    of_thread.device = index_of(device)


def synchronize(device: Any = None) -> None:
    init()
    number = index_of(device)
    _done[number] = _submitted[number]


def current_stream(device: Any = None) -> Stream:
    number = index_of(device)
    streams = of_thread.__dict__.setdefault("streams", {})
    found: Stream = streams.get(number) or streams.setdefault(number, Stream(number))
    return found


def set_stream(stream: Stream) -> None:
    of_thread.__dict__.setdefault("streams", {})[stream.device_index] = stream


@contextlib.contextmanager
def in_stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    earlier = current_stream(stream.device_index)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(earlier)


class on_device(contextlib.ContextDecorator):  # noqa: N801 - stands for torch.cuda.device
    """The current device for as long as the context lasts; -1 and None leave it."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._earlier = current_device()
        if self._device is not None and self._device != -1:
            set_device(self._device)

    def __exit__(self, *_: object) -> None:
        set_device(self._earlier)


def properties(device: Any = None) -> SimpleNamespace:
    init()
    number = visible()[index_of(device)]
    return SimpleNamespace(
        name=f"Emulated {'AMD' if ROCM_TARGET else 'NVIDIA'} GPU",
        uuid=UUIDS[number],
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=memory_bytes(),
        multi_processor_count=108,
        pci_domain_id=0,
        pci_bus_id=0xC1 + 5 * number,
        pci_device_id=0,
        gcnArchName=f"{ROCM_TARGET}:sramecc+:xnack-" if ROCM_TARGET else "",
    )


def capability(device: Any = None) -> tuple[int, int]:
    found = properties(device)
    return found.major, found.minor


IN_CUDA = {
    "Event": Event,
    "Stream": Stream,
    "_lazy_init": init,
    "current_device": current_device,
    "current_stream": current_stream,
    "default_stream": current_stream,
    "device": on_device,
    "device_count": device_count,
    "empty_cache": lambda: None,
    "get_arch_list": lambda: [ROCM_TARGET] if ROCM_TARGET else ["sm_70", "sm_80", "sm_90"],
    "get_device_capability": capability,
    "get_device_name": lambda device=None: properties(device).name,
    "get_device_properties": properties,
    "get_rng_state": lambda device=None: torch.get_rng_state(),
    "init": init,
    "is_available": lambda: device_count() > 0,
    "is_bf16_supported": lambda *_, **__: CAPABILITY >= (8, 0),
    "is_initialized": lambda: _pid_of_cuda == os.getpid(),
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "max_memory_allocated": lambda device=None: _peak_bytes[index_of(device)],
    "mem_get_info": lambda device=None: (
        memory_bytes() - _live_bytes[index_of(device)],
        memory_bytes(),
    ),
    "memory_allocated": lambda device=None: _live_bytes[index_of(device)],
    "memory_reserved": lambda device=None: _live_bytes[index_of(device)],
    "reset_peak_memory_stats": lambda device=None: None,
    "set_device": set_device,
    "set_rng_state": lambda state, device=None: None,
    "set_stream": set_stream,
    "stream": in_stream,
    "synchronize": synchronize,
    "_is_in_bad_fork": lambda: _pid_of_cuda not in (None, os.getpid()),
}
IN_ACCELERATOR = {
    "current_accelerator": lambda check_available=False: (
        torch.device("cuda") if device_count() else None
    ),
    "current_device_index": current_device,
    "current_stream": current_stream,
    "device_count": device_count,
    "device_index": on_device,
    "is_available": lambda: device_count() > 0,
    "set_device_index": set_device,
    "set_stream": set_stream,
    "synchronize": synchronize,
}
