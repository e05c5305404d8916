"""The end of a session: table, notes, verdict and exit code."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from gpuscale.base.errors import ExitCode
from gpuscale.base.printable import visible
from gpuscale.judge.compare.notes import with_validity
from gpuscale.judge.diagnose import diagnose
from gpuscale.judge.stopping import DecidedVerdict, NarrowIntervals, StoppingRule
from gpuscale.plugin.terminal import relative
from gpuscale.records import Comparison, Results, Run
from gpuscale.reports.comparison import as_text, view_of
from gpuscale.reports.phrases import counted, injection_warning, spread_text
from gpuscale.reports.screen import Screen, fitted
from gpuscale.reports.show.scaling_table import scaling_lines


def summary_lines(
    results: Results,
    path: Path,
    rule: StoppingRule | None,
    *,
    new_runs: Sequence[Run],
    interrupted: bool,
) -> Iterator[str]:
    """Yield the lines of a table of all runs in the file, and notes on this session's runs."""
    if not results.runs:
        yield "nothing was measured: no results file was written"
        return
    if results.injections:
        yield injection_warning(results.injections)
    columns = Screen.of(sys.stdout).columns
    yield from scaling_lines(results, columns)
    notes = [*_failure_lines(results, new_runs)]
    if isinstance(rule, NarrowIntervals):
        notes += _stopping_lines(results, rule)
    if interrupted:
        notes.append(
            f"not all runs were made; go on as before, with --resume {shlex.quote(relative(path))} "
            "and without --results"
        )
    yield from fitted([*notes, f"results: {relative(path)}"], columns)


def verdict_lines(
    rule: DecidedVerdict, results: Results, files: tuple[Path, Path], colour: bool, exit_code: int
) -> Iterator[str]:
    """Yield the lines that state the verdict against the baseline and the session's exit code."""
    judged = rule.verdict_after(results)
    comparison = diagnose(judged.sides, judged.comparison)
    comparison = with_validity(comparison, judged.sides, today=date.today())
    before, after = ((visible(relative(path)),) for path in files)
    comparison = replace(
        comparison,
        baseline_kind=rule.baseline_kind,
        before=replace(comparison.before, files=before),
        after=replace(comparison.after, files=after),
    )
    screen = replace(Screen.of(sys.stdout), colour=colour)
    view = replace(view_of(comparison, [results]), exit_code=exit_code, screen=screen)
    yield from as_text.render(view).splitlines()


def _failure_lines(results: Results, new_runs: Sequence[Run]) -> Iterator[str]:
    failures = [(run, run.failure) for run in new_runs if run.failure is not None]
    for run, failure in failures:
        if failure.kind == "unsteady":
            yield f"{run.key.label}, run {run.index}, gives no number: {failure.message}"
    if not any(run.is_valid for run in results.runs):
        yield "no run gave a number: there is nothing to compare"
    if failed := sum(failure.kind != "unsteady" for _, failure in failures):
        yield f"{counted(failed, 'run')} failed and left no number; see above"


def _stopping_lines(results: Results, rule: NarrowIntervals) -> Iterator[str]:
    # Simulated: docs/evidence/rates.md, "Stopping early".
    yield "runs stopped when intervals were narrow: these cover the truth a little less often"
    for point in rule.unsettled_points(results.runs):
        widths = [
            f"{name} {spread_text(estimate)}"
            for name, estimate in (("T", point.judged), ("S", point.speedup))
            if estimate is not None and estimate.has_interval
        ]
        found = f": {', '.join(widths)}" if widths else ""
        yield (
            f"not settled to ±{rule.target * 100:g} %: {point.key.label} after "
            f"{counted(point.valid_runs, 'run')}{found}; "
            "go on with --resume and a larger maximum of --runs"
        )


def status_of_verdict(
    given: int, *, failed_tests: bool, failed_runs: bool, comparison: Comparison | None
) -> int:
    """Return the verdict's exit code, or pytest's if worse; never a pass if a run failed."""
    codes = pytest.ExitCode
    replaced = (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED)
    if given not in replaced or failed_tests:
        return given
    if comparison is None:
        return ExitCode.NOTHING_COMPARABLE
    if failed_runs and comparison.exit_code is ExitCode.OK:
        return ExitCode.INCONCLUSIVE
    return comparison.exit_code


def status_without_verdict(given: int, runs: Sequence[Run], *, needless: bool) -> int:
    """Return pytest's exit code, but never 0 if runs were needed and none was valid."""
    if given != pytest.ExitCode.OK or any(run.is_valid for run in runs):
        return given
    if runs:
        return pytest.ExitCode.TESTS_FAILED
    return given if needless else pytest.ExitCode.NO_TESTS_COLLECTED
