"""The table of what a run measures by name: a new metric is one entry of `METRICS`."""

from collections.abc import Mapping

import msgspec

STEP_TIME = "step_time_s"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one metric of one row: fractions of it, or `in_points` of the step time."""

    margin: float
    """A change to the worse up to this is never called a regression."""
    ok_bound: float
    """ok means that the 95% upper bound of the change to the worse lies below this."""
    allocation_deviation: float
    """Declared standard deviation between allocations."""


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One number that a run measures."""

    name: str
    """Its key in `Run.measured` and in tolerances, with its unit."""
    unit: str
    words: str
    short: str
    """One word of them, for a table's row."""
    worse: str
    """The finding of a row in which it got worse, in words."""
    bounds: tuple[float, float]
    more_is_better: bool = False
    limits: Limits | None = None
    """The limits unless a site overrides them; None for the step time, whose limits a site sets."""
    in_points: bool = False
    """It is judged as a part of the baseline's step time, since it may be 0."""


METRICS = (
    MetricSpec(
        name=STEP_TIME,
        unit="s",
        words="step time",
        short="time",
        worse="slower training",
        bounds=(1e-18, 1e9),
    ),
    MetricSpec(
        name="exposed_communication_s",
        unit="s",
        words="exposed communication",
        short="communication",
        worse="more exposed communication",
        bounds=(-1e9, 1e9),
        # Both halves of a run share its nodes, as both ends of a speedup do.
        limits=Limits(margin=0.02, ok_bound=0.05, allocation_deviation=0.005),
        in_points=True,
    ),
    MetricSpec(
        name="peak_memory_bytes",
        unit="bytes",
        words="peak memory",
        short="memory",
        worse="more memory",
        bounds=(0, 2**60),
        # A library's choice of algorithm moves it a little from one start to another.
        limits=Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.005),
    ),
    MetricSpec(
        name="energy_per_sample_j",
        unit="J",
        words="energy per sample",
        short="energy",
        worse="more energy per sample",
        bounds=(0, 1e15),
        # GPUs of one model draw several percent more or less for the same work.
        limits=Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.02),
    ),
)
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}


def measured_problem(measured: Mapping[str, float]) -> str | None:
    """Says what is wrong with measured values by name; None where nothing is."""
    for name, value in measured.items():
        metric = METRICS_BY_NAME.get(name)
        if metric is None:
            return f"unknown metric '{name}'; known are {', '.join(METRICS_BY_NAME)}"
        low, high = metric.bounds
        if not low <= value <= high:
            return f"{name} is expected between {low:.12g} and {high:.12g}, found {value:.12g}"
    return None
