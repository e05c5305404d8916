"""Execute the runs of a session, decide which items need a run, and estimate the time left."""

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TextIO

import msgspec
import pytest
from msgspec.structs import replace

from gpuscale.base.errors import CANNOT_WRITE, FileError, GpuscaleError, RunTerminated, UsageError
from gpuscale.base.host import is_gpu
from gpuscale.base.strategies import COMMAND
from gpuscale.base.text import format_seconds
from gpuscale.judge.sides import as_baseline
from gpuscale.judge.stopping import DecidedVerdict, SequentialPlan
from gpuscale.measure.launch.collect import command_figures, command_software
from gpuscale.measure.launch.launcher import Launcher
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.measure.telemetry.summary import with_telemetry
from gpuscale.plugin.items import ItemPlan, NoRun, skip_reason
from gpuscale.plugin.options import MeasureOptions, parse_options
from gpuscale.plugin.requests import run_request, validate_precision
from gpuscale.plugin.results_file import Recorder, is_recorded, validate_environment, with_printed
from gpuscale.plugin.terminal import own_stream, progress_line, relative
from gpuscale.records import EntryKey, Results, Run, RunRequest
from gpuscale.records.request import FigureOutcome
from gpuscale.store.files import read_any
from gpuscale.store.results import RESULTS_FOLDER, ResultsFile, validate_writable
from gpuscale.workload.command_case import CommandCase, validate_scaling

_OF_THE_CASE = ("raised", "unread")
"""Kinds of failures that the case itself probably causes."""


def stopping_rule(options: MeasureOptions) -> DecidedVerdict | None:
    """Return the rule that decides when a row has enough runs; None if all runs are required."""
    fewest, most = options.bounds_of_runs
    if options.baseline is None or fewest is None:
        return None
    content = read_any(options.baseline)
    return DecidedVerdict(
        baseline=as_baseline(content, options.baseline.stem),
        baseline_kind="results" if isinstance(content, Results) else "baseline",
        plan=SequentialPlan(fewest_runs=fewest, most_runs=most),
        gpus=options.gpus,
    )


def maker_for(config: pytest.Config, command: type[CommandCase] | None) -> "RunMaker":
    """Examine this machine and any results file to resume; return the session's `RunMaker`."""
    options = parse_options(vars(config.option))
    file, root = options.resume or options.results, str(config.rootpath)
    folder = config.invocation_params.dir / RESULTS_FOLDER if file is None else file.parent
    validate_writable(folder)
    launcher = Launcher(
        options.launcher,
        device=options.device,
        folder=folder,
        fresh_tasks=options.fresh_tasks,
        preloads=command is None,
    )
    # Ends with `-dirty` if the cases' folder has uncommitted changes.
    revision = answer_of(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"])
    with ThreadPoolExecutor(max_workers=1) as pool:
        # Import modules here while the process that will fork the ranks does the same. A case that
        # needs a broken or absent module reports the error.
        for name in ("torch", "torchvision") if command is None else ():
            pool.submit(import_module, name)
        environment = replace(
            launcher.environment, cases_revision=revision or None, cpu_bind=options.cpu_bind
        )
    validate_precision(options, environment)
    if command is not None:
        # If validated later, the session's header would precede the error.
        validate_scaling(command, {*options.gpus}, environment)
    resumed = None if options.resume is None else ResultsFile(options.resume)
    if resumed is not None:
        validate_environment(resumed.path, resumed.results, environment, options.injections)
    return RunMaker(
        options=options,
        launcher=launcher,
        recorder=Recorder(environment, options, folder=folder, resumed=resumed),
        rule=stopping_rule(options),
        terminal=own_stream(),
    )


class RunMaker(msgspec.Struct, frozen=True, kw_only=True):
    """Executes and records the runs of a session, and decides which items need no run."""

    options: MeasureOptions
    launcher: Launcher
    recorder: Recorder
    rule: DecidedVerdict | None
    terminal: TextIO

    def request(self, plan: ItemPlan) -> RunRequest | NoRun:
        """Return the request for an item's run, or the reason why the run is impossible."""
        try:
            request = run_request(plan, self.recorder.environment, self.options)
            earlier = self.recorder.measured.runs
            if self.rule is not None:
                earlier += self.rule.baseline.runs
            return with_printed(request, earlier)
        except GpuscaleError as error:
            return NoRun(str(error))

    def left_out(self, plan: ItemPlan) -> NoRun | None:
        """Return the reason why an item executes no run; None if a run is needed."""
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
        """Return why an item executes no run, ignoring the stopping rule; None if one is needed."""
        environment, resumed = self.recorder.environment, self.recorder.resumed
        if reason := skip_reason(plan, environment, self.options):
            there = environment.node_count * environment.gpus_per_node
            lacks = is_gpu(environment.device) and plan.gpus > there
            return NoRun(reason, "GPUs missing" if lacks else "cannot be measured")
        if (broken := broken_by(plan.key, self.recorder.new_runs)) is not None:
            return NoRun(f"would fail like {broken.label}, run {broken.index}")
        if resumed is not None and not isinstance(request := self.request(plan), NoRun):
            runs = resumed.results.runs
            if all(is_recorded(one, runs) for one in request.by_metric):
                return NoRun(f"measured before, in {resumed.path.name}", "needless")
        return None

    def time_left(self, runs: int) -> str:
        """Return the estimated time for `runs` runs, as `, 4 min 10 s left`; empty if unknown."""
        walls_s = [run.wall_s for run in self.recorder.new_runs if run.is_valid and run.wall_s]
        if not walls_s or not runs:
            return ""
        return f", {format_seconds(runs * statistics.fmean(walls_s))} left"

    def make(self, request: RunRequest) -> Run:
        """Execute and record a run; end the session on an interrupt or if recording fails."""
        try:
            with progress_line(self.terminal, self.launcher, request):
                run = self.launcher.run(request)
            left = self.launcher.last
            software, figures = command_software(request, left), command_figures(request, left)
            runs = runs_by_metric(request, with_telemetry(run, left), figures)
            made = [self.recorder.append(each, software) for each in runs]
            return made[0]
        except KeyboardInterrupt:
            # Otherwise pytest would print where in gpuscale the signal arrived.
            pytest.exit("interrupted", returncode=pytest.ExitCode.INTERRUPTED)
        except UsageError as error:
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        except (RunTerminated, FileError) as error:
            # Later runs would be killed or lost like this one.
            kept = "no run was recorded"
            if self.recorder.measured.runs:
                path = relative(self.recorder.path)
                kept = f"earlier runs are kept; go on as before, with --resume {path}"
            code = 128 + error.number if isinstance(error, RunTerminated) else CANNOT_WRITE
            pytest.exit(f"{error}; {kept}", returncode=code)


def runs_by_metric(request: RunRequest, run: Run, figures: FigureOutcome | None) -> Iterator[Run]:
    """Yield a copy of the run for each metric that the command printed; if none, the run itself."""
    values = dict(figures.values) if figures else {}
    for asked in request.with_metrics(values).by_metric:
        metric, measured = asked.configuration.metric, run.measured
        if metric is not None and figures is not None and run.failure is None:
            measured = {metric.name: values[metric.name]}
        yield replace(run, configuration=asked.configuration, measured=measured)


def broken_by(key: EntryKey, runs: Sequence[Run]) -> Run | None:
    """Return a failed run that shows that further runs of this row would fail; None if none does.

    These show it: the row's last two runs timed out with the same batch size or in a row without a
    valid run; one unreadable output, or two exceptions, in a row without a valid run; two of them
    on any numbers of GPUs, if the case has no valid run with this strategy. Other failures, such as
    running out of memory, do not count.
    """
    same_case = [run for run in runs if run.key.case == key.case]
    if key.strategy != COMMAND:
        same_case = [run for run in same_case if run.key.strategy == key.strategy]
    # A command that prints several metrics makes runs of several rows, none of which is the plan's.
    starts = {(run.gpus, run.configuration.batch, run.index): run for run in same_case}
    same_case = [*starts.values()]
    same_row = [run for run in same_case if run.gpus == key.gpus]
    for group in (same_case, same_row):
        failed = [run for run in group if run.failure and run.failure.kind in _OF_THE_CASE]
        is_unread = any(run.failure and run.failure.kind == "unread" for run in failed)
        is_settled = len(failed) > 1 or (is_unread and group is same_row)
        if is_settled and not any(run.is_valid for run in group):
            return failed[-1]
    late = [run for run in same_row[-2:] if run.failure and run.failure.kind == "timeout"]
    sizes = {run.configuration.batch for run in late}
    has_number = any(run.is_valid for run in same_row)
    return late[1] if len(late) == 2 and (len(sizes) == 1 or not has_number) else None
