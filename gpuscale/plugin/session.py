"""The pytest session that measures: items become runs, a results file, tables, an exit code."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from threading import Thread
from typing import Any, TextIO

import pytest
from msgspec.structs import replace

from gpuscale.base.errors import CANNOT_WRITE, FileError, GpuscaleError, UsageError
from gpuscale.base.printable import spell_out
from gpuscale.base.units import counted, format_seconds
from gpuscale.campaigns.night.attempt import LEFT_OUT, tell_night
from gpuscale.judge.stopping import DecidedVerdict, StoppingRule
from gpuscale.measure.launch import Launcher, RunTerminated, launcher_by_name
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.measure.telemetry.host_load import HostLoadMeter
from gpuscale.measure.telemetry.summary import gpus_of_run, sample_run
from gpuscale.plugin import results_file, terminal
from gpuscale.plugin.benchmark_table import enter_run, keep_tables_narrow
from gpuscale.plugin.command_item import CommandItem
from gpuscale.plugin.ending import (
    status_of_verdict,
    status_without_verdict,
    summary_lines,
    verdict_lines,
)
from gpuscale.plugin.further_runs import broken_by, left_text, seconds_left, stopping_rule
from gpuscale.plugin.items import (
    ItemPlan,
    NoRun,
    parametrize,
    plan_of,
    plans_of,
    prepare_and_order,
    uses_scaling,
    validate_use_of_scaling,
)
from gpuscale.plugin.options import MeasureOptions, parse_options
from gpuscale.plugin.requests import (
    notes_on_commands,
    run_request,
    skip_reason,
    validate_partitioning,
    validate_plans,
    validate_precision,
)
from gpuscale.records import Run, RunRequest
from gpuscale.store import RESULTS_FOLDER, ResumedResults, validate_writable

_IS_MEASURED = pytest.StashKey[bool]()
_IMPORTED_BY_CASES = ("torch", "torchvision")


def start_session(config: pytest.Config) -> None:
    """Check the options and the machine, and register the plugin that measures."""
    spell_out(sys.stdout, sys.stderr)
    if config.getoption("numprocesses", default=None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "gpuscale measures one item at a time; leave out pytest-xdist's -n (or give -n 0)"
        )
    if not hasattr(config.option, "benchmark_columns"):
        raise pytest.UsageError("gpuscale needs pytest-benchmark; leave out -p no:benchmark")
    try:
        session = _session(config, parse_options(vars(config.option)))
    except GpuscaleError as error:
        tell_night(error, os.environ)
        raise pytest.UsageError(str(error)) from None
    if config.option.verbose == 0:
        # Print a line for each item, with its step time, instead of a dot.
        config.option.verbose = 1
    # If CI is set, pytest would repeat whole tracebacks above the session's table.
    config.option.force_short_summary = True
    keep_tables_narrow(config)
    config.pluginmanager.register(session, "gpuscale-session")


def _session(config: pytest.Config, options: MeasureOptions) -> "_MeasuringSession":
    file = options.resume or options.results
    folder = config.invocation_params.dir / RESULTS_FOLDER if file is None else file.parent
    validate_writable(folder)
    launcher = launcher_by_name(options.launcher, device=options.device, folder=folder)
    # Ends with `-dirty` if the cases' folder has uncommitted changes.
    revision = answer_of(
        ["git", "-C", str(config.rootpath), "describe", "--always", "--dirty", "--abbrev=12"]
    )
    with _importing_for_cases(config):
        environment = replace(launcher.environment, cases_revision=revision or None)
    validate_precision(options, environment)
    resumed = None if options.resume is None else ResumedResults(options.resume)
    if resumed is not None:
        results_file.validate_environment(
            resumed.path, resumed.results, environment, options.injections
        )
    recorder = results_file.Recorder(environment, options, folder=folder, resumed=resumed)
    rule, stream = stopping_rule(options), terminal.own_stream()
    return _MeasuringSession(config, options, launcher, recorder, rule, stream)


@contextmanager
def _importing_for_cases(config: pytest.Config) -> Iterator[None]:
    """Import in a thread what most cases import, while the fork server imports it too."""
    plugins = config.pluginmanager.get_plugins()
    if any(isinstance(plugin, CommandItem) for plugin in plugins):
        yield
        return

    def work() -> None:
        for name in _IMPORTED_BY_CASES:
            # The case that needs a broken or absent package reports it.
            with suppress(Exception):
                import_module(name)

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@dataclass(eq=False)
class _MeasuringSession:
    """The hooks of an invocation with `--gpus`."""

    _config: pytest.Config
    _options: MeasureOptions
    _launcher: Launcher
    _recorder: results_file.Recorder
    _rule: StoppingRule | None
    _terminal: TextIO | None
    _words: dict[str, str] = field(default_factory=dict)
    _skips: Counter[str] = field(default_factory=Counter)
    _failed_tests: set[str] = field(default_factory=set)
    _failed_runs: set[str] = field(default_factory=set)
    _has_items: bool = False
    _anything_passed: bool = False
    _interrupted: bool = False
    _exit_code: int = 0

    def pytest_report_header(self) -> list[str]:
        recorder = self._recorder
        return list(terminal.header_lines(recorder.environment, self._options, recorder.resumed))

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "scaling" in metafunc.fixturenames:
            parametrize(metafunc, self._options)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        prepare_and_order(items)
        # pytest keeps an item without a plan if the case has none of the strategies asked for.
        self._has_items = any(map(uses_scaling, items))
        plans = plans_of(items)
        asked = [(plan, self._request(plan)) for plan in plans]
        requests = [request for _, request in asked if not isinstance(request, NoRun)]
        try:
            validate_use_of_scaling(items)
            validate_plans(plans, self._options, self._recorder.environment)
            problems = {request.reason: None for _, request in asked if isinstance(request, NoRun)}
            if self._options.batches and problems:
                raise UsageError(f"--batch: {'; '.join(problems)}")
            validate_partitioning(plans, requests, self._options)
            if (resumed := self._recorder.resumed) is not None:
                runs = resumed.results.runs
                results_file.validate_configurations(resumed.path, runs, requests)
        except GpuscaleError as error:
            raise pytest.UsageError(str(error)) from None
        to_try = [
            request
            for plan, request in asked
            if not isinstance(request, NoRun) and self._unmeasurable(plan) is None
        ]
        if misfits := self._launcher.misfits(to_try):
            raise pytest.UsageError(*misfits)
        if isinstance(self._rule, DecidedVerdict):
            self._rule.cases = {f"{plan.key.case}/{plan.strategy}" for plan in plans}
            self._rule.configurations = {request.configuration for request in requests}

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        return list(notes_on_commands(plans_of(items), self._options))

    def measure_for(self, request: pytest.FixtureRequest) -> Callable[[], Run]:
        """The function that the `scaling` fixture hands to a test."""
        item: pytest.Item = request.node
        plan: ItemPlan | NoRun = request.param
        if not isinstance(plan, ItemPlan | NoRun):
            raise pytest.UsageError(f"{item.nodeid}: 'scaling' was parametrised by another plugin")
        left_out = plan if isinstance(plan, NoRun) else self._left_out(plan)
        if left_out is not None:
            self._skips[left_out.reason] += 1
            item.user_properties.append((LEFT_OUT, left_out.kind))
            pytest.skip(left_out.reason)
        assert isinstance(plan, ItemPlan)
        benchmark = request.getfixturevalue("benchmark")
        # Until windows are entered; else pytest-benchmark warns of an unused fixture.
        benchmark.skipped = True

        def scaling() -> Run:
            return self._measure(item, plan, benchmark)

        return scaling

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Fail a test that would pass without having measured."""
        outcome = yield
        if plan_of(pyfuncitem) is not None and not pyfuncitem.stash.get(_IS_MEASURED, False):
            pytest.fail("the test measured nothing; call scaling() in it", pytrace=False)
        return outcome

    def _request(self, plan: ItemPlan) -> RunRequest | NoRun:
        try:
            request = run_request(plan, self._recorder.environment, self._options)
            return results_file.with_printed_batch(request, self._recorder.measured.runs)
        except GpuscaleError as error:
            return NoRun(str(error))

    def _left_out(self, plan: ItemPlan) -> NoRun | None:
        """The reason why an item makes no run; None if it must make one."""
        if (no_run := self._unmeasurable(plan)) is not None:
            return no_run
        request, rule = self._request(plan), self._rule
        if rule and not isinstance(request, NoRun):
            reason = rule.reason_to_leave_out(request, self._recorder.measured)
            return None if reason is None else NoRun(reason, "needless")
        return None

    def _unmeasurable(self, plan: ItemPlan) -> NoRun | None:
        """As `_left_out`, ignoring runs that the stopping rule makes unnecessary."""
        environment, resumed = self._recorder.environment, self._recorder.resumed
        if reason := skip_reason(plan, environment, self._options):
            there = environment.node_count * environment.gpus_per_node
            lacks = environment.device == "cuda" and plan.gpus > there
            return NoRun(reason, "GPUs missing" if lacks else "cannot be measured")
        if (broken := broken_by(plan.key, self._recorder.new_runs)) is not None:
            return NoRun(f"would fail as {broken.key.label}, run {broken.index}, did")
        if resumed is not None:
            request, runs = self._request(plan), resumed.results.runs
            if not isinstance(request, NoRun) and results_file.is_recorded(request, runs):
                return NoRun(f"measured before, in {resumed.path.name}", "needless")
        return None

    def _seconds_left(self, items: Sequence[pytest.Item]) -> float | None:
        """The longest that the runs of these items may take; None before the first has ended."""
        keys = [plan.key for plan in plans_of(items) if self._unmeasurable(plan) is None]
        return seconds_left(keys, self._recorder.new_runs)

    def _left_text(self, seconds: float | None) -> str:
        return left_text(seconds, at_most=self._rule is not None)

    def _measure(self, item: pytest.Item, plan: ItemPlan, benchmark: Any) -> Run:
        if item.stash.get(_IS_MEASURED, False):
            pytest.fail("scaling() measures once in a test; it was called again", pytrace=False)
        item.stash[_IS_MEASURED] = True
        request = self._request(plan)
        if isinstance(request, NoRun):
            pytest.fail(request.reason, pytrace=False)
        items = item.session.items[item.session.items.index(item) :]
        run = self._run(request, self._seconds_left(items))
        if run.failure is not None:
            if run.failure.kind == "unsteady":
                # Neither passed nor failed: nothing is broken, but there is no number.
                pytest.xfail(f"{plan.key.label}: {run.failure.message}")
            self._failed_runs.add(item.nodeid)
            self._stop_if_all_would_fail(items)
            detail = f"\n{run.failure.detail}" if run.failure.detail else ""
            pytest.fail(f"{run.failure.message}{detail}", pytrace=False)
        if request.injections:
            benchmark.extra_info["injections"] = list(request.injections)
        enter_run(item, benchmark, plan.label, run)
        left = self._left_text(self._seconds_left(items[1:]))
        self._words[item.nodeid] = f"PASSED {format_seconds(run.step_time_s)}/step{left}"
        return run

    def _stop_if_all_would_fail(self, items: Sequence[pytest.Item]) -> None:
        """End the session after the first of these items if all others would fail as well."""
        runs, plans = self._recorder.new_runs, [plan_of(item) for item in items[1:]]
        if plans and all(plan and broken_by(plan.key, runs) for plan in plans):
            more = counted(len(plans), "more run")
            items[0].session.shouldfail = f"{more} would fail as this one did"

    def _run(self, request: RunRequest, left_s: float | None) -> Run:
        launcher, recorder = self._launcher, self._recorder
        try:
            with (
                terminal.progress_line(
                    self._terminal,
                    launcher,
                    lambda since_s: self._left_text(None if left_s is None else left_s - since_s),
                ),
                sample_run(request, recorder.environment, launcher.samples) as sampling,
            ):
                meter = HostLoadMeter(
                    [gpu.uuid or "" for gpu in gpus_of_run(request, recorder.environment)]
                )
                run = launcher.run(request)
                return recorder.append(replace(run, host_load=meter.read()), sampling)
        except (RunTerminated, FileError) as error:
            # Later runs would be killed or lost as this one is.
            path = terminal.relative(recorder.path)
            kept = f"earlier runs are kept; go on as before, with --resume {path}"
            if not recorder.measured.runs:
                kept = "no run was recorded"
            code = 128 + error.number if isinstance(error, RunTerminated) else CANNOT_WRITE
            pytest.exit(f"{error}; {kept}", returncode=code)

    def pytest_keyboard_interrupt(self) -> None:
        # pytest.exit() comes here too.
        self._interrupted = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed_tests.add(report.nodeid)
        self._anything_passed |= report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A file that cannot be collected has tests that never ran.
        if report.failed:
            self._failed_tests.add(report.nodeid)

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        if report.when == "call" and report.passed and report.nodeid in self._words:
            return "passed", ".", (self._words[report.nodeid], {"green": True})
        return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Write the session's tables after everything else, where a screen ends."""
        others = yield
        if not self._config.option.collectonly:
            self._summarize(terminalreporter)
        return others

    def _summarize(self, terminalreporter: pytest.TerminalReporter) -> None:
        results = self._recorder.measured
        terminalreporter.section("scaling", sep="-", bold=True)
        lines = summary_lines(
            results,
            self._recorder.path,
            self._rule,
            new_runs=self._recorder.new_runs,
            interrupted=self._interrupted,
        )
        for line in lines:
            terminalreporter.write_line(line)
        for reason, count in self._skips.items():
            terminalreporter.write_line(f"{count} skipped: {reason}")
        if isinstance(self._rule, DecidedVerdict) and results.runs:
            name = "" if self._options.baseline is None else self._options.baseline.name
            terminalreporter.section(f"against {name}", sep="-", bold=True)
            colour, code = terminalreporter.hasmarkup, self._exit_code
            for line in verdict_lines(self._rule, results, colour, code):
                terminalreporter.write_line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        measured = self._recorder.measured
        if not isinstance(self._rule, DecidedVerdict):
            needless = not self._has_items or self._anything_passed
            session.exitstatus = status_without_verdict(
                int(session.exitstatus), measured.runs, needless=needless
            )
            return
        session.exitstatus = self._exit_code = status_of_verdict(
            int(session.exitstatus),
            failed_tests=bool(self._failed_tests - self._failed_runs),
            failed_runs=bool(self._failed_runs),
            comparison=self._rule.step_after(measured).comparison if measured.runs else None,
        )

    def pytest_unconfigure(self) -> None:
        self._recorder.close()
        self._launcher.close()
