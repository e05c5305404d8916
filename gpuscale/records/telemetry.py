"""Telemetry of the GPUs of a run."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuscale.records.record import Count, Line, Name, Record
from gpuscale.telemetry.fields import values_problem

Share = Annotated[float, Meta(ge=0, le=1)]
# Names need no pattern, which takes ten times as long as to look for them in the table.
Values = Mapping[str, int | float]


class GpuWindow(Record, frozen=True, kw_only=True):
    """Telemetry of one device during one window."""

    samples: Count
    """With none, nothing else is known."""
    values: Values = msgspec.field(default_factory=dict)
    """As in `GpuSummary`, of those counters that windows have."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """As in `GpuSummary`."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise ValueError(problem)


class GpuSummary(Record, frozen=True, kw_only=True):
    """Telemetry of one device during a run's windows; None is what it did not offer."""

    uuid: Name
    name: Line | None = None
    samples: Count
    absent: tuple[Line, ...] = ()
    """Counters that could not be read, each with NVML's reason."""
    values: Values = msgspec.field(default_factory=dict)
    """Counters by the names of `gpuscale.telemetry.fields`, but for those that are not offered."""
    clock_event_reasons: Mapping[Line, Share] | None = None
    """Why clocks were held back, as nvidia-smi names it (`sw_power_cap`), each with its share
    of the samples; a reason that never held is left out, so none at all is an empty mapping."""
    xids: tuple[Count, ...] | None = None
    """The driver's error events, in order; empty where it reported none."""
    windows: tuple[GpuWindow, ...] = ()
    """One for each window of the run, in order."""

    def __post_init__(self) -> None:
        if problem := values_problem(self.values):
            raise ValueError(problem)

    def get(self, counter: str) -> float | None:
        """The value of a counter; None where it was not offered."""
        return self.values.get(counter)
