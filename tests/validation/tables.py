"""Markdown tables of a simulation and of a comparison of rules."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from gpuscale.base.text import format_percent
from gpuscale.reports.phrases import UNKNOWN
from validation.rates import Rate, coarse_rate_text
from validation.simulated_machine import Loss, LossKind
from validation.simulation import Outcome, Simulation

_SETTING_HEADERS = ("noise", "baseline from", "nights differ by", "runs")
_QUIET_HEADERS = (*_SETTING_HEADERS, "rows", "false alarms", "comparisons with one", "ok")


def figures_table(simulation: Simulation) -> str:
    rows = [
        [
            figure.promise.statement,
            f"{'≤' if figure.promise.at_most else '≥'} {figure.promise.limit:.0%}",
            _percent(figure.found),
            _interval(figure.found),
            figure.standing.value,
        ]
        for figure in simulation.figures
    ]
    return _markdown(rows, ["promised", "limit", "found", "95% interval", ""])


def quiet_table(simulation: Simulation) -> str:
    """Return the table of nights without a loss, disturbed only by noise."""
    plain = [o for o in simulation.quiet if not o.scenario.machine.peculiarity]
    return _markdown([_quiet_row(outcome) for outcome in plain], _QUIET_HEADERS)


def peculiar_table(simulation: Simulation) -> str:
    """Return the table of nights without a loss, with other disturbances than noise."""
    peculiar = [o for o in simulation.quiet if o.scenario.machine.peculiarity]
    rows = [[outcome.scenario.machine.peculiarity, *_quiet_row(outcome)] for outcome in peculiar]
    return _markdown(rows, ["disturbance", *_QUIET_HEADERS])


def lossy_table(simulation: Simulation, kind: LossKind) -> str:
    """Return the table of rows in which a kind of loss was found, by size of the loss."""
    sizes: dict[float, None] = {}
    lines: dict[tuple[str, ...], dict[float, Outcome]] = {}
    for outcome in simulation.lossy:
        loss = outcome.scenario.loss
        if loss is not None and loss.kind is kind:
            sizes[loss.size] = None
            lines.setdefault(_setting_cells(outcome), {})[loss.size] = outcome
    headers = [*_SETTING_HEADERS, *(f"loss {size:.0%}" for size in sizes)]
    rows = [
        [*cells, *(_found(found[size].found) for size in sizes), *_of_the_largest(found)]
        for cells, found in lines.items()
    ]
    return _markdown(rows, [*headers, "named rightly", "alarms elsewhere"])


def rule_tables(outcomes: Sequence[Outcome]) -> str:
    """Return a heading and a table of the results of each rule for each machine."""
    machines = dict.fromkeys(outcome.scenario.machine for outcome in outcomes)
    return "\n\n".join(
        f"### {machine.peculiarity}: {machine.run_deviation * 100:.2g}% between runs, "
        f"{machine.allocation_deviation * 100:.2g}% between allocations, "
        f"baseline of {machine.baseline.value}\n\n"
        + _rules_table([o for o in outcomes if o.scenario.machine == machine])
        for machine in machines
    )


def choice_table(outcomes: Sequence[Outcome]) -> str:
    """Return the table of losses found in noisy runs at each significance."""
    cells: dict[tuple[str, str], list[str]] = {}
    headers = ["noise", "significance"]
    for outcome in outcomes:
        scenario, loss = outcome.scenario, outcome.scenario.loss
        noise = f"{scenario.machine.run_deviation * 100:.2g} %"
        row = cells.setdefault((noise, outcome.rule), [])
        row.append(_rate(outcome.false_alarms) if loss is None else _found(outcome.found))
        headers.append("false alarms" if loss is None else f"loss {loss.size:.0%}")
    return _markdown([[*key, *row] for key, row in cells.items()], [*dict.fromkeys(headers)])


def _rules_table(outcomes: Sequence[Outcome]) -> str:
    losses = [loss for loss in dict.fromkeys(o.scenario.loss for o in outcomes) if loss is not None]
    found: dict[tuple[int, str], dict[Loss | None, Outcome]] = {}
    for outcome in outcomes:
        key = (outcome.scenario.current_runs, outcome.rule)
        found.setdefault(key, {})[outcome.scenario.loss] = outcome
    rows = [
        [
            f"{runs} : 6",
            rule,
            _rate(by_loss[None].false_alarms),
            format_percent(by_loss[None].false_alarm_comparisons.rate.value),
            *(_found(by_loss[loss].found) for loss in losses),
        ]
        for (runs, rule), by_loss in found.items()
    ]
    headers = [
        f"{'all' if loss.kind is LossKind.EVERY_N else 'T(8)'} −{loss.size:.0%}" for loss in losses
    ]
    return _markdown(rows, ["runs", "rule", "false alarms", "nights", *headers])


def _quiet_row(outcome: Outcome) -> list[str]:
    alarms = outcome.false_alarms
    nights, passed = outcome.false_alarm_comparisons, format_percent(outcome.passed.rate.value)
    return [*_setting_cells(outcome), str(alarms.of), _rate(alarms), _percent(nights), passed]


def _of_the_largest(found: dict[float, Outcome]) -> list[str]:
    """Return the cells of the largest loss: right findings, and alarms in other rows."""
    outcome = found[max(found)]
    named = UNKNOWN if outcome.named is None else format_percent(outcome.named.rate.value)
    return [named, _percent(outcome.false_alarms)]


def _setting_cells(outcome: Outcome) -> tuple[str, ...]:
    scenario = outcome.scenario
    return (
        f"{scenario.machine.run_deviation * 100:.2g} %",
        scenario.machine.baseline.value,
        f"{scenario.machine.allocation_deviation * 100:.2g} %",
        f"{scenario.current_runs} : {scenario.baseline_runs}",
    )


def _found(rate: Rate | None) -> str:
    return UNKNOWN if rate is None else coarse_rate_text(rate)


def _rate(rate: Rate) -> str:
    """`0.31 % [0.12, 0.66]`."""
    return f"{_percent(rate)} {_interval(rate)}"


def _percent(rate: Rate) -> str:
    """Format a rate with two decimals, since 1% is promised."""
    return f"{rate.rate.value * 100:.2f} %"


def _interval(rate: Rate) -> str:
    low, high = rate.rate.low, rate.rate.high
    return "" if low is None or high is None else f"[{low * 100:.2f}, {high * 100:.2f}]"


def _markdown(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    return tabulate(list(rows), headers, tablefmt="github", disable_numparse=True)
