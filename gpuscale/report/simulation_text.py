"""A simulation for the terminal: the promised figures first, then every scenario."""

from collections.abc import Iterable, Iterator, Sequence

from tabulate import tabulate

from gpuscale.records.simulation import Figure, LossKind, Outcome, Rate, Simulation, World
from gpuscale.report.table import UNKNOWN
from gpuscale.units import format_percent, format_seconds

FIGURE_HEADERS = ("promised", "limit", "found", "95% interval", "")
_SETTING_HEADERS = ("noise", "baseline from", "nights differ by", "runs")
QUIET_HEADERS = (*_SETTING_HEADERS, "rows", "false alarms", "comparisons with one", "ok")
PECULIAR_HEADERS = ("disturbance", *QUIET_HEADERS)


def simulation_text(simulation: Simulation) -> str:
    """The simulation as text, without a line break at its end."""
    return "\n".join(_lines(simulation))


def summary_line(simulation: Simulation) -> str:
    """How many figures are met: `15 of 16 promised figures met`."""
    met = sum(figure.is_met for figure in simulation.figures)
    return f"{met} of {len(simulation.figures)} promised figures met"


def size_line(simulation: Simulation) -> str:
    """How much was simulated, so that it can be done again."""
    quiet = sum(outcome.comparisons for outcome in simulation.quiet)
    return (
        f"{quiet:,} comparisons without a loss and {simulation.comparisons - quiet:,} with one, "
        f"seed {simulation.seed}"
    )


def figure_rows(figures: Iterable[Figure]) -> list[list[str]]:
    """The promised figures as the rows of a table."""
    return [
        [
            figure.statement,
            f"{'≤' if figure.at_most else '≥'} {figure.limit:.0%}",
            _percent(figure.found.rate.value),
            interval_text(figure.found),
            figure.standing.value,
        ]
        for figure in figures
    ]


def quiet_rows(outcomes: Iterable[Outcome]) -> list[list[str]]:
    """The nights without a loss as the rows of a table."""
    return [
        [
            *_setting_cells(outcome),
            str(outcome.false_alarms.of),
            rate_text(outcome.false_alarms),
            _percent(outcome.false_alarm_comparisons.rate.value),
            format_percent(outcome.passed.rate.value),
        ]
        for outcome in outcomes
    ]


def peculiar_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The same for worlds in which more than noise disturbs."""
    return [
        [outcome.scenario.world.peculiarity, *row]
        for outcome, row in zip(outcomes, quiet_rows(outcomes), strict=True)
    ]


def rate_text(rate: Rate) -> str:
    """`0.31 % [0.12, 0.66]`."""
    return f"{_percent(rate.rate.value)} {interval_text(rate)}"


def coarse_rate_text(rate: Rate) -> str:
    """`97.1 % [94, 99]`, for rates that are not small."""
    low, high = rate.rate.low, rate.rate.high
    bounds = "" if low is None or high is None else f" [{low * 100:.0f}, {high * 100:.0f}]"
    return f"{format_percent(rate.rate.value)}{bounds}"


def interval_text(rate: Rate) -> str:
    """`[0.12, 0.66]`, in percent."""
    low, high = rate.rate.low, rate.rate.high
    return "" if low is None or high is None else f"[{low * 100:.2f}, {high * 100:.2f}]"


def world_text(world: World) -> str:
    """A world in a few words: `Quiet GPU node: 0.26% between runs`."""
    return f"{world.peculiarity}: {world.run_deviation * 100:.2g}% between runs"


def _lines(simulation: Simulation) -> Iterator[str]:
    yield f"{size_line(simulation)}, in {format_seconds(simulation.wall_s)}"
    yield (
        "each compares 2 cases on 1, 2, 4 and 8 GPUs (8 rows); intervals: 95%, for rows of one "
        "comparison that err together"
    )
    yield ""
    yield _table(figure_rows(simulation.figures), FIGURE_HEADERS)
    yield ""
    yield (
        "noise: deviation between the medians of runs; another night: the baseline is of one other "
        "night, and nights differ by 1%"
    )
    yield "not surely: the interval reaches to the other side of the limit"
    plain = [outcome for outcome in simulation.quiet if not outcome.scenario.world.peculiarity]
    peculiar = [outcome for outcome in simulation.quiet if outcome.scenario.world.peculiarity]
    yield "\nwithout a loss"
    yield _table(quiet_rows(plain), QUIET_HEADERS)
    yield "\nwithout a loss, where more than noise disturbs"
    yield _table(peculiar_rows(peculiar), PECULIAR_HEADERS)
    for kind in LossKind:
        yield f"\nloss of {kind.value}: rows found"
        yield _table(*lossy_table(simulation.lossy, kind))
    yield ""
    yield summary_line(simulation)


def lossy_table(outcomes: Iterable[Outcome], kind: LossKind) -> tuple[list[list[str]], list[str]]:
    """The rows found of a kind of loss, by its size: the rows of a table, and its headers."""
    sizes: dict[float, None] = {}
    lines: dict[tuple[str, ...], dict[float, Outcome]] = {}
    for outcome in outcomes:
        loss = outcome.scenario.loss
        if loss is not None and loss.kind is kind:
            sizes[loss.size] = None
            lines.setdefault(_setting_cells(outcome), {})[loss.size] = outcome
    headers = [*_SETTING_HEADERS, *(f"loss {size:.0%}" for size in sizes)]
    rows = [
        [*cells, *(_found(found[size].found) for size in sizes), *_largest(found, sizes)]
        for cells, found in lines.items()
    ]
    return rows, [*headers, "named rightly", "alarms elsewhere"]


def _largest(found: dict[float, Outcome], sizes: Iterable[float]) -> list[str]:
    """What is told of the largest loss only: whether its finding is right, and alarms elsewhere."""
    outcome = found[max(sizes)]
    return [
        UNKNOWN if outcome.named is None else format_percent(outcome.named.rate.value),
        _percent(outcome.false_alarms.rate.value),
    ]


def _percent(fraction: float) -> str:
    """Two decimals: what is promised is 1%."""
    return f"{fraction * 100:.2f} %"


def _setting_cells(outcome: Outcome) -> tuple[str, ...]:
    scenario = outcome.scenario
    return (
        f"{scenario.world.run_deviation * 100:.2g} %",
        scenario.world.baseline.value,
        f"{scenario.world.allocation_deviation * 100:.2g} %",
        f"{scenario.current_runs} : {scenario.baseline_runs}",
    )


def _found(rate: Rate | None) -> str:
    return UNKNOWN if rate is None else coarse_rate_text(rate)


def _table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers, disable_numparse=True)
