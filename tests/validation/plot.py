"""The rules of a validation as a picture: how often each calls a row worse, by what was lost."""

import io
from collections.abc import Iterable

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from validation.rule_comparison import RuleOutcome, Validation
from validation.simulated_machine import LossKind, SimulatedMachine
from validation.tables import machine_text

_STYLES = (
    ("#000000", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#0072b2", "^", "-."),
    ("#009e73", "D", ":"),
    ("#cc79a7", "v", ":"),
)
"""Colours that colour-blind people tell apart (Okabe and Ito), with a mark and a line each."""


def validation_svg(validation: Validation) -> str:
    """The picture as SVG, the same for the same validation.

    A panel for each machine and number of runs; across, the loss of T(8) alone, 0 being nights
    without one; upwards, the share of rows called worse, with its 95% interval.
    """
    machines = list(dict.fromkeys(outcome.scenario.machine for outcome in validation.outcomes))
    runs = list(dict.fromkeys(outcome.scenario.current_runs for outcome in validation.outcomes))
    with mpl.rc_context({"svg.hashsalt": "gpuscale", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 8), layout="constrained")
        axes = figure.subplots(len(machines), len(runs), sharex=True, sharey=True, squeeze=False)
        for i, machine in enumerate(machines):
            for j, count in enumerate(runs):
                _panel(axes[i][j], _of(validation.outcomes, machine, count))
                axes[0][j].set_title(f"{count} runs against 6", fontsize=9)
            axes[i][0].set_ylabel(machine_text(machine).replace(": ", "\n"))
        figure.supxlabel("loss of throughput on 8 GPUs alone; 0: none, false alarms", fontsize=9)
        figure.supylabel("share of rows called worse", fontsize=9)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _of(outcomes: Iterable[RuleOutcome], machine: SimulatedMachine, runs: int) -> list[RuleOutcome]:
    return [
        outcome
        for outcome in outcomes
        if outcome.scenario.machine == machine
        and outcome.scenario.current_runs == runs
        and (outcome.scenario.loss is None or outcome.scenario.loss.kind is LossKind.LARGEST_N)
    ]


def _panel(axes: Axes, outcomes: list[RuleOutcome]) -> None:
    by_rule: dict[str, list[RuleOutcome]] = {}
    for outcome in outcomes:
        by_rule.setdefault(outcome.rule, []).append(outcome)
    for number, (rule, points) in enumerate(by_rule.items()):
        colour, mark, line = _STYLES[number]
        # Beside each other, so that the intervals of rules that agree can be told apart.
        shift = (number - (len(by_rule) - 1) / 2) * 0.12
        sizes = [100 * (point.scenario.loss.size if point.scenario.loss else 0) for point in points]
        shares = [100 * point.alarms.rate.value for point in points]
        below, above = zip(*(_bar(point) for point in points), strict=True)
        axes.errorbar(
            [size + shift for size in sizes],
            shares,
            yerr=(below, above),
            color=colour,
            marker=mark,
            linestyle=line,
            markersize=4,
            linewidth=1.2,
            elinewidth=0.8,
            label=rule,
        )
    axes.axhline(1, color="#999999", linewidth=0.6)
    axes.set_xticks([0, 2, 5, 10], ["0", "2 %", "5 %", "10 %"])
    axes.set_yticks([0, 25, 50, 75, 100], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylim(-3, 103)


def _bar(point: RuleOutcome) -> tuple[float, float]:
    estimate = point.alarms.rate
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return 100 * (estimate.value - low), 100 * (high - estimate.value)
