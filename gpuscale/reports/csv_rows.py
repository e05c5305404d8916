"""Rows as CSV (RFC 4180): plain numbers, and no text that a spreadsheet takes for a formula."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence

from gpuscale.records import Estimate

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """The columns of these rows below their names, without a line break at the end."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return file.getvalue().rstrip("\n")


def flat(row: Mapping[str, object], estimates: Collection[str]) -> dict[str, object]:
    """The row with each estimate in three columns, of which the ends have `_low` and `_high`."""
    found: dict[str, object] = {}
    for name, value in row.items():
        found[name] = value.value if isinstance(value, Estimate) else value
        if name in estimates:
            for end in ("low", "high"):
                found[f"{name}_{end}"] = None if value is None else getattr(value, end)
    return found


def _cell(value: object) -> object:
    """Unknown is empty; numbers have a point and at most twelve significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
