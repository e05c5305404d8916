"""Results and baselines as CSV: a line for each row, units in the names of the columns."""

from dataclasses import fields

from gpuscale.records import Configuration
from gpuscale.reports.csv_rows import csv_text, flat
from gpuscale.reports.show.scaling_rows import ESTIMATES, ScalingRow, Shown, scaling_rows

_NAMES = ("case", "strategy", "device")
_OTHERS = tuple(name for name in Configuration.__struct_fields__ if name not in _NAMES)


def render(shown: Shown) -> str:
    """The rows as CSV (docs/tools.md); unknown is empty."""
    rows = [_flat(row, shown) for row in scaling_rows(shown)]
    numbers = flat(
        {field.name: None for field in fields(ScalingRow) if field.name != "configuration"},
        ESTIMATES,
    )
    kind, *others = numbers
    return csv_text(rows, [kind, *_NAMES, *others, *_OTHERS, "steps", "injections"])


def _flat(row: ScalingRow, shown: Shown) -> dict[str, object]:
    numbers = {field.name: getattr(row, field.name) for field in fields(row)}
    configuration = numbers.pop("configuration")
    return {
        **flat(numbers, ESTIMATES),
        **{name: getattr(configuration, name) for name in Configuration.__struct_fields__},
        "steps": shown.steps,
        "injections": " ".join(shown.injections) or None,
    }
