"""Further runs: the rule that ends them, how long they take, and which would fail."""

import statistics
from collections.abc import Sequence

from gpuscale.base.foreign_texts import MAYBE_EXTERNAL, MAYBE_TRANSIENT
from gpuscale.judge.compare.while_measuring import SequentialPlan
from gpuscale.judge.recording import as_baseline
from gpuscale.judge.stopping import DecidedVerdict, NarrowIntervals, StoppingRule
from gpuscale.plugin.options import MeasureOptions
from gpuscale.records import EntryKey, Results, Run
from gpuscale.store import read_any


def stopping_rule(options: MeasureOptions) -> StoppingRule | None:
    """The rule by which a row has enough runs; None if all of `--runs` are made."""
    fewest, most = options.bounds_of_runs
    if fewest is None:
        return None
    if options.baseline is None:
        target = options.target_ci or 0.01
        return NarrowIntervals(minimum_runs=fewest, target=target, gpus=options.gpus)
    content = read_any(options.baseline)
    return DecidedVerdict(
        baseline=as_baseline(content, options.baseline.stem),
        baseline_kind="results" if isinstance(content, Results) else "baseline",
        plan=SequentialPlan(fewest_runs=fewest, most_runs=most),
        gpus=options.gpus,
    )


def broken_by(key: EntryKey, runs: Sequence[Run]) -> Run | None:
    """The failed run that shows that one more of this row would fail too; None if none does.

    Such a run raised an exception of the case's own code, or its command printed too few lines,
    and no run of the row, or of its case and strategy on any number of GPUs, gave a number. An
    error of a file or connection counts once it occurred in two rounds. Out of memory and killed
    ranks do not predict further runs.
    """
    same_case = [
        run for run in runs if (run.key.case, run.key.strategy) == (key.case, key.strategy)
    ]
    same_row = [run for run in same_case if run.gpus == key.gpus]
    for group in (same_case, same_row):
        failed = [run for run in group if _failed_by_itself(run)]
        if not failed or any(run.is_valid for run in group):
            continue
        if failed[0].index < failed[-1].index or not MAYBE_TRANSIENT.search(
            _error_text(failed[-1])
        ):
            return failed[-1]
    return None


def _failed_by_itself(run: Run) -> bool:
    if run.failure is None:
        return False
    if run.failure.kind == "raised":
        return MAYBE_EXTERNAL.search(_error_text(run)) is None
    return run.failure.kind == "unread"


def _error_text(run: Run) -> str:
    assert run.failure is not None
    # Only the last lines of a command show what it raised.
    is_command = run.configuration.command is not None and run.failure.kind == "raised"
    return run.failure.detail if is_command else run.failure.message


def seconds_left(keys: Sequence[EntryKey], runs: Sequence[Run]) -> float | None:
    """Seconds for one more run of each key, which may repeat; None without a valid run.

    A row without a run is expected to take the mean of the others.
    """
    times_s: dict[EntryKey, list[float]] = {}
    for run in runs:
        if run.is_valid and run.wall_s is not None:
            times_s.setdefault(run.key, []).append(run.wall_s)
    if not times_s:
        return None
    mean_s = {key: statistics.fmean(values) for key, values in times_s.items()}
    typical_s = statistics.fmean(mean_s.values())
    return sum(mean_s.get(key, typical_s) for key in keys)


def left_text(seconds: float | None, *, at_most: bool) -> str:
    """`, 4 min left` or `, at most 4 min left`; empty if unknown or less than a second."""
    if seconds is None or seconds < 1:
        return ""
    for unit, of_unit_s in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 1.5 * of_unit_s or unit == "s":
            break
    return f", {'at most ' if at_most else ''}{round(seconds / of_unit_s)} {unit} left"
