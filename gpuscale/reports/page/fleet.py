"""The page of a sweep over the nodes of a cluster: nodes ranked by speed, and by name."""

import html
from collections.abc import Mapping, Sequence

from gpuscale.base.units import format_percent
from gpuscale.records.fleet import NodeState, NodeVerdict
from gpuscale.reports.columns import Cell, Tone
from gpuscale.reports.fleet_text import SweepView, speed_text
from gpuscale.reports.page import Block, Section, Table, rendered
from gpuscale.reports.phrases import counted, to_minutes

_TONES: Mapping[NodeState, Tone] = {
    NodeState.SICK: "loss",
    NodeState.UNCLEAR: "doubt",
    NodeState.HEALTHY: "pass",
}
_WIDTH, _HEIGHT, _LEFT = 440, 200, 56


def fleet_html(view: SweepView) -> str:
    """Return the HTML of a sweep's page; raise UsageError if Jinja2 is missing."""
    record, (_, word) = view.record, view.exit_code_and_word
    blocks = [
        Block(
            title=f"{node.node}: {speed}", text=text.replace("   ", "; "), tone=_TONES[node.state]
        )
        for node, speed, text in view.lines()
    ]
    measured = [node for node in view.verdict.nodes if node.speed is not None]
    figures = [_strip(measured)] if measured else []
    grid = Table(caption="Speed of each node in %; its name is row and column", rows=_grid(view))
    out = [
        {"reason": Cell(reason), "nodes": Cell(", ".join(names)), "detail": Cell(detail)}
        for (reason, detail), names in view.left_out().items()
    ]
    words = frozenset(("nodes", "detail"))
    left = Table(caption="Nodes without a measurement", rows=out, words=words)
    sections = (
        Section(title="Sick and unclear nodes", blocks=blocks),
        Section(title="Ranked by speed", figures=figures),
        Section(title="By name", tables=[grid]),
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
        tone={"SICK": "loss", "OK": "pass"}.get(word, "doubt"),
    )


def _grid(view: SweepView) -> list[dict[str, Cell]]:
    """Return a table of node speeds, in which names that differ in the last digit share a row."""
    cells = {}
    for node in view.verdict.nodes:
        at = len(node.node) - node.node[-1].isdigit()
        text = "–" if node.speed is None else format_percent(node.speed.value, signed=True)[:-2]
        cells[node.node[:at], node.node[at:]] = Cell(text, tone=_TONES.get(node.state, ""))
    columns = sorted({column for _, column in cells})
    return [
        {"nodes": Cell(f"{row}…"), **{name: cells.get((row, name), Cell("")) for name in columns}}
        for row in sorted({row for row, _ in cells})
    ]


def _strip(nodes: Sequence[NodeVerdict]) -> str:
    """Draw the speed of each node with its interval, the slowest first."""
    speeds = sorted(((n.speed, n) for n in nodes if n.speed), key=lambda each: each[0].value)
    slowest, fastest = min(speeds[0][0].value, 0.0), max(speeds[-1][0].value, 0.0)
    room = 0.1 * max(fastest - slowest, 0.01)

    def y(speed: float) -> float:
        inside = min(max(speed, slowest - room), fastest + room)
        return 8 + (_HEIGHT - 30) * (fastest + room - inside) / (fastest - slowest + 2 * room)

    def label(x: float, at: float, text: str, anchor: str) -> str:
        place = f'x="{x}" y="{at:.1f}" text-anchor="{anchor}"'
        return f'<text {place} font-size="12" fill="currentColor">{text}</text>'

    marks = [f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(0)}" y2="{y(0)}" stroke="var(--line)"/>']
    for number, (speed, node) in enumerate(speeds):
        x = _LEFT + (_WIDTH - _LEFT - 8) * (number + 0.5) / len(speeds)
        low, high = (speed.value if end is None else end for end in (speed.low, speed.high))
        marks.append(
            f'<g style="color:var(--{_TONES.get(node.state, "quiet")})">'
            f"<title>{html.escape(node.node)}: {speed_text(node)}</title>"
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" '
            'stroke="currentColor" stroke-opacity=".5"/>'
            f'<circle cx="{x:.1f}" cy="{y(speed.value):.1f}" r="2.5" fill="currentColor"/></g>'
        )
    for value in (slowest, 0.0, fastest):
        if value == 0 or abs(y(value) - y(0)) > 12:
            marks.append(label(_LEFT - 6, y(value) + 4, format_percent(value, signed=True), "end"))
    title = f"Speed of {counted(len(speeds), 'node')} beside their kind, the slowest first"
    marks.append(label(_LEFT, _HEIGHT - 4, title, "start"))
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
    return f"<svg {box}><title>{title}</title>{''.join(marks)}</svg>"
