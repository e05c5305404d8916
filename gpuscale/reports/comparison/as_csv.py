"""A comparison as CSV: a line for each row, for spreadsheets and data frames."""

from functools import partial
from operator import attrgetter

from gpuscale.records import METRICS_BY_NAME
from gpuscale.records.metrics import STEP_TIME
from gpuscale.reports import cause_words
from gpuscale.reports.columns import SCALING, Column, csv_text
from gpuscale.reports.comparison import View
from gpuscale.reports.comparison.rows import Row, finding_of

_SIDES = ("baseline", "current")
_METRICS = tuple(name for name in METRICS_BY_NAME if name != STEP_TIME)


def _of_entry(name: str) -> Column[Row]:
    return Column(name, value=attrgetter(f"entry.{name}"))


def _of_key(name: str) -> Column[Row]:
    return Column(name, value=attrgetter(f"entry.key.{name}"))


def _of_metric(name: str, what: str, row: Row) -> object:
    found = next((each for each in row.entry.metrics if each.metric.name == name), None)
    if found is None or what == "verdict_of":
        return found and found.verdict
    return getattr(found, what).value


_COLUMNS: tuple[Column[Row], ...] = (
    *map(_of_key, ("case", "strategy")),
    Column("device", value=lambda row: row.entry.configuration and row.entry.configuration.device),
    _of_key("gpus"),
    Column("name"),
    _of_entry("verdict"),
    Column("finding", value=lambda row: finding_of(row.entry) or None),
    *map(_of_entry, ("since", "changed_quantity")),
    Column("change", interval="[]", value=attrgetter("entry.change")),
    *map(_of_entry, ("minimum_detectable_loss", "further_runs")),
    *(
        Column(f"{side}_{name}", interval="[]", value=attrgetter(f"entry.{side}.{name}"))
        for name in (column.field for column in SCALING)
        for side in _SIDES
    ),
    *(
        Column(f"{what}_{name}", value=partial(_of_metric, name, what))
        for name in _METRICS
        for what in ("verdict_of", *_SIDES)
    ),
    Column("reason"),
    Column(
        "cause",
        value=lambda row: cause_words.headline(row.entry.causes[0]) if row.entry.causes else None,
    ),
)


def render(view: View) -> str:
    """Return CSV (docs/tools.md), with rows in the baseline's order; unknown values are empty."""
    return csv_text(_COLUMNS, view.rows, injections=" ".join(view.injections) or None)
