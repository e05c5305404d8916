"""Limits for judging comparisons, and overrides of these limits by a site."""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from gpuscale.base.errors import FieldError
from gpuscale.records.configuration import EntryKey
from gpuscale.records.metrics import METRICS_BY_NAME, Limits
from gpuscale.records.record import Gpus, Name, Record

THROUGHPUT = "throughput"
SPEEDUP = "speedup"
JUDGED = (THROUGHPUT, SPEEDUP, *(name for name, metric in METRICS_BY_NAME.items() if metric.limits))
"""Names of the judged metrics, as used in overrides."""
Fraction = Annotated[float, Meta(ge=0, le=0.99)]
Significance = Annotated[float, Meta(ge=1e-4, le=0.05)]
OkBound = Annotated[float, Meta(ge=1e-6, le=0.99)]


class ToleranceOverride(Record, frozen=True, kw_only=True):
    """Different limits for some rows and one metric.

    A condition of None matches any row, and a limit of None changes nothing. An override without
    a metric applies to throughput and speedup.
    """

    case: Name | None = None
    strategy: Name | None = None
    gpus: Gpus | None = None
    metric: Name | None = None
    margin: Fraction | None = None
    ok_bound: OkBound | None = None
    allocation_deviation: Fraction | None = None

    def __post_init__(self) -> None:
        if self.metric is not None and self.metric not in JUDGED:
            known = ", ".join(JUDGED)
            raise FieldError("metric", f"expected one of {known}, found '{self.metric}'")
        if not any(condition is not None for condition in self.conditions):
            problem = "the override applies to every row; set the limits in 'tolerances' itself"
            raise FieldError("", problem)
        if (self.margin, self.ok_bound, self.allocation_deviation) == (None, None, None):
            names = "'margin', 'ok_bound' or 'allocation_deviation'"
            raise FieldError("", f"the override sets no limit; give {names}, or remove it")

    @property
    def conditions(self) -> tuple[object, ...]:
        """Conditions that a row must meet, most important first."""
        return (self.case, self.strategy, self.gpus, self.metric)

    def fits(self, key: EntryKey) -> bool:
        """True if the override applies to the row, regardless of the metric."""
        wanted = (self.case, self.strategy, self.gpus)
        return all(want in (None, has) for want, has in zip(wanted, key, strict=True))


class Tolerances(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Limits for judging comparisons; a site can set different limits in a baseline file."""

    margin: Fraction = 0.02
    """A loss of throughput or speedup up to this fraction is never called a regression."""
    ok_bound: OkBound = 0.05
    """For the verdict ok, the 95% upper bound of the loss must be below this fraction."""
    allocation_deviation_time: Fraction = 0.01
    """Declared relative standard deviation of the step time between allocations."""
    allocation_deviation_speedup: Fraction = 0.005
    """Declared relative standard deviation of speedup and efficiency between allocations."""
    significance: Significance = 0.01
    """A change counts if its one-sided p-value, adjusted for multiple tests, is below this."""
    published_within_node: Fraction = 0.10
    published_across_nodes: Fraction = 0.20
    overrides: tuple[ToleranceOverride, ...] = ()
    """Different limits for some rows; for each limit, the most specific override applies."""

    def __post_init__(self) -> None:
        conditions = [override.conditions for override in self.overrides]
        if len(set(conditions)) < len(conditions):
            twice = next(i for i, each in enumerate(conditions) if each in conditions[:i])
            problem = "the same rows as an earlier one; put their limits into one"
            raise FieldError(f"overrides[{twice}]", problem)

    def limits(self, key: EntryKey, metric: str) -> Limits:
        """Return the limits for one metric of one row, with all applicable overrides."""
        spec = METRICS_BY_NAME.get(metric)
        declared = self.allocation_deviation_speedup
        if metric == THROUGHPUT:
            declared = self.allocation_deviation_time
        given = (spec and spec.limits) or Limits(
            margin=self.margin, ok_bound=self.ok_bound, allocation_deviation=declared
        )
        limits = asdict(given).items()
        return Limits(
            **{name: self._overridden(key, metric, name, given) for name, given in limits}
        )

    def published_margin(self, key: EntryKey, metric: str, *, nodes: int) -> float:
        """Return the fraction by which a metric of a row may be below a published figure."""
        default = self.published_within_node if nodes == 1 else self.published_across_nodes
        return self._overridden(key, metric, "margin", default)

    def _overridden(self, key: EntryKey, metric: str, name: str, default: float) -> float:
        limit, most = default, [0]
        for override in self.overrides:
            value: float | None = getattr(override, name)
            metrics = (override.metric,) if override.metric else (THROUGHPUT, SPEEDUP)
            # More conditions weigh more; among equally many, the earlier conditions decide.
            given = [condition is not None for condition in override.conditions]
            weight = [sum(given), *given]
            if override.fits(key) and metric in metrics and value is not None and weight > most:
                limit, most = value, weight
        return limit
