"""The history of a machine as text: the state of its rows, and when they changed."""

from collections.abc import Iterator
from itertools import takewhile

from gpuscale.analysis.history import History, HistoryEvent, RowHistory
from gpuscale.analysis.outliers import odd_one
from gpuscale.analysis.scaling import level_at
from gpuscale.analysis.shifts_and_drifts import FEWEST_NIGHTS, REMEMBERED
from gpuscale.base.text import format_percent, rough_percent
from gpuscale.judge.baseline import TOO_WEAK
from gpuscale.records import PointKey
from gpuscale.records.configuration import several_units
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, level_columns, level_text, named_on, text_table
from gpuscale.reports.screen import Screen, fitted, wrapped

STANDING = "speed against level"
_MOST_NAMED = 2
"""Maximum number of rows that the verdict names for each problem."""
_MOST_NODES = 8
_MOST_ROWS = 4
"""Maximum number of rows that an event lists one by one."""
_MOST_NIGHTS = FEWEST_NIGHTS + 1
"""Maximum number of latest nights shown one by one: enough to tell if the last one stands out."""


def render(history: History, screen: Screen, judged: tuple[str, str] | None = None) -> str:
    """Return the history as text, the latest changes first, without a final line break.

    `judged` is the verdict of comparing the last night with earlier ones, as a word and a text.
    """
    first = (level_header(history), STANDING)
    lines = [*_head(history, screen, judged)]
    lines += [text_table(standings(history), screen.columns, first=first), ""]
    if len(history.nights) > 1:
        last = history.names[-_MOST_NIGHTS:]
        # With the date in each header, five nights would not fit the width of most terminals.
        day = last[-1][:11] if all(name[:11] == f"{last[-1][:10]}_" for name in last) else ""
        lines.append(f"{first[0]} of the last nights{day and f' ({day}…)'}:")
        lines += [text_table(_last_nights(history, day), screen.columns), ""]
    if history.nodes:
        lines += [text_table(node_table(history), screen.columns), ""]
    for event in reversed(history.events):
        title, details = event_text(event, history)
        lines += fitted((screen.bold(title), *map("    {}".format, details)), screen.columns)
    busy = phrases.busy_text([run for night in history.nights for run in night.runs])
    lines += fitted(filter(None, (*notes(history), busy)), screen.columns)
    return "\n".join(lines)


def notes(history: History) -> Iterator[str]:
    """Yield notes on the history, such as gradual slowdowns, outlying nights and ignored nights."""
    names, rows, of_rows = history.names, history.rows, _row_names(history)
    if history.left_out:
        yield f"left out: {', '.join(history.left_out)}"
    if unclear := [of_rows[row.point] for row in rows if row.is_unclear]:
        yield f"too few nights to tell whether the level changed: {listed(unclear, _MOST_NAMED)}"
    elif not history.events:
        yield _no_change_text(history)
    yield from _recent_change(history)
    for effect in history.nodes:
        if effect.slow and effect.speed:
            dates = phrases.enumerated([names[night] for night in effect.slow])
            slower = f"{format_percent(-effect.speed.value)} slower by itself"
            yield f"{dates} ran on {effect.node}, which is {slower}: no change of the machine"
    for row in rows:
        if row.lost and row.lost.since != row.lost.onset:
            name, since = of_rows[row.point], names[row.lost.since]
            change, rate = phrases.found_change_text(row.lost.throughput), _rate_word(history)
            yield f"slower and slower since {since}: {name}, {rate} in all {change}"
    if alone := _far_nights(history):
        dates = phrases.enumerated([names[night] for night in sorted(alone)])
        yield f"far from the other nights of their level: {dates}"
    runs = (run for night in history.nights for run in night.runs)
    if several := several_units(run.configuration for run in runs):
        yield f"note: {phrases.SEVERAL_UNITS}: {', '.join(several)}"


def _recent_change(history: History) -> Iterator[str]:
    """Yield a line on the latest environment change, unless an event of that night reports it."""
    night, changes = history.recent_change
    if changes and all(night != event.night for event in history.events):
        yield f"changed on {history.names[night]}: {'; '.join(map(environment_text, changes))}"


def _far_nights(history: History) -> set[int]:
    """Return the indices of nights on which a result is an outlier, even if its row is noisy."""
    far = set[int]()
    for row in history.rows:
        far.update(row.outlying, row.nights[-1:] if row.stands_out else ())
        if _is_weak(row):
            odd = odd_one([history.nights[night].log_costs[row.point] for night in row.nights])
            far.update(() if odd is None else [row.nights[odd]])
    return far


def node_table(history: History) -> list[dict[str, Cell]]:
    """Return a table of the slowest nodes; speed is relative to adjacent nights on other nodes."""
    unknown, rows = "too few nights to tell it from the machine", []
    for effect in history.nodes[:_MOST_NODES]:
        speed = phrases.change_text(effect.speed) if effect.speed else unknown
        node = Cell(effect.node, tone="doubt" if effect.slow else "")
        nights = Cell(str(len(effect.nights)))
        rows.append({"node": node, "nights": nights, "speed against other nodes": Cell(speed)})
    return rows


def _head(history: History, screen: Screen, judged: tuple[str, str] | None) -> Iterator[str]:
    if said := verdict(history):
        first, *rest = wrapped(f"{said[0]:<8}  {said[1]}", screen.columns)
        yield from (screen.bold(first), *rest)
    yield from wrapped(f"history   {nights_text(history)}", screen.columns)
    last, where = history.nights[-1], history.nights[-1].environment
    job, folder = where.job_id and f"job {where.job_id}", last.folder and f"folder {last.folder}"
    facts = f"{last.began_at:%Y-%m-%d %H:%M}", where.host, job, folder
    yield f"last      {', '.join(filter(None, facts))}"
    if judged:
        word, text = judged
        yield from wrapped(f"judged    {word} by compare --history: {text}", screen.columns)
    yield ""


def nights_text(history: History) -> str:
    """Summarise the nightly runs: `24 nights of Tesla V100 (node1), 2096-03-01 to 2096-03-24`."""
    hosts = sorted({*filter(None, (night.environment.host for night in history.nights))})
    where = hosts[0] if len(hosts) == 1 else phrases.counted(len(hosts), "host")
    place = f" ({where})" if hosts else ""
    return f"{history.label}{place}, {phrases.format_range(history.names)}"


def level_header(history: History) -> str:
    """Return the header of the column with measured values: `step time`, or `value` for metrics."""
    return next(iter(level_columns(row.point.configuration for row in history.rows)))


def standings(history: History) -> list[dict[str, Cell]]:
    """Return a table comparing each row's latest nightly result with its earlier ones."""
    nights = history.names
    cases = phrases.set_apart([row.point.configuration for row in history.rows])
    level = level_header(history)
    distinct = {(row.point.configuration, row.point.gpus) for row in history.rows}
    has_batches = len(distinct) < len(history.rows)
    rows = []
    for row in history.rows:
        if row.nights[-1] < len(nights) - 1:
            standing = f"last measured {nights[row.nights[-1]]}"
        elif row.departure is None:
            standing = "too few nights"
        else:
            standing = phrases.percent_text(row.departure)
            standing += ", stands out" if row.stands_out else ""
            standing += ", new level" if row.changes and row.level_nights <= FEWEST_NIGHTS else ""
        changed = "none"
        if row.changes:
            last = row.changes[-1]
            changed = f"{nights[last.onset]} {phrases.percent_text(last.throughput.value)}"
        batch = phrases.known_text(row.point.batch_per_gpu, str)
        rows.append(
            {
                "case": Cell(cases[row.point.configuration]),
                "GPUs": Cell(str(row.point.gpus)),
                **({"batch/GPU": Cell(batch)} if has_batches else {}),
                level: Cell(level_text(row.last)),
                STANDING: Cell(standing, tone="doubt" if row.stands_out else ""),
                "last change": Cell(changed),
                "nights": Cell(str(len(row.nights))),
            }
        )
    return named_on((row.point.configuration.device for row in history.rows), rows)


def _last_nights(history: History, day: str) -> list[dict[str, Cell]]:
    """Return a table of the latest nightly results, without the prefix `day` in its headers."""
    level, rows = level_header(history), []
    for row, cells in zip(history.rows, standings(history), strict=True):
        named = {header: cells[header] for header in takewhile(lambda each: each != level, cells)}
        for i in range(len(history.nights))[-_MOST_NIGHTS:]:
            cost = history.nights[i].log_costs.get(row.point)
            text = phrases.UNKNOWN if cost is None else level_text(level_at(row.point, cost))
            named[history.names[i].removeprefix(day)] = Cell(text)
        rows.append(named)
    return rows


def _no_change_text(history: History) -> str:
    """Explain why a history has no events: no change, too few nightly runs or too much noise."""
    if any(map(_is_weak, history.rows)):
        return "no change of level large enough to show among nights that vary so widely"
    if not all(row.nights_missing for row in history.rows):
        return "no change of level"
    most = max(history.rows, key=lambda row: len(row.nights))
    needed = len(most.nights) + most.nights_missing
    return (
        f"a row needs {needed} nights to tell whether its last one stands out, and {needed + 1} to "
        f"tell a change; {len(most.nights)} found"
    )


def event_text(event: HistoryEvent, history: History) -> tuple[str, list[str]]:
    """Return an event's title (`from 2096-03-13: 2 of 4 rows slower`) and lines of details."""
    changes, names = event.changes, _row_names(history)
    is_slower, is_drift = changes[0].throughput.value < 0, changes[0].kind == "drift"
    shown = sorted(changes, key=lambda change: change.throughput.value, reverse=not is_slower)
    changed = [
        f"{names[change.point]}: {phrases.rate_word(change.point.configuration)} "
        f"{phrases.found_change_text(change.throughput)}"
        for change in shown
    ]
    details = phrases.few(changed, _MOST_ROWS, "row")
    if is_drift:
        details.append("slowly: no single night began it")
    elif event.environment:
        details.append(f"changed that night: {'; '.join(map(environment_text, event.environment))}")
    else:
        details.append("no change of the environment was recorded that night")
    rows = f"{len(changes)} of {phrases.counted(len(history.rows), 'row')}"
    when = f"{'drifted until' if is_drift else 'from'} {history.names[event.night]}"
    return f"{when}: {rows} {'slower' if is_slower else 'faster'}", details


def verdict(history: History) -> tuple[str, str] | None:
    """Return the worst verdict as a word, and all as text; None if every row has too few nights."""
    rows, names, nights = history.rows, _row_names(history), history.names
    last, rate = len(nights) - 1, _rate_word(history)
    if all(row.nights_missing for row in rows):
        return None
    losses = sorted(
        (
            loss.throughput.value,
            names[row.point],
            f"slowly until {nights[loss.onset]}"
            if loss.kind == "drift" and loss.since == loss.onset
            else f"from {nights[loss.since]} on",
        )
        for row in rows
        if (loss := row.recent_loss)
    )
    whens = {when for *_, when in losses}
    slower = [
        f"{name} {phrases.percent_text(change)}{f' {when}' if len(whens) > 1 else ''}"
        for change, name, when in losses
    ]
    departed = {
        row: f"{names[row.point]} {phrases.percent_text(row.departure)}"
        for row in rows
        if row.departure is not None and row.nights[-1] == last
    }
    unusual = [text for row, text in departed.items() if row.stands_out]
    blurred = [row for row in rows if _is_weak(row) and not (row.recent_loss or row.is_unclear)]
    least = rough_percent(min((row.smallest_loss or 0.0 for row in blurred), default=0.0))
    only_large = f" with nights that vary so much that two more show only losses above {least}"
    unclear = [text for row, text in departed.items() if row.is_unclear]
    # A row that was absent for more than 15 nights is no longer reported as missing.
    missing = [names[row.point] for row in rows if last - REMEMBERED <= row.nights[-1] < last]
    groups = (
        ("SLOWER", slower, f" {whens.pop()}, {rate}" if len(whens) == 1 else f", {rate}"),
        ("UNUSUAL", unusual, f" unusual on the last night, {rate}"),
        ("MISSING", missing, " without a valid run on the last night (--case chooses rows)"),
        ("UNCLEAR", [names[row.point] for row in blurred], only_large),
        ("UNCLEAR", unclear, f" with too few nights to tell whether it lasts, {rate}"),
    )
    count = phrases.counted(len(rows), "row")
    steady = sum(not row.nights_missing for row in rows)
    since = max((event.night for event in history.events), default=0)
    found = [
        (word, f"{len(texts)} of {count}{what}: {listed(texts, _MOST_NAMED)}")
        for word, texts, what in groups
        if texts
    ]
    if not found:
        return "STEADY", f"{steady} of {count}: no change since {nights[since]}"
    (word, text), *others = found
    return word, "; ".join((text, *map(" ".join, others)))


def _is_weak(row: RowHistory) -> bool:
    """True if a row's nightly results vary so much that only a large slowdown could be detected."""
    return row.smallest_loss is not None and row.smallest_loss > TOO_WEAK


def _rate_word(history: History) -> str:
    words = {phrases.rate_word(row.point.configuration) for row in history.rows}
    return "performance" if "performance" in words else "throughput"


def _row_names(history: History) -> dict[PointKey, str]:
    points = [row.point for row in history.rows]
    cases = phrases.set_apart([point.configuration for point in points])
    return {each: phrases.row_text(cases, each.configuration, each.gpus) for each in points}
