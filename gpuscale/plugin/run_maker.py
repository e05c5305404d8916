"""Make the runs of a session, decide which items need one, and estimate the remaining time."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import pytest
from msgspec.structs import replace

from gpuscale.base.devices import is_gpu
from gpuscale.base.errors import (
    CANNOT_WRITE,
    FileError,
    GpuscaleError,
    RunTerminated,
    UsageError,
)
from gpuscale.base.foreign_texts import MAYBE_EXTERNAL, MAYBE_TRANSIENT
from gpuscale.base.strategies import COMMAND
from gpuscale.judge.compare.while_measuring import SequentialPlan
from gpuscale.judge.recording import as_baseline
from gpuscale.judge.stopping import DecidedVerdict, NarrowIntervals, StoppingRule
from gpuscale.measure.launch import Launcher
from gpuscale.measure.telemetry.summary import sample_run
from gpuscale.plugin.items import ItemPlan, NoRun
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.requests import run_request, skip_reason
from gpuscale.plugin.results_file import (
    Recorder,
    is_recorded,
    with_printed_batch,
    with_printed_metrics,
)
from gpuscale.plugin.terminal import progress_line, relative
from gpuscale.records import EntryKey, Results, Run, RunRequest
from gpuscale.records.request import FigureOutcome
from gpuscale.store import read_any


def stopping_rule(options: MeasureOptions) -> StoppingRule | None:
    """Return the rule that decides when a table row has enough runs; None to make all `--runs`."""
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


@dataclass(frozen=True, kw_only=True)
class RunMaker:
    """Makes the runs of a session, and decides which items do not need one."""

    options: MeasureOptions
    launcher: Launcher
    recorder: Recorder
    rule: StoppingRule | None
    terminal: TextIO | None

    def request(self, plan: ItemPlan) -> RunRequest | NoRun:
        """Return the request for an item's run, or the reason why the run is impossible."""
        try:
            request = run_request(plan, self.recorder.environment, self.options)
            earlier = self.recorder.measured.runs
            if isinstance(self.rule, DecidedVerdict):
                earlier += self.rule.baseline.runs
            return with_printed_metrics(with_printed_batch(request, earlier), earlier)
        except GpuscaleError as error:
            return NoRun(str(error))

    def left_out(self, plan: ItemPlan) -> NoRun | None:
        """Return why an item makes no run; None if a run must be made."""
        if (no_run := self.unmeasurable(plan)) is not None:
            return no_run
        request = self.request(plan)
        if self.rule and not isinstance(request, NoRun):
            measured = self.recorder.measured
            reasons = [self.rule.reason_to_leave_out(one, measured) for one in request.by_metric]
            if None not in reasons:
                return NoRun("; ".join(dict.fromkeys(map(str, reasons))), "needless")
        return None

    def is_possible(self, plan: ItemPlan) -> bool:
        """True if this machine and the options allow the run."""
        return skip_reason(plan, self.recorder.environment, self.options) is None

    def unmeasurable(self, plan: ItemPlan) -> NoRun | None:
        """Return why an item makes no run, like `left_out` but ignoring the stopping rule."""
        environment, resumed = self.recorder.environment, self.recorder.resumed
        if reason := skip_reason(plan, environment, self.options):
            there = environment.node_count * environment.gpus_per_node
            lacks = is_gpu(environment.device) and plan.gpus > there
            return NoRun(reason, "GPUs missing" if lacks else "cannot be measured")
        if (broken := broken_by(plan.key, self.recorder.new_runs)) is not None:
            return NoRun(f"would fail as {broken.key.label}, run {broken.index}, did")
        if resumed is not None:
            request = self.request(plan)
            runs = resumed.results.runs
            if not isinstance(request, NoRun) and all(
                is_recorded(one, runs) for one in request.by_metric
            ):
                return NoRun(f"measured before, in {resumed.path.name}", "needless")
        return None

    def would_all_fail(self, plans: Sequence[ItemPlan | None]) -> bool:
        """True if there are plans, and the runs so far suggest that all of them would fail."""
        runs = self.recorder.new_runs
        return bool(plans) and all(plan and broken_by(plan.key, runs) for plan in plans)

    def time_left(self, plans: Iterable[ItemPlan]) -> str:
        """Return how long the runs of these plans will take, such as `, at most 4 min left`."""
        return self._left_text(self._seconds_left(plans))

    def make(self, request: RunRequest, plans: Iterable[ItemPlan]) -> Run:
        """Make a run; meanwhile show the time left for `plans`, of which this is the first.

        A command that prints several metrics makes a run for each; the first one is returned.
        """
        left_s = self._seconds_left(plans)

        def text_after(seconds: float) -> str:
            return self._left_text(None if left_s is None else left_s - seconds)

        environment = self.recorder.environment
        try:
            with (
                progress_line(self.terminal, self.launcher, text_after),
                sample_run(request, environment, self.launcher.samples) as sampling,
            ):
                run = self.launcher.run(request)
                software, figures = self.launcher.command_software, self.launcher.command_figures
                made = [
                    self.recorder.append(each, sampling, software)
                    for each in runs_by_metric(request, run, figures)
                ]
                return made[0]
        except UsageError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        except (RunTerminated, FileError) as error:
            # Later runs would be killed or lost as this one is.
            kept = "no run was recorded"
            if self.recorder.measured.runs:
                path = relative(self.recorder.path)
                kept = f"earlier runs are kept; go on as before, with --resume {path}"
            code = 128 + error.number if isinstance(error, RunTerminated) else CANNOT_WRITE
            pytest.exit(f"{error}; {kept}", returncode=code)

    def _seconds_left(self, plans: Iterable[ItemPlan]) -> float | None:
        keys = [plan.key for plan in plans if self.unmeasurable(plan) is None]
        return seconds_left(keys, self.recorder.new_runs)

    def _left_text(self, seconds: float | None) -> str:
        return left_text(seconds, at_most=self.rule is not None)


def runs_by_metric(request: RunRequest, run: Run, figures: FigureOutcome | None) -> Iterator[Run]:
    """Yield one run for each metric that the command printed; without metrics, the run itself."""
    values = dict(figures.values) if figures else {}
    for asked in request.with_metrics(values).by_metric:
        metric, measured = asked.configuration.metric, run.measured
        if metric is not None and figures is not None and run.failure is None:
            measured = {metric.name: values[metric.name]}
        yield replace(run, configuration=asked.configuration, measured=measured)


def plan_key(run: Run) -> EntryKey:
    """Return the key of the plan that made a run; one start of a command may make several rows."""
    is_command = run.configuration.command is not None
    return run.key._replace(strategy=COMMAND) if is_command else run.key


def broken_by(key: EntryKey, runs: Sequence[Run]) -> Run | None:
    """Return a failed run that suggests that other runs of this row would fail too, or None.

    Such a run failed in the case's own code, or because its command printed too few lines, and no
    run of the row (or of the case and strategy on any number of GPUs) succeeded. File and
    connection errors count only if they occur in two rounds; running out of memory and killed ranks
    never count.
    """
    same_case = [run for run in runs if plan_key(run)[:2] == (key.case, key.strategy)]
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
    """Return the estimated seconds for one more run per key; None if there is no valid run yet.

    Keys may occur several times. Runs of a row without a valid run are assumed to take as long as
    the mean over the other rows.
    """
    times_s: dict[EntryKey, list[float]] = {}
    for run in runs:
        if run.is_valid and run.wall_s is not None:
            times_s.setdefault(plan_key(run), []).append(run.wall_s)
    if not times_s:
        return None
    mean_s = {key: statistics.fmean(values) for key, values in times_s.items()}
    typical_s = statistics.fmean(mean_s.values())
    return sum(mean_s.get(key, typical_s) for key in keys)


def left_text(seconds: float | None, *, at_most: bool) -> str:
    """Return `, 4 min left` or `, at most 4 min left`; empty if unknown or less than a second."""
    if seconds is None or seconds < 1:
        return ""
    for unit, of_unit_s in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 1.5 * of_unit_s or unit == "s":
            break
    return f", {'at most ' if at_most else ''}{round(seconds / of_unit_s)} {unit} left"
