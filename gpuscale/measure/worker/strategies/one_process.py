"""Strategies whose single process drives all devices."""

from gpuscale.measure.worker.strategies import Strategy, cuda_device
from gpuscale.records import RunRequest


class OneProcessStrategy(Strategy):
    """A single process with all devices: nobody to wait for, and one set of parameters."""

    rank = 0
    local_rank = 0
    world_size = 1

    def __init__(self, request: RunRequest) -> None:
        self.device = cuda_device(request.devices, 0)
        self.devices = request.devices

    def barrier(self) -> None:
        """Return at once: there is one process."""

    def largest(self, value: float) -> float:
        """The value itself: there is one process."""
        return value
