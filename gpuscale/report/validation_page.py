"""The page docs/validation.md: promised figures, and gpuscale's rule beside the usual ones."""

from collections.abc import Iterator, Sequence
from importlib import resources
from string import Template

from tabulate import tabulate

from gpuscale.records.simulation import (
    Loss,
    LossKind,
    RuleOutcome,
    Simulation,
    Validation,
    World,
)
from gpuscale.report.simulation_text import (
    FIGURE_HEADERS,
    PECULIAR_HEADERS,
    QUIET_HEADERS,
    coarse_rate_text,
    figure_rows,
    lossy_table,
    peculiar_rows,
    quiet_rows,
    rate_text,
    size_line,
    summary_line,
    world_text,
)
from gpuscale.units import format_percent
from gpuscale.version import __version__

_TEMPLATE = "validation.md"


def validation_page(
    simulation: Simulation, validation: Validation, *, command: str, picture: str
) -> str:
    """The page as Markdown.

    Args:
        simulation: of gpuscale's rule in many worlds.
        validation: of all rules in a few worlds.
        command: that made both.
        picture: the file name of the picture beside the page.
    """
    template = resources.files("gpuscale.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    plain = [o for o in simulation.quiet if not o.scenario.world.peculiarity]
    peculiar = [o for o in simulation.quiet if o.scenario.world.peculiarity]
    return Template(template).substitute(
        command=command,
        picture=picture,
        version=__version__,
        size=size_line(simulation),
        summary=summary_line(simulation),
        figures=_markdown(figure_rows(simulation.figures), FIGURE_HEADERS),
        quiet=_markdown(quiet_rows(plain), QUIET_HEADERS),
        peculiar=_markdown(peculiar_rows(peculiar), PECULIAR_HEADERS),
        every=_markdown(*lossy_table(simulation.lossy, LossKind.EVERY_N)),
        largest=_markdown(*lossy_table(simulation.lossy, LossKind.LARGEST_N)),
        each=f"{validation.comparisons:,}",
        rules="\n\n".join(_rules(validation)),
    )


def _rules(validation: Validation) -> Iterator[str]:
    for world in dict.fromkeys(outcome.scenario.world for outcome in validation.outcomes):
        yield f"### {_world_heading(world)}"
        yield _markdown(
            *_rules_table([o for o in validation.outcomes if o.scenario.world == world])
        )


def _world_heading(world: World) -> str:
    return (
        f"{world_text(world)}, {world.allocation_deviation * 100:.2g}% between allocations, "
        f"baseline of {world.baseline.value}"
    )


def _rules_table(outcomes: Sequence[RuleOutcome]) -> tuple[list[list[str]], list[str]]:
    losses = [loss for loss in dict.fromkeys(o.scenario.loss for o in outcomes) if loss is not None]
    rows: dict[tuple[int, str], dict[Loss | None, RuleOutcome]] = {}
    for outcome in outcomes:
        key = (outcome.scenario.current_runs, outcome.rule)
        rows.setdefault(key, {})[outcome.scenario.loss] = outcome
    headers = ["runs", "rule", "false alarms", "nights", *(_loss_header(loss) for loss in losses)]
    return [
        [
            f"{runs} : 6",
            rule,
            rate_text(found[None].alarms),
            format_percent(found[None].nights.rate.value),
            *(coarse_rate_text(found[loss].alarms) for loss in losses),
        ]
        for (runs, rule), found in rows.items()
    ], headers


def _loss_header(loss: Loss) -> str:
    return f"{'all' if loss.kind is LossKind.EVERY_N else 'T(8)'} −{loss.size:.0%}"


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)
