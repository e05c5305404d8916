"""The metrics of a run: measured by gpuscale itself, or defined by cases or other tools."""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpuscale.base.errors import FieldError
from gpuscale.records.record import Line, Name, Record

STEP_TIME = "step_time_s"
_LARGEST = 1e18


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on changes of a metric, as shares of its baseline value or, in points, of the step."""

    margin: float
    """Largest deterioration that is never called a regression."""
    ok_bound: float
    """A row is ok only if the 95% upper bound of the deterioration is below this limit."""
    allocation_deviation: float
    """Assumed relative standard deviation of the metric between allocations (0.01 is 1%)."""


class MetricSpec(msgspec.Struct, frozen=True):
    """Definition of a metric with one value per run; lower values are better."""

    name: str
    """Key in `Run.measured` and in tolerances; the name ends with the unit."""
    unit: str
    words: str
    short: str
    """One-word name for tables."""
    worse: str
    """Wording for a finding that the metric got worse, such as `slower training`."""
    bounds: tuple[float, float]
    limits: Limits | None = None
    """Default limits; None for the step time, whose limits are in `Tolerances`."""
    in_points: bool = False
    """True if changes are stated relative to the baseline's step time, as the metric may be 0."""


class OpenMetric(Record, frozen=True, kw_only=True):
    """A metric that a program prints or another tool records, judged instead of the step time.

    Its values are positive; its name usually ends with the unit: `busbw_gb_s`.
    """

    name: Name
    unit: Line = ""
    more_is_better: bool
    scaling: Literal["rate", "weak", "strong"] | None = None
    """Relation of the metric to speedup: a rate over all GPUs, or a time for the same work per GPU
    (weak) or in total (strong); None if the metric gives no speedup."""

    def __post_init__(self) -> None:
        if self.scaling is not None and self.more_is_better != (self.scaling == "rate"):
            raise FieldError("scaling", "more of a rate is better, and less of a time")

    def __str__(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def work(self, gpus: int) -> int:
        """Return the work relative to 1 GPU: `gpus` for a rate or weak scaling, otherwise 1."""
        return gpus if self.scaling in ("rate", "weak") else 1

    def cost(self, value: float, gpus: int) -> float:
        """Convert a value to a cost (lower is better); the same formula converts a cost back."""
        return self.work(gpus) / value if self.more_is_better else value


# The formatter would break up the rows of the table.
# fmt: off
METRICS = (
    # name, unit, words, short, worse, bounds, limits
    MetricSpec(STEP_TIME, "s", "step time", "time", "slower training", (1e-18, 1e9)),
    # Windows with and without communication use the same nodes, like both runs of a speedup.
    MetricSpec("exposed_communication_s", "s", "exposed communication", "communication",
               "more exposed communication", (-1e9, 1e9),
               Limits(margin=0.02, ok_bound=0.05, allocation_deviation=0.005), in_points=True),
    # A library's choice of algorithm changes the peak a little between starts.
    MetricSpec("peak_memory_bytes", "bytes", "peak memory", "memory", "more memory", (0, 2**60),
               Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.005)),
    # The power of GPUs of one model differs by several percent for the same work.
    MetricSpec("energy_per_sample_j", "J", "energy per sample", "energy", "more energy per sample",
               (0, 1e15), Limits(margin=0.05, ok_bound=0.10, allocation_deviation=0.02)),
)
# fmt: on
METRICS_BY_NAME = {metric.name: metric for metric in METRICS}


def validate_measured(measured: Mapping[str, float], own: OpenMetric | None) -> None:
    """Raise a FieldError for unknown metrics or bad values; `own` is the case's metric, if any."""
    for name, value in measured.items():
        if own is not None and name == own.name:
            if not 0 < value <= _LARGEST:
                raise FieldError("", f"{name} is expected above 0, found {value:.12g}")
            continue
        if (metric := METRICS_BY_NAME.get(name)) is None:
            raise FieldError("", f"unknown metric '{name}'; known are {', '.join(METRICS_BY_NAME)}")
        low, high = metric.bounds
        if not low <= value <= high:
            expected = f"between {low:.12g} and {high:.12g}"
            raise FieldError("", f"{name} is expected {expected}, found {value:.12g}")


_TIME = re.compile(r"([num]?s|µs|sec(onds?)?|min(utes?)?|h(ours?)?)", re.IGNORECASE)
_RATE = re.compile(
    r".+/ ?(s|sec|second|h|hour|min)|[kMGTPE]?flops?(/s)?|.*hz|speedup|efficiency", re.IGNORECASE
)
_OVER_ALL_GPUS = re.compile(
    r"(im(a)?g(e)?s?|samples?|tokens?|seq(uence)?s?|it(er(ation)?s?)?|steps?) ?/ ?(s|sec|second)",
    re.IGNORECASE,
)
"""Pattern for units of rates that are totals over all GPUs; no other rates give a speedup."""
_OF_RATES = re.compile(
    r"(.*_)?((throughput|rate|bandwidth|speed)_(.*_)?s|(img|image|sample|token|seq)s?_s)",
    re.IGNORECASE,
)
"""Pattern of names of metrics in which `_s` may mean either "per second" or "in seconds"."""

_UNITS = {
    **{unit: unit for unit in ("s", "ms", "us", "ns", "J", "W")},
    **{f"{prefix}b s": f"{prefix.upper()}B/s" for prefix in "kmgt"},
    **{f"{prefix}ib s": f"{prefix.upper()}iB/s" for prefix in "kmgt"},
    **{f"{prefix}flops": f"{prefix.upper()}FLOPS" for prefix in "mgtp"},
}


def unit_of_name(name: str) -> str:
    """Return the unit at the end of a metric's name: `GB/s` for `busbw_gb_s`; empty if none."""
    words = name.split("_")
    if words[-2:-1] == ["per"] and len(words) > 2:
        return f"{words[-3]}/{words[-1]}"
    ends = (" ".join(words[-count:]) for count in (2, 1))
    return next((_UNITS[end] for end in ends if end in _UNITS and end != name), "")


def metric_from_name(
    name: str,
    unit: str = "",
    *,
    more_is_better: bool | None = None,
    time_scaling: Literal["weak", "strong"] | None = None,
) -> OpenMetric | None:
    """Create a metric (default unit: the name's); None if it is unknown whether more is better.

    For a time, `time_scaling` says whether work is constant per GPU (weak) or in total (strong).
    """
    if not unit and unit_of_name(name) == "s" and _OF_RATES.fullmatch(name):
        if more_is_better is None:
            return None
        unit = f"{name.split('_')[-2]}/s" if more_is_better else "s"
    unit = unit or unit_of_name(name)
    if more_is_better is None:
        if not (_TIME.fullmatch(unit) or _RATE.fullmatch(unit)):
            return None
        more_is_better = _TIME.fullmatch(unit) is None
    scaling: Literal["rate", "weak", "strong"] | None = None
    if more_is_better and _OVER_ALL_GPUS.fullmatch(unit):
        scaling = "rate"
    elif not more_is_better and _TIME.fullmatch(unit):
        scaling = time_scaling
    return OpenMetric(name=name, unit=unit, more_is_better=more_is_better, scaling=scaling)
