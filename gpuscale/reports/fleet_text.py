"""The verdict on a sweep over the nodes of a cluster: as text, and in formats for programs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuscale.base.errors import ExitCode, GpuscaleError
from gpuscale.base.units import counted, format_percent
from gpuscale.judge.compare.comparison import Choice, compare_sides
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.recording import baseline_of_results
from gpuscale.judge.sides import sides_of
from gpuscale.records import Results
from gpuscale.records.fleet import Doubt, FleetVerdict, NodeState, NodeVerdict
from gpuscale.records.json_text import document_text
from gpuscale.reports.cause_words import evidence, headline
from gpuscale.reports.columns import Column, csv_text
from gpuscale.reports.comparison.as_openmetrics import family
from gpuscale.reports.phrases import interval_text
from gpuscale.store.sweep import SweepRecord

_MOST_HEALTHY = 8
"""Maximum number of healthy nodes with which a sick or unclear node is compared."""
_CODES = {
    NodeState.SICK: (ExitCode.REGRESSED, "SICK"),
    NodeState.UNCLEAR: (ExitCode.INCONCLUSIVE, "UNCLEAR"),
    NodeState.NOT_MEASURED: (ExitCode.INCOMPLETE, "INCOMPLETE"),
    NodeState.HEALTHY: (ExitCode.OK, "OK"),
}
"""Exit code and verdict of a sweep, for the first of these states that any node is in."""
_DOUBTS: Mapping[Doubt, str] = {
    "one job": "in one job so far",
    "not seen again": "not seen again",
    "nodes differ": "in every job, but the other nodes differ too much to prove it",
}
_THIS_HOST = "the host of the sweep, whose clock is used; synchronise them (chronyc tracking)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A judged sweep, as all formats show it."""

    record: SweepRecord
    verdict: FleetVerdict
    evidence: Mapping[str, str]
    """Causes found on sick and unclear nodes by comparison with healthy ones, keyed by node."""
    exclude: str
    """The sick nodes, in the format of `--exclude`."""
    clock_errors_s: Mapping[str, float]
    """Seconds by which a node's clock is ahead of the clock of the sweep; negative if behind."""

    @property
    def exit_code_and_word(self) -> tuple[ExitCode, str]:
        """Exit code of `gpuscale fleet`, and the verdict in one word."""
        states = {node.state for node in self.verdict.nodes}
        if states == {NodeState.NOT_MEASURED}:
            return ExitCode.NOTHING_COMPARABLE, "NOT JUDGED"
        return next(_CODES[state] for state in _CODES if state in states)

    @property
    def summary(self) -> str:
        """Number of sick, else of unclear, else of healthy nodes, and of nodes not measured."""
        counts = Counter(node.state for node in self.verdict.nodes)
        bad = next((s for s in (NodeState.SICK, NodeState.UNCLEAR) if counts[s]), None)
        text = f"{counts[bad or NodeState.HEALTHY]} of {counted(counts.total(), 'node')}"
        if bad is None:
            spread = max((kind.spread for kind in self.verdict.kinds), default=0.0)
            text += " healthy" + (f", they differ by {format_percent(spread)}" if spread else "")
        out = self.verdict.in_state(NodeState.NOT_MEASURED)
        reasons = Counter(str(node.reason) for node in out).most_common()
        why = ", ".join(f"{count} {reason}" for reason, count in reasons)
        return f"{text}; {len(out)} not measured ({why})" if out else text

    def lines(self) -> list[tuple[NodeVerdict, str, str]]:
        """Return each sick or unclear node, its speed as text, and a text on where it is slow."""
        found = []
        for node in self.verdict.nodes:
            if node.state in (NodeState.SICK, NodeState.UNCLEAR):
                row, seen = node.row, f"in {node.jobs_slow} of {node.jobs} jobs"
                where = "" if row is None or row.gpus == 1 else f"all {row.gpus} GPUs"
                where = where if row is None or row.device is None else f"GPU {row.device}"
                why = ": ".join(filter(None, (where, self.evidence.get(node.node))))
                past = "slower than in earlier sweeps" if node.against == "past" else ""
                seen = seen.replace("2 of 2", "both of 2")
                seen = _DOUBTS[node.doubt] if node.doubt else seen
                found.append((node, speed_text(node), "   ".join(filter(None, (why, past, seen)))))
        return found

    def left_out(self) -> dict[tuple[str, str], list[str]]:
        """Return the nodes that were not measured, grouped by reason and detail."""
        found: dict[tuple[str, str], list[str]] = {}
        details = self.record.not_measured()
        for node in self.verdict.in_state(NodeState.NOT_MEASURED):
            key = str(node.reason), details.get(node.node, ("", ""))[1]
            found.setdefault(key, []).append(node.node)
        return found


def speed_text(node: NodeVerdict) -> str:
    """Format how much slower or faster a node is: `−7.8 % [−9.1 %, −6.4 %]`."""
    return interval_text(node.speed, lambda value: format_percent(value, signed=True))


def evidence_of(verdict: FleetVerdict, read: Sequence[tuple[str, Results]]) -> dict[str, str]:
    """Compare sick and unclear nodes with healthy ones; return the first two findings on each."""
    healthy = {node.node for node in verdict.in_state(NodeState.HEALTHY)}
    others = [results for node, results in read if node in healthy][:_MOST_HEALTHY]
    found = {}
    for node in (node.node for node in verdict.nodes if others and node.node not in healthy):
        own = [results for name, results in read if name == node]
        try:
            sides = sides_of(baseline_of_results(others, name="other nodes"), own)
            compared = diagnose(sides, compare_sides(sides, Choice()))
        except GpuscaleError:
            continue
        causes = [cause for entry in compared.entries for cause in entry.causes]
        facts = [fact for cause in causes for fact in (headline(cause), *evidence(cause))]
        if facts:
            found[node] = "; ".join(dict.fromkeys(facts[:2]))
    return found


def _text(view: SweepView) -> str:
    """Return the sick nodes, the unclear nodes and the nodes not measured, as lines of text."""
    lines = [(view.exit_code_and_word[1], view.summary)]
    for node, speed, where in view.lines():
        is_sick = node.state is NodeState.SICK
        label, name = (node.node, "") if is_sick else ("unclear", f"{node.node} ")
        lines.append((label, f"{name}{speed}   {where}"))
    for (reason, detail), names in view.left_out().items():
        lines.append((reason, f"{', '.join(names)}{detail and f': {detail}'}"))
    for name, error_s in view.clock_errors_s.items():
        way = "ahead of" if error_s > 0 else "behind"
        lines.append(("clock", f"{name} is {abs(error_s) / 60:.3g} min {way} {_THIS_HOST}"))
    lines += [("exclude", view.exclude)] if view.exclude else []
    width = max(10, *(len(label) for label, _ in lines))
    return "\n".join(f"{label:{width}} {text}" for label, text in lines)


def _json(view: SweepView) -> str:
    """Return a JSON document (docs/tools.md); unknown values are null."""
    code, word = view.exit_code_and_word
    known = {"word": word, "exit_code": code, "summary": view.summary, "exclude": view.exclude}
    known |= {"evidence": view.evidence, "sweep": view.record}
    known["clock_errors_s"] = view.clock_errors_s
    return document_text("gpuscale-fleet", **known, **msgspec.structs.asdict(view.verdict))


def _csv(view: SweepView) -> str:
    """Return CSV with a line for each node."""
    names = [name for name in NodeVerdict.__struct_fields__ if name not in ("speed", "row")]
    columns: list[Column[NodeVerdict]] = [*map(Column, names), Column("speed", interval="[]")]
    columns.append(Column("gpus", value=lambda node: node.row and node.row.gpus))
    columns.append(Column("device", value=lambda node: node.row and node.row.device))
    return csv_text(columns, view.verdict.nodes, cluster=view.record.cluster)


def _openmetrics(view: SweepView) -> str:
    """Return gauges for node_exporter's textfile collector, without a final line break."""
    cluster = {"cluster": view.record.cluster, "partition": view.record.partition}
    nodes = [({**cluster, "node": node.node}, node) for node in view.verdict.nodes]
    states = [({**labels, "state": n.state.value}, 1.0) for labels, n in nodes]
    gauges = (
        ("fleet_node_state", "", "1 for the state of the node", states),
        ("fleet_node_speed", "ratio", "Speed beside its kind", [(a, n.speed) for a, n in nodes]),
        ("fleet_exit_code", "", "Exit code", [(cluster, float(view.exit_code_and_word[0]))]),
    )
    return "\n".join((*(line for gauge in gauges for line in family(*gauge)), "# EOF"))


FLEET_FORMATS: Mapping[str, Callable[[SweepView], str]] = {
    "text": _text,
    "json": _json,
    "csv": _csv,
    "openmetrics": _openmetrics,
}
"""Formats of `gpuscale fleet show`."""
