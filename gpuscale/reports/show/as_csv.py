"""Results and baselines as CSV: a line for each point, with units in the column names."""

from operator import attrgetter

from gpuscale.records import Configuration, ScalingPoint
from gpuscale.reports.columns import Column, csv_text
from gpuscale.reports.show import Shown, columns_with

_NAMES = ("case", "strategy", "device")
_OTHERS = tuple(name for name in Configuration.__struct_fields__ if name not in _NAMES)


def _of_configuration(name: str) -> Column[ScalingPoint]:
    return Column(name, value=attrgetter(f"configuration.{name}"))


def render(shown: Shown) -> str:
    """Return the points as CSV (docs/tools.md); unknown values are empty."""
    kind, *numbers = columns_with(shown.steps)
    names, others = map(_of_configuration, _NAMES), map(_of_configuration, _OTHERS)
    injections = " ".join(shown.injections) or None
    columns = (kind, *names, *numbers, *others)
    return csv_text(columns, shown.points, steps=shown.steps, injections=injections)
