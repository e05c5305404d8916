"""The limits of judgement, and where a site sets its own."""

from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from gpuscale.records.configuration import EntryKey
from gpuscale.records.metrics import METRICS_BY_NAME, Limits
from gpuscale.records.record import Gpus, Name, Record

THROUGHPUT = "throughput"
SPEEDUP = "speedup"
JUDGED = (THROUGHPUT, SPEEDUP, *(name for name, metric in METRICS_BY_NAME.items() if metric.limits))
"""The names of what is judged, as overrides give them."""
Fraction = Annotated[float, Meta(ge=0, le=0.99)]
Significance = Annotated[float, Meta(ge=1e-4, le=0.05)]
OkBound = Annotated[float, Meta(ge=1e-6, le=0.99)]


class ToleranceOverride(Record, frozen=True, kw_only=True):
    """Other limits for some rows and one metric; None is any, or the limit that holds without.

    Without a metric it holds for throughput and speedup.
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
            raise ValueError(f"metric: expected one of {', '.join(JUDGED)}, found '{self.metric}'")
        if not any(condition is not None for condition in self.conditions):
            raise ValueError("an override for everything; set the limits in 'tolerances' itself")
        if (self.margin, self.ok_bound, self.allocation_deviation) == (None, None, None):
            names = "'margin', 'ok_bound' or 'allocation_deviation'"
            raise ValueError(f"an override that sets no limit; give {names}, or remove it")

    @property
    def conditions(self) -> tuple[object, ...]:
        """The properties that a row must have for the override to hold, in order of weight."""
        return (self.case, self.strategy, self.gpus, self.metric)

    def fits(self, key: EntryKey) -> bool:
        """True for a row that is meant, whatever the metric."""
        wanted = (self.case, self.strategy, self.gpus)
        return all(want in (None, has) for want, has in zip(wanted, key, strict=True))


class Tolerances(Record, frozen=True, kw_only=True, omit_defaults=False):
    """The limits of judgement; a site sets its own in its baseline file."""

    margin: Fraction = 0.02
    """A loss of throughput or speedup up to this fraction is never called a regression."""
    ok_bound: OkBound = 0.05
    """ok means that the 95% upper bound of the loss lies below this fraction."""
    allocation_deviation_time: Fraction = 0.01
    """Declared relative standard deviation of T between allocations."""
    allocation_deviation_speedup: Fraction = 0.005
    """The same for S and E, whose two ends were measured on the same nodes."""
    significance: Significance = 0.01
    """One-sided p, adjusted for all tests of a comparison, below which a change counts."""
    published_within_node: Fraction = 0.10
    published_across_nodes: Fraction = 0.20
    overrides: tuple[ToleranceOverride, ...] = ()
    """Other limits for some rows; the most specific one that gives a limit wins."""

    def __post_init__(self) -> None:
        conditions = [override.conditions for override in self.overrides]
        if len(set(conditions)) < len(conditions):
            twice = next(i for i, each in enumerate(conditions) if each in conditions[:i])
            raise ValueError(
                f"overrides[{twice}]: the same rows as an earlier one; put their limits into one"
            )

    def limits(self, key: EntryKey, metric: str) -> Limits:
        """The limits of one metric of one row, with all overrides that fit."""
        spec = METRICS_BY_NAME.get(metric)
        declared = self.allocation_deviation_speedup
        if metric == THROUGHPUT:
            declared = self.allocation_deviation_time
        given = (spec and spec.limits) or Limits(
            margin=self.margin, ok_bound=self.ok_bound, allocation_deviation=declared
        )
        limits = asdict(given).items()
        return Limits(**{name: self._overridden(key, metric, name, its) for name, its in limits})

    def published_margin(self, key: EntryKey, metric: str, *, nodes: int) -> float:
        """The fraction by which a metric of the row may lie below a published figure."""
        default = self.published_within_node if nodes == 1 else self.published_across_nodes
        return self._overridden(key, metric, "margin", default)

    def _overridden(self, key: EntryKey, metric: str, name: str, default: float) -> float:
        found: float = default
        most: list[int] = []
        for each in self.overrides:
            value = getattr(each, name)
            metrics = (each.metric,) if each.metric else (THROUGHPUT, SPEEDUP)
            # More conditions weigh more; of as many, those that come first.
            given = [condition is not None for condition in each.conditions]
            weight = [sum(given), *given]
            if each.fits(key) and metric in metrics and value is not None and weight > most:
                found, most = value, weight
        return found
