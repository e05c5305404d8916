"""A number with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and its two-sided 95% interval; the bounds are None where nothing supports one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether the data carried an interval (a single run does not)."""
        return self.low is not None and self.high is not None

    def scaled(self, factor: float) -> "Estimate":
        """The estimate of `factor` times the quantity (`factor` positive)."""
        return Estimate(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
        )

    def inverse(self, numerator: float) -> "Estimate":
        """The estimate of `numerator` divided by the (positive) quantity."""
        return Estimate(
            value=numerator / self.value,
            low=None if self.high is None else numerator / self.high,
            high=None if self.low is None else numerator / self.low,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many of so many, with the rate and its 95% interval."""

    count: int
    of: int
    rate: Estimate
