"""The parts of a step as text: efficiency budget, stragglers, phases, and the ranks' paces."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuscale.analysis.step_parts import (
    EfficiencyBudget,
    TypicalStep,
    efficiency_budgets,
    typical_steps,
)
from gpuscale.base.grouping import by_key
from gpuscale.base.host import GPU_KINDS
from gpuscale.base.strategies import STRATEGIES
from gpuscale.base.text import format_percent, format_seconds, whole_percent
from gpuscale.records import Configuration, GpuSummary, PointKey, Run
from gpuscale.reports import phrases
from gpuscale.reports.cause_evidence import NAMED_SKEW, slow_rank
from gpuscale.reports.columns import Cell, named_on, text_table
from gpuscale.reports.screen import fitted

NAMED_DATA_WAIT = 0.1
"""Share of a step above which waiting for batches is reported."""
_NO_RANK = "no rank is the slowest beyond chance"
_LAGS = 0.05
"""Lag above which a rank is marked, as a share of the median pace of the ranks in its run."""
_TELEMETRY: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("sm_clock_mean_mhz", "SM clock", "{:.0f} MHz".format),
    ("power_mean_w", "power", "{:.0f} W".format),
    ("utilization_mean", "busy", whole_percent),
    ("temperature_max_c", "hottest", "{:.0f} °C".format),
)


def budget_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a blank line, the budget's findings and its legend; nothing if nothing was found."""
    lines = list(budget_findings(runs))
    if not lines:
        return
    width = max(len(label) for label, _ in lines)
    yield ""
    yield from (f"{label:<{width}}  {text}" for label, text in lines)
    yield from budget_legend(efficiency_budgets(runs))


def budget_findings(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield each row's efficiency budget, its stragglers and its waiting time for data.

    Each item is a label and a text: `mnist_cnn/ddp 4 GPUs`, `E 0.84 = 1 − communication 0.09 − …`.
    """
    names = phrases.set_apart([run.configuration for run in runs])
    for budget in efficiency_budgets(runs):
        if budget.parts:
            label = phrases.row_text(names, budget.configuration, budget.key.gpus)
            yield from ((label, text) for text in _of_budget(budget, runs))
    for point, step in typical_steps(runs).items():
        if point.configuration.data in ("loader", "real") and step.data_wait > NAMED_DATA_WAIT:
            yield (
                phrases.row_text(names, point.configuration, point.gpus),
                f"{format_percent(step.data_wait)} of a step is a wait for its batch: the loader "
                "sets the pace; give it more --data-workers, or measure GPUs alone with --data "
                "synthetic",
            )


def budget_legend(budgets: Iterable[EfficiencyBudget]) -> Iterator[str]:
    """Yield lines that define the terms in efficiency budgets, such as communication."""
    parts = [part for budget in budgets for part in budget.hundredths.items()]
    named, has_gain = {part for part, _ in parts}, any(points < 0 for _, points in parts)
    if "communication" in named:
        yield (
            "E: efficiency, the speedup over the number of devices; communication: exposed, "
            "without the overhead that a single rank has too (show --phases includes it); rest: "
            f"mostly slower computing{'; +: a gain, or noise' if has_gain else ''}"
        )
    if "bubble" in named:
        yield (
            "micro-batching: the extra time of micro-batches on one device, beside the whole "
            "batch; bubble: the wait of the slowest stage, with transfers; imbalance: its lag "
            "behind the mean stage"
        )


def _of_budget(budget: EfficiencyBudget, runs: Iterable[Run]) -> Iterator[str]:
    """Yield the efficiency budget, caveats, and lines on ranks that keep other ranks waiting."""
    yield budget_text(budget)
    if (lost := budget.parts.get("micro-batching")) is not None:
        speedup = budget.key.gpus * (budget.efficiency.value + lost)
        yield (
            f"S {speedup:.2f} against a single device with the same micro-batches, so without "
            "their cost, but with bubble and imbalance"
        )
    for part in ("skew", "imbalance"):
        if budget.parts.get(part, 0.0) >= NAMED_SKEW:
            point = (budget.configuration, budget.key)
            of_row = [run for run in runs if (run.configuration, run.key) == point]
            yield f"{part}: {slow_rank(of_row) or _NO_RANK}"


def budget_text(budget: EfficiencyBudget) -> str:
    """Format a budget with decimals that add up: `E 0.84 = 1 − communication 0.09 − …`."""
    efficiency, *lost = budget.hundredths.items()
    terms = "".join(f" {'+' if n < 0 else '−'} {name} {abs(n) / 100:.2f}" for name, n in lost)
    absent = ", ".join(budget.absent)
    note = f" (not measured, so in the rest: {absent})" if absent else ""
    doubt = f" {phrases.OPEN}" if phrases.is_uncertain(budget.efficiency) else ""
    return f"E {efficiency[1] / 100:.2f}{doubt} = 1{terms}{note}"


def phase_lines(runs: Sequence[Run], columns: int) -> Iterator[str]:
    """Yield the table of phases, its notes, and the connections between the ranks."""
    if steps := typical_steps(runs):
        yield from (text_table(phase_cells(steps), columns), "")
        yield from fitted(phase_notes(steps), columns)
    else:
        yield "no phases were recorded"
    if connections := [*_connection_lines(runs)]:
        yield from ("", *fitted(connections, columns))


def phase_cells(steps: Mapping[PointKey, TypicalStep]) -> list[dict[str, Cell]]:
    """Return a row per point: each phase's time and, on a second line, its share of the step."""
    names = phrases.set_apart([point.configuration for point in steps])
    phases = [
        name
        for name in next(iter(steps.values())).phases_s
        if name not in ("wait", "skew") or any(step.phases_s[name] for step in steps.values())
    ]
    rows = []
    for point, step in steps.items():
        row = {
            "case": Cell(names[point.configuration]),
            "GPUs": Cell(str(point.gpus)),
            "step": Cell(format_seconds(step.time_s)),
        }
        for name in phases:
            time_s = step.phases_s[name]
            row[name] = Cell(phrases.UNKNOWN)
            if time_s is not None:
                share = format_percent(time_s / step.time_s)
                row[name] = Cell(phrases.amount_text(time_s, "s"), share)
        total_s = sum(filter(None, step.phases_s.values()))
        rows.append({**row, "sum": Cell(format_percent(total_s / step.time_s))})
    return named_on((point.configuration.device for point in steps), rows)


def phase_notes(steps: Mapping[PointKey, TypicalStep]) -> Iterator[str]:
    """Explain the columns, and name strategies whose forward and backward include collectives."""
    configurations = phrases.configurations_text(point.configuration for point in steps)
    yield f"{configurations}; per step, and as a share of it; of the median rank; means over runs"
    if any(step.phases_s["communication"] is not None for step in steps.values()):
        yield (
            "communication: exposed; a step with gradient synchronisation less one without, the "
            "mean over runs; it includes what it costs a single rank (there in backward), which "
            "the efficiency budget leaves out"
        )
    if any(step.phases_s["skew"] for step in steps.values()):
        yield "skew: what the slowest rank takes longer than the median rank"
    if any(step.phases_s["wait"] is not None for step in steps.values()):
        yield "pipeline: phases of the slowest stage; wait: for other stages and exposed transfers"
    several = dict.fromkeys(p.configuration.strategy for p in steps if p.gpus > 1)
    inside = {name: STRATEGIES[name].inside_computing for name in several if name in STRATEGIES}
    for strategy, collectives in inside.items():
        if collectives is not None:
            yield f"{strategy}: {collectives} are inside forward and backward, and not separable"


def _connection_lines(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each kind of connection between ranks, with the rows that used it."""
    rows: dict[str, dict[str, None]] = {}
    for run in runs:
        # Often only rank 0 logs the library's version.
        libraries = (node.connections.get("library") for node in run.nodes)
        kind = GPU_KINDS.get(run.configuration.device, GPU_KINDS["cuda"])
        library = next(filter(None, libraries), kind.library)
        for node in run.nodes:
            if node.connections:
                facts = {**node.connections, "library": library}
                text = ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))
                rows.setdefault(text, {})[run.label] = None
    yield from (f"{'; '.join(labels)}: {text}" for text, labels in rows.items())


def rank_cells(runs: Iterable[Run]) -> list[dict[str, Cell]]:
    """Return a row for each rank of each point's slowest run: its pace and its GPUs' counters.

    A rank's pace is its time per step without waits; runs that recorded no pace are ignored.
    """
    valid = (run for run in runs if run.is_valid)
    paced = (run for run in valid if any(rank.pace_s is not None for rank in run.ranks))
    points = by_key((PointKey.of(run), run) for run in paced).values()
    slowest = [max(point, key=lambda run: run.step_time_s) for point in points]
    names = phrases.set_apart([run.configuration for run in slowest])
    return [row for run in slowest for row in _rank_rows(run, names)]


def _rank_rows(run: Run, names: Mapping[Configuration, str]) -> Iterator[dict[str, Cell]]:
    summaries = {summary.uuid: summary for summary in run.gpu_summaries}
    median_s = statistics.median_low(rank.pace_s for rank in run.ranks if rank.pace_s is not None)
    for rank in sorted(run.ranks, key=lambda report: report.rank):
        devices = [summaries[uuid] for uuid in rank.device_uuids if uuid in summaries]
        numbers = ", ".join(f"GPU {number}" for number in rank.devices) or "CPU"
        lags = rank.pace_s is not None and rank.pace_s > (1 + _LAGS) * median_s
        reasons = (each.clock_event_reasons or {} for each in devices)
        shares = (each for reasons_of_device in reasons for each in reasons_of_device.items())
        held = ", ".join(f"{each.replace('_', ' ')} {whole_percent(by)}" for each, by in shares)
        yield {
            "row": Cell(phrases.row_text(names, run.configuration, run.gpus), f"run {run.index}"),
            "rank": Cell(f"rank {rank.rank}", f"{rank.host}, {numbers}"),
            "own pace": Cell(
                phrases.known_text(rank.pace_s, format_seconds), tone="doubt" if lags else ""
            ),
            **{label: Cell(_counter(devices, field, form)) for field, label, form in _TELEMETRY},
            "held back by": Cell(held or phrases.UNKNOWN),
        }


def _counter(summaries: Sequence[GpuSummary], field: str, form: Callable[[float], str]) -> str:
    values = [each.values[field] for each in summaries if field in each.values]
    return phrases.format_range([*map(form, sorted(values))]) if values else phrases.UNKNOWN
