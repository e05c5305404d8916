"""The history of a machine as text: the state of its rows, and when they changed."""

from collections.abc import Iterator
from itertools import takewhile

from gpuscale.analysis.estimates import odd_one
from gpuscale.analysis.history import History, HistoryEvent
from gpuscale.analysis.level_changes import FEWEST_NIGHTS
from gpuscale.analysis.scaling import level_at
from gpuscale.base.text import format_percent
from gpuscale.records.configuration import several_units
from gpuscale.records.environment_diff import environment_text, listed
from gpuscale.reports import phrases
from gpuscale.reports.columns import Cell, level_columns, level_text, named_on, text_table
from gpuscale.reports.history_verdict import MOST_NAMED, is_weak, rate_word, row_names, verdict
from gpuscale.reports.screen import Screen, wrapped

STANDING = "speed against level"
_MOST_NODES = 8
_MOST_ROWS = 4
"""Maximum number of rows that an event lists one by one."""
_MOST_NIGHTS = FEWEST_NIGHTS + 1
"""Maximum number of latest nights shown one by one: enough to tell if the last one stands out."""


def render(history: History, screen: Screen, judged: tuple[str, str] | None = None) -> str:
    """Return the history as text, the latest changes first, without a final line break.

    `judged` is the last night's verdict from a comparison with earlier nights: a word and a text.
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
        for line in (screen.bold(title), *map("    {}".format, details)):
            lines += wrapped(line, screen.columns)
    busy = phrases.busy_text([run for night in history.nights for run in night.runs])
    for note in filter(None, (*notes(history), busy)):
        lines += wrapped(note, screen.columns)
    return "\n".join(lines)


def notes(history: History) -> Iterator[str]:
    """Yield notes on the history, such as gradual losses and unusual or missing nightly results."""
    names, rows, of_rows = history.names, history.rows, row_names(history)
    if history.left_out:
        yield f"left out: {', '.join(history.left_out)}"
    if unclear := [of_rows[row.point] for row in rows if row.is_unclear]:
        shown = listed(unclear, MOST_NAMED)
        yield f"too few nights to tell whether the level changed: {shown}"
    elif not history.events:
        yield _no_change_text(history)
    for effect in history.nodes:
        if effect.slow and effect.speed:
            dates = phrases.enumerated([names[night] for night in effect.slow])
            slower = f"{format_percent(-effect.speed.value)} slower by itself"
            yield f"{dates} ran on {effect.node}, which is {slower}: no change of the machine"
    for row in rows:
        if row.lost and row.lost.since != row.lost.onset:
            name, since = of_rows[row.point], names[row.lost.since]
            change, rate = phrases.change_text(row.lost.throughput), rate_word(history)
            yield f"slower and slower since {since}: {name}, {rate} in all {change}"
    if alone := _far_nights(history):
        dates = phrases.enumerated([names[night] for night in sorted(alone)])
        yield f"far from the other nights of their level: {dates}"
    runs = (run for night in history.nights for run in night.runs)
    if several := several_units(run.configuration for run in runs):
        yield f"note: {phrases.SEVERAL_UNITS}: {', '.join(several)}"


def _far_nights(history: History) -> set[int]:
    """Return the nights far from the others, also one that alone makes a row's nights vary."""
    far = set[int]()
    for row in history.rows:
        far.update(row.outlying, row.nights[-1:] if row.stands_out else ())
        if is_weak(row):
            odd = odd_one([history.nights[night].log_costs[row.point] for night in row.nights])
            far.update(() if odd is None else [row.nights[odd]])
    return far


def node_table(history: History) -> list[dict[str, Cell]]:
    """Return a table of the slowest nodes, each compared with nearby nights without the node."""
    unknown = "too few nights to tell it from the machine"
    return [
        {
            "node": Cell(effect.node, tone="doubt" if effect.slow else ""),
            "nights": Cell(str(len(effect.nights))),
            "speed against other nodes": Cell(
                phrases.change_text(effect.speed) if effect.speed else unknown
            ),
        }
        for effect in history.nodes[:_MOST_NODES]
    ]


def _head(history: History, screen: Screen, judged: tuple[str, str] | None) -> Iterator[str]:
    if said := verdict(history):
        first, *rest = wrapped(f"{said[0]:<8}  {said[1]}", screen.columns)
        yield from (screen.bold(first), *rest)
    yield from wrapped(f"history   {nights_text(history)}", screen.columns)
    last = history.nights[-1]
    host, job = last.environment.host, last.environment.job_id
    folder = last.folder and f"folder {last.folder}"
    facts = f"{last.began_at:%Y-%m-%d %H:%M}", host, job and f"job {job}", folder
    yield f"last      {', '.join(filter(None, facts))}"
    if judged:
        word, text = judged
        yield from wrapped(f"judged    {word} by compare --history: {text}", screen.columns)
    yield ""


def nights_text(history: History) -> str:
    """Summarise the nightly runs: `24 nights of Tesla V100 (node1), 2096-03-01 to 2096-03-24`."""
    nights, names = history.nights, history.names
    hosts = sorted({night.environment.host for night in nights if night.environment.host})
    where = hosts[0] if len(hosts) == 1 else phrases.counted(len(hosts), "host")
    place = f" ({where})" if hosts else ""
    return f"{history.label}{place}, {phrases.format_range(names)}"


def level_header(history: History) -> str:
    """Return the header of the column with step times, or with the metrics measured instead."""
    return next(iter(level_columns(row.point.configuration for row in history.rows)))


def standings(history: History, *, with_batches: bool = True) -> list[dict[str, Cell]]:
    """Return a table comparing each row's latest nightly result with its earlier ones."""
    nights = history.names
    cases = phrases.set_apart([row.point.configuration for row in history.rows])
    level = level_header(history)
    has_batches = with_batches and any(row.point.batch_per_gpu for row in history.rows)
    rows = []
    for row in history.rows:
        if row.nights[-1] < len(nights) - 1:
            standing = f"last measured {nights[row.nights[-1]]}"
        elif row.departure is None:
            standing = "too few nights"
        else:
            standing = phrases.percent_text(row.departure)
            standing += ", stands out" if row.stands_out else ""
            is_new = row.changes and row.level_nights <= FEWEST_NIGHTS
            standing += ", new level" if is_new else ""
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
    """Return a table with the result of each row on each of the latest nights.

    Headers are names without `day`, with which they begin; rows that share a name have batches.
    """
    level, rows = level_header(history), []
    distinct = {(row.point.configuration, row.point.gpus) for row in history.rows}
    table = standings(history, with_batches=len(distinct) < len(history.rows))
    for row, cells in zip(history.rows, table, strict=True):
        named = {header: cells[header] for header in takewhile(lambda each: each != level, cells)}
        for i in range(len(history.nights))[-_MOST_NIGHTS:]:
            cost = history.nights[i].log_costs.get(row.point)
            text = phrases.UNKNOWN if cost is None else level_text(level_at(row.point, cost))
            named[history.names[i].removeprefix(day)] = Cell(text)
        rows.append(named)
    return rows


def _no_change_text(history: History) -> str:
    """Explain why a history has no events: no change, too few nightly runs or too much noise."""
    if any(map(is_weak, history.rows)):
        return "no change of level large enough to show among nights that vary so widely"
    if not all(row.nights_missing for row in history.rows):
        return "no change of level"
    most = max(history.rows, key=lambda row: len(row.nights))
    found = len(most.nights)
    needed = found + most.nights_missing
    return (
        f"a row needs {needed} nights to tell whether its last one stands out, and {needed + 1} to "
        f"tell a change; {found} found"
    )


def event_text(event: HistoryEvent, history: History) -> tuple[str, list[str]]:
    """Describe an event: `from 2096-03-13: 2 of 4 rows slower`, and texts on what changed."""
    changes, names = event.changes, row_names(history)
    is_slower, is_drift = changes[0].throughput.value < 0, changes[0].kind == "drift"
    shown = sorted(changes, key=lambda change: change.throughput.value, reverse=not is_slower)
    details = [
        f"{names[change.point]}: {phrases.rate_word(change.point.configuration)} "
        f"{phrases.change_text(change.throughput)}"
        for change in shown[:_MOST_ROWS]
    ]
    if len(shown) > _MOST_ROWS:
        details.append(f"and {phrases.counted(len(shown) - _MOST_ROWS, 'more row')}")
    if is_drift:
        details.append("slowly: no single night began it")
    elif event.environment:
        details.append(f"changed that night: {'; '.join(map(environment_text, event.environment))}")
    else:
        details.append("no change of the environment was recorded that night")
    sides = [
        (effect.nights[0] < event.night, effect.nights[-1] >= event.night)
        for effect in history.nodes
    ]
    if {*sides} == {(True, False), (False, True)}:
        details.append("no node ran both before and since: nodes and machine cannot be told apart")
    rows = f"{len(changes)} of {phrases.counted(len(history.rows), 'row')}"
    when = f"{'drifted until' if is_drift else 'from'} {history.names[event.night]}"
    return f"{when}: {rows} {'slower' if is_slower else 'faster'}", details
