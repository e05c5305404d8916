"""Tables that fit the terminal: columns that do not stand beside each other stand below."""

import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from tabulate import tabulate

_GAP = "  "


def stacked_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: int | None,
    *,
    keys: int = 2,
    first: Sequence[str] = (),
    left: Collection[str] = (),
    spare: Collection[str] = (),
) -> str:
    """One table where there is room for it, and else several, one below the other.

    Args:
        headers: Of the columns.
        rows: Their cells.
        columns: Of the terminal; None where there is room for any table.
        keys: How many of the columns, from the left, name a row and so begin each table.
        first: Headers of the columns that a narrow terminal shows first; the others follow in
            their order.
        left: Headers of the columns that are aligned to the left, beside the first of all.
        spare: Headers of the columns that only one whole table has.
    """
    align = ["left" if i == 0 or name in left else "right" for i, name in enumerate(headers)]
    whole = tabulate(rows, headers, disable_numparse=True, colalign=align)
    if columns is None or len(whole.partition("\n")[0]) <= columns:
        return whole
    names = [*first, *(name for name in headers[keys:] if name not in first)]
    order = [headers.index(n) for n in names if n in headers[keys:] and n not in spare]
    cells = [[*column] for column in zip(*rows, strict=True)]
    widths = [_width(name, column) for name, column in zip(headers, cells, strict=True)]
    tables = []
    for group in _groups(order, widths, columns, keys):
        chosen = [*range(keys), *sorted(group)]
        tables.append(
            "\n".join(
                _lines(
                    [headers[i] for i in chosen],
                    [[row[i] for i in chosen] for row in rows],
                    [widths[i] for i in chosen],
                    [align[i] for i in chosen],
                )
            )
        )
    return "\n\n".join(tables)


def _groups(
    order: Sequence[int], widths: Sequence[int], columns: int, keys: int
) -> Iterator[list[int]]:
    """The columns of each table: as many as there is room for, and at least one."""
    start = sum(widths[:keys]) + len(_GAP) * (keys - 1)
    group: list[int] = []
    used = start
    for index in order:
        needed = len(_GAP) + widths[index]
        if group and used + needed > columns:
            yield group
            group, used = [], start
        group.append(index)
        used += needed
    yield group


def _width(header: str, cells: Sequence[str]) -> int:
    """A header of several words may stand in several lines, a cell stands in one."""
    return max(map(len, [*header.split(), *cells]))


def _lines(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    align: Sequence[str],
) -> Iterator[str]:
    heads = [textwrap.wrap(name, width) for name, width in zip(headers, widths, strict=True)]
    height = max(map(len, heads))
    padded = [[""] * (height - len(head)) + head for head in heads]
    rule = ["-" * width for width in widths]
    for line in (*zip_longest(*padded), rule, *rows):
        cells = zip(line, widths, align, strict=True)
        yield _GAP.join(
            f"{cell:<{width}}" if side == "left" else f"{cell:>{width}}"
            for cell, width, side in cells
        ).rstrip()
