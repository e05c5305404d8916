"""Being slow on purpose on CUDA, on made time."""

import pytest
import torch

from gpuscale.measure.worker import faults
from gpuscale.measure.worker.faults import Faults
from gpuscale.workload.injections import parse_injection

HERTZ = 1e9


class MadeTime:
    """A host and a device that each have their own work, side by side."""

    host_s = 0.0
    device_s = 0.0

    def perf_counter(self) -> float:
        return self.host_s

    def sleep(self, seconds: float) -> None:
        self.host_s += seconds

    def spin(self, cycles: int) -> None:
        self.device_s = max(self.device_s, self.host_s) + cycles / HERTZ

    def step(self, asked: Faults, *, host_s: float, device_s: float) -> None:
        asked.begin_forward()
        self.host_s += host_s
        self.device_s = max(self.device_s, self.host_s) + device_s
        asked.end_forward()


@pytest.mark.parametrize(("host_s", "device_s"), [(0.002, 0.01), (0.01, 0.002), (0.01, 0.01)])
def test_a_rank_is_slower_by_its_factor_whether_its_host_or_its_gpu_sets_the_pace(
    monkeypatch: pytest.MonkeyPatch, host_s: float, device_s: float
) -> None:
    time = MadeTime()
    monkeypatch.setattr(faults, "time", time)
    monkeypatch.setattr(faults, "_cycles_per_second", lambda device: HERTZ)
    monkeypatch.setattr(torch.cuda, "_sleep", time.spin)
    asked = Faults([parse_injection("compute=1.5")], rank=0, device=torch.device("cuda", 0))
    asked.know_pace(0.01)
    for _ in range(100):
        time.step(asked, host_s=host_s, device_s=device_s)
    per_step_s = max(time.host_s, time.device_s) / 100
    assert per_step_s == pytest.approx(0.015, rel=0.02)
