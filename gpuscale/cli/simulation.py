"""`gpuscale selftest --simulate`: the judgement on random nights whose truth is known."""

import argparse
import json
import os
import sys
from pathlib import Path

import msgspec

from gpuscale.cli.progress import bar
from gpuscale.errors import ExitCode, FileError, UsageError
from gpuscale.records.simulation import Simulation, Standing
from gpuscale.report.simulation_text import simulation_text
from gpuscale.report.validation_page import validation_page
from gpuscale.report.validation_plot import require_matplotlib, validation_svg
from gpuscale.selftest.simulation import simulate

COMPARISONS_BY_EVERY_RULE = 2
"""For each comparison without a loss of the simulation."""


def run_simulation(arguments: argparse.Namespace) -> int:
    """Simulate and print; 0 where every promised figure is met, 1 where one surely is not."""
    if arguments.comparisons < 1:
        raise UsageError("--comparisons: at least 1 is needed")
    if arguments.seed < 0:
        raise UsageError("--seed: a number of at least 0 is needed")
    if arguments.validation is not None:
        require_matplotlib()
    processes = len(os.sched_getaffinity(0))
    simulation = simulate(
        comparisons=arguments.comparisons,
        seed=arguments.seed,
        processes=processes,
        progress=bar(sys.stderr, "comparison"),
    )
    if arguments.validation is not None:
        _write_validation(Path(arguments.validation), simulation, arguments.comparisons, processes)
    text = _json(simulation) if arguments.format == "json" else simulation_text(simulation)
    sys.stdout.write(f"{text}\n")
    return _exit_code(simulation)


def _write_validation(page: Path, simulation: Simulation, comparisons: int, processes: int) -> None:
    # What imports scipy.stats, which takes most of a second.
    from gpuscale.selftest.validation import validate

    validation = validate(
        comparisons=COMPARISONS_BY_EVERY_RULE * comparisons,
        seed=simulation.seed,
        processes=processes,
        progress=bar(sys.stderr, "comparison by every rule"),
    )
    picture = page.with_suffix(".svg")
    command = (
        f"gpuscale selftest --simulate --comparisons {comparisons} --seed {simulation.seed} "
        f"--validation {page.name if page.is_absolute() else page}"
    )
    text = validation_page(simulation, validation, command=command, picture=picture.name)
    for path, content in ((page, text), (picture, validation_svg(validation))):
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise FileError(path, f"cannot be written: {error.strerror}") from None


def _exit_code(simulation: Simulation) -> ExitCode:
    if simulation.is_met:
        return ExitCode.OK
    surely = any(figure.standing is Standing.NOT_MET for figure in simulation.figures)
    return ExitCode.REGRESSED if surely else ExitCode.INCONCLUSIVE


def _json(simulation: Simulation) -> str:
    figures = [
        {**msgspec.to_builtins(figure), "is_met": figure.is_met, "standing": figure.standing.value}
        for figure in simulation.figures
    ]
    document = {
        "format": "gpuscale-simulation",
        "version": 1,
        **msgspec.to_builtins(simulation),
        "figures": figures,
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
