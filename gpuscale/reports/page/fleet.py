"""The page of a sweep over the nodes of a cluster: its nodes ranked by speed and listed by name."""

import html
from collections.abc import Iterable, Mapping, Sequence

from gpuscale.base.text import format_percent
from gpuscale.records import Estimate
from gpuscale.records.cause import NodeState, NodeVerdict
from gpuscale.reports.campaign_text import SweepView
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.page import TONES, Block, Section, Table, rendered
from gpuscale.reports.phrases import counted, found_change_text, to_minutes

_TONES: Mapping[NodeState, Tone] = {
    NodeState.SICK: "loss",
    NodeState.UNCLEAR: "doubt",
    NodeState.HEALTHY: "pass",
}
_WIDTH, _HEIGHT, _LEFT = 440, 200, 56
_LINE, _CELL, _CHARACTER = 20, 38, 7
_OF_GRID = "Speed of each node in %, by its slowest GPU or all GPUs; columns are last digits."


def fleet_html(view: SweepView) -> str:
    """Return the HTML of a sweep's page; raise UsageError if Jinja2 is missing."""
    record, (code, word) = view.record, view.exit_code_and_word
    blocks = [
        Block(
            title=f"{node.node}: {speed}", text=text.replace("   ", "; "), tone=_TONES[node.state]
        )
        for node, speed, text in view.lines()
    ]
    measured = [(node, node.speed) for node in view.nodes if node.speed is not None]
    out = [
        {"reason": Cell(reason), "nodes": Cell(", ".join(names)), "detail": Cell(detail)}
        for (reason, detail), names in view.left_out().items()
    ]
    words = frozenset(("nodes", "detail"))
    left = Table(caption="Nodes without a measurement", rows=out, words=words)
    sections = (
        Section(title="Sick and unclear nodes", blocks=blocks),
        Section(title="Ranked by speed", figures=[_strip(measured)] if measured else []),
        Section(title="By name", intro=_OF_GRID, figures=[_grid(view.nodes)]),
        Section(title="Not measured", tables=[left] if out else []),
    )
    moment = to_minutes(record.created_at)
    facts = [("measured", f"{record.cluster}, partition {record.partition}, {moment}")]
    facts += [("exclude", view.exclude)] if view.exclude else []
    return rendered(
        [part for part in sections if part.blocks or part.figures or part.tables],
        title=f"{word}: nodes of {record.cluster}",
        place=f"Nodes of {record.cluster}",
        word=word,
        first=view.summary,
        facts=facts,
        tone=TONES.get(code, "doubt"),
    )


def _strip(nodes: Iterable[tuple[NodeVerdict, Estimate]]) -> str:
    """Return an SVG chart of each node's speed with its interval, slowest node first."""
    ranked = sorted(nodes, key=lambda each: each[1].value)
    slowest, fastest = min(ranked[0][1].value, 0.0), max(ranked[-1][1].value, 0.0)
    room = 0.1 * max(fastest - slowest, 0.01)

    def y(speed: float | None, other: float) -> float:
        inside = min(max(other if speed is None else speed, slowest - room), fastest + room)
        return 8 + (_HEIGHT - 30) * (fastest + room - inside) / (fastest - slowest + 2 * room)

    zero = y(0.0, 0.0)
    marks = [f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{zero}" y2="{zero}" stroke="var(--line)"/>']
    for number, (node, speed) in enumerate(ranked):
        x = _LEFT + (_WIDTH - _LEFT - 8) * (number + 0.5) / len(ranked)
        low, middle, high = (y(v, speed.value) for v in (speed.low, speed.value, speed.high))
        line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"'
        dot = f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="2.5" fill="currentColor"/>'
        marks.append(_of_node(node, f'{line} stroke="currentColor" stroke-opacity=".5"/>{dot}'))
    for value in sorted({slowest, 0.0, fastest}):
        if value == 0 or abs(y(value, value) - zero) > 12:
            text = format_percent(value, signed=True) if value else "0 %"
            marks.append(_text(0, y(value, value) + 4, text))
    title = f"Speed of {counted(len(ranked), 'node')} beside their kind, the slowest first"
    return _drawing(title, _WIDTH, _HEIGHT, [*marks, _text(_LEFT, _HEIGHT - 4, title)])


def _grid(nodes: Sequence[NodeVerdict]) -> str:
    """Return an SVG grid of speeds; nodes whose names differ only in the last digit share a row."""
    places = {node.node: len(node.node) - node.node[-1].isdigit() for node in nodes}
    rows = sorted({name[:at] for name, at in places.items()})
    left = _CHARACTER * (2 + max(map(len, rows)))
    marks = [_text(0, _LINE * (2 + place), f"{row}…") for place, row in enumerate(rows)]
    marks += [_text(left + _CELL * digit, _LINE, str(digit)) for digit in range(10)]
    for node in nodes:
        row, digit = node.node[: places[node.node]], node.node[places[node.node] :]
        speed = "–"
        if node.speed is not None:
            # Two digits and a decimal are too wide for the column.
            decimals = 1 if abs(node.speed.value) < 0.0995 else 0
            speed = format_percent(node.speed.value, signed=True, decimals=decimals)[:-2]
        at = left + _CELL * int(digit or 0), _LINE * (2 + rows.index(row))
        marks.append(_of_node(node, _text(*at, speed)))
    return _drawing(_OF_GRID, left + 10 * _CELL, _LINE * (2 + len(rows)), marks)


def _of_node(node: NodeVerdict, marks: str) -> str:
    """Wrap a node's SVG marks in the colour of its state, with name and speed as a tooltip."""
    title = f"<title>{html.escape(node.node)}: {found_change_text(node.speed)}</title>"
    weight = ' font-weight="700"' if node.state in (NodeState.SICK, NodeState.UNCLEAR) else ""
    return f'<g style="color:var(--{_TONES.get(node.state, "quiet")})"{weight}>{title}{marks}</g>'


def _text(x: float, y: float, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="12" fill="currentColor"'
    return f"<text {place}>{html.escape(text)}</text>"


def _drawing(title: str, width: float, height: float, marks: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width} {height}" role="img"'
    return f"<svg {box}><title>{title}</title>{''.join(marks)}</svg>"
