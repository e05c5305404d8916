"""The verdict on a sweep over the nodes of a cluster: as text, and in formats for programs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, GpuscaleError
from gpuscale.base.text import counted, format_percent
from gpuscale.judge.compare import compare_sides
from gpuscale.judge.compare.matching import Choice
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.sides import baseline_of_results, sides_of
from gpuscale.records import Results, Run
from gpuscale.records.campaigns import FleetRow, NodeState, NodeVerdict
from gpuscale.records.record import document_text
from gpuscale.reports.cause_words import evidence, headline
from gpuscale.reports.columns import Column, csv_text
from gpuscale.reports.comparison.openmetrics import family
from gpuscale.reports.phrases import interval_text
from gpuscale.store.campaign_folders import SweepRecord, row_of

_MOST_HEALTHY = 8
"""Maximum number of healthy nodes with which a sick or unclear node is compared."""
_CODES = {
    NodeState.SICK: (ExitCode.REGRESSED, "SICK"),
    NodeState.UNCLEAR: (ExitCode.INCONCLUSIVE, "UNCLEAR"),
    NodeState.NOT_MEASURED: (ExitCode.INCOMPLETE, "INCOMPLETE"),
    NodeState.HEALTHY: (ExitCode.OK, "OK"),
}
"""Exit code and verdict of a sweep, keyed by state; the first state found on any node decides."""
_THIS_HOST = "the host of the sweep, whose clock is used; synchronise them (chronyc tracking)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A judged sweep, with everything that the report formats show."""

    record: SweepRecord
    nodes: Sequence[NodeVerdict]
    """Verdicts on all nodes, sick nodes first; within each state, the slowest node first."""
    evidence: Mapping[str, str]
    """Causes found on sick and unclear nodes by comparison with healthy ones, keyed by node."""
    exclude: str
    """Sick nodes in the format of Slurm's `--exclude`, `nid[0102,0417]`; empty if none is sick."""
    clock_errors_s: Mapping[str, float]
    """Seconds by which a node's clock is ahead of the sweep's (negative: behind), keyed by node."""

    @property
    def exit_code_and_word(self) -> tuple[ExitCode, str]:
        """Exit code of `gpuscale fleet`, and the verdict in one word."""
        states = {node.state for node in self.nodes}
        if states == {NodeState.NOT_MEASURED}:
            return ExitCode.NOTHING_COMPARABLE, "NOT JUDGED"
        return next(_CODES[state] for state in _CODES if state in states)

    @property
    def summary(self) -> str:
        """Number of sick nodes (of unclear or healthy ones if none is sick): `2 of 64 nodes; …`."""
        counts = Counter(node.state for node in self.nodes)
        bad = next((s for s in (NodeState.SICK, NodeState.UNCLEAR) if counts[s]), None)
        text = f"{counts[bad or NodeState.HEALTHY]} of {counted(counts.total(), 'node')}"
        text += "" if bad else " healthy"
        reasons = Counter(node.reason for node in self.nodes if node.reason).most_common()
        why = ", ".join(f"{count} {reason}" for reason, count in reasons)
        return f"{text}; {counts[NodeState.NOT_MEASURED]} not measured ({why})" if why else text

    def lines(self) -> list[tuple[NodeVerdict, str, str]]:
        """Return, for each sick or unclear node, its verdict, its speed and where it is slow."""
        found = []
        for node in self.nodes:
            if node.state in (NodeState.SICK, NodeState.UNCLEAR):
                row = node.row
                where = "" if row is None or row.gpus == 1 else f"all {row.gpus} GPUs"
                where = where if row is None or row.device is None else f"GPU {row.device}"
                texts = [": ".join(filter(None, (where, self.evidence.get(node.node))))]
                if node.past is not None:
                    texts.append(f"{format_percent(node.past, signed=True)} in earlier sweeps")
                text = "   ".join(filter(None, (*texts, _seen_text(node))))
                found.append((node, speed_text(node), text))
        return found

    def left_out(self) -> dict[tuple[str, str], list[str]]:
        """Return the nodes that were not measured, grouped by reason and detail."""
        found: dict[tuple[str, str], list[str]] = {}
        for node in (node for node in self.nodes if node.reason):
            found.setdefault((node.reason or "", node.detail), []).append(node.node)
        return found


def _seen_text(node: NodeVerdict) -> str:
    seen = f"in {node.jobs_slow} of {counted(node.jobs, 'job')}".replace("2 of 2", "both of 2")
    if node.state is NodeState.SICK:
        return seen
    if node.needs_job:
        return f"{seen} so far"
    proof = "the other nodes differ too much to prove it"
    return "not seen again" if node.jobs_slow < node.jobs else f"{seen}, but {proof}"


def speed_text(node: NodeVerdict) -> str:
    """Format how much slower or faster a node is: `−7.8 % [−9.1 %, −6.4 %]`."""
    return interval_text(node.speed, lambda value: format_percent(value, signed=True))


def evidence_of(
    nodes: Sequence[NodeVerdict], read: Sequence[tuple[str, Results]]
) -> dict[str, str]:
    """Compare sick and unclear nodes with healthy ones; return up to two facts, keyed by node."""
    healthy = {node.node for node in nodes if node.state is NodeState.HEALTHY}
    others = [results for node, results in read if node in healthy][:_MOST_HEALTHY]
    found = {}
    for node in (node for node in nodes if others and node.node not in healthy):
        own = [results for name, results in read if name == node.node]
        if node.row is not None and node.row.device is not None:
            # The other GPUs of the node would hide what is slow on this one.
            own = [replace(each, runs=_runs_of(each, node.row)) for each in own]
        try:
            sides = sides_of(baseline_of_results(others, name="other nodes"), own)
            compared = diagnose(sides, compare_sides(sides, Choice()))
        except GpuscaleError:
            continue
        causes = [cause for entry in compared.entries for cause in entry.causes]
        facts = [fact for cause in causes for fact in (headline(cause), *evidence(cause))]
        if facts:
            found[node.node] = "; ".join(dict.fromkeys(facts[:2]))
    return found


def _runs_of(results: Results, row: FleetRow) -> tuple[Run, ...]:
    return tuple(run for run in results.runs if row_of(run) == row)


def _text(view: SweepView) -> str:
    """Return as text the verdict, sick, unclear and unmeasured nodes, and clock errors."""
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
    return document_text("gpuscale-fleet", **known, nodes=view.nodes)


def _csv(view: SweepView) -> str:
    """Return CSV with a line for each node."""
    names = [name for name in NodeVerdict.__struct_fields__ if name not in ("speed", "row")]
    columns: list[Column[NodeVerdict]] = [*map(Column, names), Column("speed", interval="[]")]
    columns.append(Column("gpus", value=lambda node: node.row and node.row.gpus))
    columns.append(Column("device", value=lambda node: node.row and node.row.device))
    return csv_text(columns, view.nodes, cluster=view.record.cluster)


def _openmetrics(view: SweepView) -> str:
    """Return gauges for node_exporter's textfile collector, without a final line break."""
    cluster = {"cluster": view.record.cluster, "partition": view.record.partition}
    nodes = [({**cluster, "node": node.node}, node) for node in view.nodes]
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
"""Functions that format a sweep, keyed by name of the format."""
