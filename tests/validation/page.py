"""docs/evidence/validation.md: promised figures, and our rule beside usual ones.

    python tests/validation/page.py --comparisons 10000 --page docs/evidence/validation.md

Takes a few minutes on two cores. Ends with 0 where every promised figure is met, 1 where one
surely is not, and 3 otherwise.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpuscale import __version__
from gpuscale.base.errors import ExitCode
from validation.rule_comparison import (
    choice_scenarios,
    compared,
    judge_at_each_significance,
    judge_by_every_rule,
    validation_scenarios,
)
from validation.simulated_machine import LossKind
from validation.simulation import Outcome, Simulation, Standing, simulate
from validation.tables import (
    choice_table,
    figures_table,
    lossy_table,
    peculiar_table,
    quiet_table,
    rule_tables,
)

COMPARISONS_BY_EVERY_RULE = 2
"""Number of comparisons by every rule for each comparison without a loss of the simulation."""
COMPARISONS_PER_CHOICE = 3
"""Number of comparisons without a loss of the simulation for each one at every significance."""
STREAM = 1_000_000
"""Keeps the random streams of the three simulations of one seed apart."""
TEMPLATE = Path(__file__).with_name("template.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, write the page, and say how many figures are met."""
    parser = argparse.ArgumentParser(description="Simulate the judgement and write the page.")
    parser.add_argument("--page", type=Path, required=True, help="the page to write")
    parser.add_argument(
        "--comparisons", type=int, default=10_000, help="nights without a loss (default: 10000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: 1)")
    asked = parser.parse_args(arguments)
    if asked.comparisons < 1 or asked.seed < 0:
        parser.error("at least one comparison and no negative seed are needed")
    simulation = simulate(comparisons=asked.comparisons, seed=asked.seed)
    validation = compared(
        judge_by_every_rule,
        validation_scenarios(),
        comparisons=COMPARISONS_BY_EVERY_RULE * asked.comparisons,
        seed=asked.seed + STREAM,
    )
    choice = compared(
        judge_at_each_significance,
        choice_scenarios(),
        comparisons=asked.comparisons // COMPARISONS_PER_CHOICE,
        seed=asked.seed + 2 * STREAM,
    )
    command = (
        f"python tests/validation/page.py --comparisons {asked.comparisons} --seed {asked.seed} "
        f"--page {asked.page.name if asked.page.is_absolute() else asked.page}"
    )
    page = validation_page(simulation, validation, choice, command=command)
    asked.page.write_text(page, encoding="utf-8")
    sys.stdout.write(f"{summary_line(simulation)}\n")
    return exit_code(simulation)


def validation_page(
    simulation: Simulation, validation: Sequence[Outcome], choice: Sequence[Outcome], command: str
) -> str:
    """Return the page as Markdown.

    `simulation` has gpuscale's rule on many machines, `validation` all rules on a few machines, and
    `choice` gpuscale's rule at each significance that a site may choose.
    """
    quiet = sum(outcome.comparisons for outcome in simulation.quiet)
    lossy = sum(outcome.comparisons for outcome in simulation.lossy)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        command=command,
        version=__version__,
        size=(
            f"{quiet:,} comparisons without a loss and {lossy:,} with one, seed {simulation.seed}"
        ),
        summary=summary_line(simulation),
        figures=figures_table(simulation),
        quiet=quiet_table(simulation),
        peculiar=peculiar_table(simulation),
        every=lossy_table(simulation, LossKind.EVERY_N),
        largest=lossy_table(simulation, LossKind.LARGEST_N),
        choice=choice_table(choice),
        choices=f"{choice[0].comparisons:,}",
        each=f"{validation[0].comparisons:,}",
        rules=rule_tables(validation),
    )


def summary_line(simulation: Simulation) -> str:
    """The number of figures met: `15 of 16 promised figures met`."""
    met = sum(figure.is_met for figure in simulation.figures)
    return f"{met} of {len(simulation.figures)} promised figures met"


def exit_code(simulation: Simulation) -> ExitCode:
    """0 where every promised figure is met, 1 where one surely is not, 3 otherwise."""
    if all(figure.is_met for figure in simulation.figures):
        return ExitCode.OK
    surely = any(figure.standing is Standing.NOT_MET for figure in simulation.figures)
    return ExitCode.REGRESSED if surely else ExitCode.INCONCLUSIVE


if __name__ == "__main__":
    sys.exit(main())
