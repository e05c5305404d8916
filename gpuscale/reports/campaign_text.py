"""Reports on sweeps over a cluster's nodes (in every output format) and on bisections."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from gpuscale.base.errors import ExitCode, GpuscaleError
from gpuscale.base.grouping import by_key
from gpuscale.base.text import counted, format_percent
from gpuscale.judge.compare import compare_sides
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import baseline_of_results, sides_of
from gpuscale.records import Estimate, Results
from gpuscale.records.cause import Bisection, BisectionFinding, NodeState, NodeVerdict, Reason
from gpuscale.records.configuration import ALL_ROWS
from gpuscale.records.environment_diff import listed
from gpuscale.records.record import document_text
from gpuscale.reports.cause_evidence import evidence
from gpuscale.reports.cause_words import headline
from gpuscale.reports.columns import Column, csv_text
from gpuscale.reports.comparison.formats import family
from gpuscale.reports.phrases import found_change_text
from gpuscale.store.campaign_folders import SweepRecord, row_of

_MOST_HEALTHY = 8
"""Maximum number of results from healthy nodes with which a sick or unclear node is compared."""
_CODES = {
    NodeState.SICK: (ExitCode.REGRESSED, "SICK"),
    NodeState.UNCLEAR: (ExitCode.INCONCLUSIVE, "UNCLEAR"),
    NodeState.NOT_MEASURED: (ExitCode.INCOMPLETE, "INCOMPLETE"),
    NodeState.HEALTHY: (ExitCode.OK, "OK"),
}
"""Exit code and verdict of a sweep, keyed by state; the first state found on any node decides."""
_THIS_HOST = "the host of the sweep, whose clock is used; synchronise them (chronyc tracking)"


class SweepView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the report formats show about a sweep over a cluster's nodes."""

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
        """Text that counts the nodes in the worst state found, and the nodes not measured."""
        counts = Counter(node.state for node in self.nodes)
        bad = next((s for s in (NodeState.SICK, NodeState.UNCLEAR) if counts[s]), None)
        text = f"{counts[bad or NodeState.HEALTHY]} of {counted(counts.total(), 'node')}"
        text += "" if bad else " healthy"
        reasons = Counter(node.reason for node in self.nodes if node.reason).most_common()
        why = ", ".join(f"{count} {reason}" for reason, count in reasons)
        return f"{text}; {counts[NodeState.NOT_MEASURED]} not measured ({why})" if why else text

    def lines(self) -> list[tuple[NodeVerdict, str, str]]:
        """Return (verdict, speed, description of what is slow) for each sick or unclear node."""
        found = []
        for node in self.nodes:
            if node.state in (NodeState.SICK, NodeState.UNCLEAR):
                where, row = "", node.row
                if row is not None and (row.device is not None or row.gpus > 1):
                    where = f"all {row.gpus} GPUs" if row.device is None else f"GPU {row.device}"
                texts = [": ".join(filter(None, (where, self.evidence.get(node.node))))]
                if node.past is not None:
                    texts.append(f"{format_percent(node.past, signed=True)} in earlier sweeps")
                text = "   ".join(filter(None, (*texts, _seen_text(node))))
                found.append((node, found_change_text(node.speed), text))
        return found

    def left_out(self) -> dict[tuple[str, str], list[str]]:
        """Return the names of the nodes that were not measured, keyed by reason and its details."""
        return by_key(((n.reason, n.detail), n.node) for n in self.nodes if n.reason)


def _seen_text(node: NodeVerdict) -> str:
    seen = f"in {node.jobs_slow} of {counted(node.jobs, 'job')}".replace("2 of 2", "both of 2")
    if node.state is NodeState.SICK or node.needs_job:
        return seen
    if node.jobs_slow < node.jobs:
        return "not seen again"
    return f"{seen}, but the other nodes differ too much to prove it"


def evidence_of(
    nodes: Sequence[NodeVerdict], read: Sequence[tuple[str, Results]]
) -> dict[str, str]:
    """Map sick and unclear nodes to how they differ from healthy ones; `read`: (node, results)."""
    healthy = {node.node for node in nodes if node.state is NodeState.HEALTHY}
    others = [results for node, results in read if node in healthy][:_MOST_HEALTHY]
    found = {}
    for node in (node for node in nodes if others and node.node not in healthy):
        own = [results for name, results in read if name == node.node]
        if node.row is not None and node.row.device is not None:
            # The other GPUs of the node would hide what is slow on this one.
            own = [
                replace(results, runs=tuple(r for r in results.runs if row_of(r) == node.row))
                for results in own
            ]
        try:
            sides = sides_of(baseline_of_results(others, name="other nodes"), own)
            compared = diagnose(sides, compare_sides(sides, ALL_ROWS))
        except GpuscaleError:
            continue
        causes = [cause for entry in compared.entries for cause in entry.causes]
        if facts := [fact for cause in causes for fact in (headline(cause), *evidence(cause))]:
            found[node.node] = "; ".join(dict.fromkeys(facts[:2]))
    return found


def _text(view: SweepView) -> str:
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
    """Return the sweep as a JSON document (docs/tools.md); unknown values are null."""
    code, word = view.exit_code_and_word
    return document_text(
        "gpuscale-fleet",
        word=word,
        exit_code=code,
        summary=view.summary,
        exclude=view.exclude,
        evidence=view.evidence,
        sweep=view.record,
        clock_errors_s=view.clock_errors_s,
        nodes=view.nodes,
    )


def _csv(view: SweepView) -> str:
    names = [name for name in NodeVerdict.__struct_fields__ if name not in ("speed", "row")]
    columns: list[Column[NodeVerdict]] = [
        *map(Column, names),
        Column("speed", interval="[]"),
        Column("gpus", value=lambda node: node.row and node.row.gpus),
        Column("device", value=lambda node: node.row and node.row.device),
    ]
    return csv_text(columns, view.nodes, cluster=view.record.cluster)


def _openmetrics(view: SweepView) -> str:
    """Return the sweep as gauges for node_exporter's textfile collector; no final newline."""
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

_WHY: Mapping[Reason, str] = {
    "noise": "the runs vary too much to tell the environments apart; allow more with --runs 3:20",
    "trials": "the budget of trials is spent; the same command with more --trials goes on",
    "time": "the time is up; the same command with more --time goes on",
    "cannot be tried": "an environment of the proof cannot be made or gives no number",
    "not explained": "the loss is not shown to come and go with them; allow more with --runs 3:20",
}
_MOST_NAMED = 8
_APART = ("alone in the good environment", "taken back in the bad one")
_IN_ORDER = ("against the commit before it", "the rest of the commits")


def trial_text(rows: Sequence[tuple[str, str, Estimate | None]]) -> str:
    """Describe a bisection trial, which compares each environment with the one before it.

    A row is a label (`slower`), a name, and the speed relative to the row before; None if unknown.
    """
    return "\n".join(
        f"   {answer:<10} {found_change_text(speed) if speed else '':<28} {words}"
        for answer, words, speed in rows
    )


def bisection_text(
    found: Bisection,
    changes: Sequence[str],
    remedy: str,
    left: Sequence[str],
    *,
    is_ordered: bool = False,
) -> str:
    """Describe the result of a bisection: the slowdown, the changes that cause it, the next step.

    `found` refers to `changes` by index; `remedy` is the next step if the cause was found. `left`
    lists differences that were not tried. `is_ordered` is true if the changes are commits.
    """
    rest = f"what is left: {listed(left, _MOST_NAMED)}" if left else ""
    if found.finding is BisectionFinding.SAME:
        rest = rest or "what is left: driver, firmware, kernel, node"
        said = f"SAME   both run alike here and now, {found_change_text(found.loss)}"
        return f"{said}\nnext   these changes are not it; {rest}"
    loss = [f"loss   {found_change_text(found.loss)} in the bad environment"] if found.loss else []
    if found.finding is BisectionFinding.UNDECIDED:
        heading = "UNDECIDED"
    else:
        joint = " or " if is_ordered else " with "
        units = ([changes[at] for at in unit] for unit in found.culprits)
        heading = f"{found.finding.name}  {'; '.join(listed(unit, 4, joint) for unit in units)}"
    why = remedy if found.reason is None else "; ".join(filter(None, (_WHY[found.reason], rest)))
    ends = zip(_IN_ORDER if is_ordered else _APART, (found.alone, found.taken_back), strict=True)
    proofs = [f"       {end:<31} {found_change_text(seen)}" for end, seen in ends if seen]
    return "\n".join((*loss, heading, *proofs, f"next   {why}"))


def report_text(result: str, measured: str, trials: Sequence[str], changes: Sequence[str]) -> str:
    """Return a bisection report in Markdown for an issue tracker; `measured`: command, machine."""
    parts = ((result,), (measured,), ("trials:", *trials), ("changes:", *changes))
    blocks = ("```text\n" + "\n".join(lines) + "\n```" for lines in parts)
    return "\n\n".join(["**gpuscale bisect**", *blocks]) + "\n"
