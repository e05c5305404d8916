"""A comparison as CSV: a line for each row, for spreadsheets and data frames."""

from gpuscale.records import METRICS_BY_NAME
from gpuscale.records.metrics import STEP_TIME
from gpuscale.reports import cause_words
from gpuscale.reports.comparison import as_json
from gpuscale.reports.comparison.rows import Row
from gpuscale.reports.comparison.view import View
from gpuscale.reports.csv_rows import csv_text, flat

_SIDES = ("baseline", "current")
_OF_SIDE = ("step_time_s", "samples_per_s", "speedup", "efficiency")
_ESTIMATES = frozenset(("change", *(f"{side}_{what}" for side in _SIDES for what in _OF_SIDE)))
_METRICS = tuple(name for name in METRICS_BY_NAME if name != STEP_TIME)
_COLUMNS = tuple(
    flat(
        dict.fromkeys(
            (
                *("case", "strategy", "device", "gpus", "name", "verdict", "finding"),
                *("since", "changed_quantity", "change", "minimum_detectable_loss", "further_runs"),
                *(f"{side}_{what}" for what in _OF_SIDE for side in _SIDES),
                *(f"{what}_{name}" for name in _METRICS for what in ("verdict_of", *_SIDES)),
                *("reason", "cause", "injections"),
            )
        ),
        _ESTIMATES,
    )
)


def render(view: View) -> str:
    """The rows in the order of the baseline (docs/tools.md); unknown is empty."""
    injections = " ".join(view.injections) or None
    rows = (dict.fromkeys(_COLUMNS) | _cells(row) for row in view.rows)
    return csv_text([row | {"injections": injections} for row in rows], _COLUMNS)


def _cells(row: Row) -> dict[str, object]:
    entry = row.entry
    cells = {
        **as_json.entry_of(row),
        "device": entry.configuration and entry.configuration.device,
        "name": row.name,
        "cause": cause_words.headline(entry.causes[0]) if entry.causes else None,
    }
    for side in _SIDES:
        cells |= {f"{side}_{what}": getattr(getattr(entry, side), what) for what in _OF_SIDE}
    for metric in entry.metrics:
        name = metric.metric.name
        cells |= {f"{side}_{name}": getattr(metric, side).value for side in _SIDES}
        cells[f"verdict_of_{name}"] = metric.verdict
    return flat(cells, _ESTIMATES)
