"""The pytest session that measures: turn items into runs, results, tables and an exit code."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from gpuscale.base.errors import GpuscaleError, UsageError
from gpuscale.base.printable import spell_out
from gpuscale.base.strategies import COMMAND
from gpuscale.base.units import counted, format_seconds
from gpuscale.campaigns.night.attempt import LEFT_OUT, report_to_night
from gpuscale.judge.stopping import DecidedVerdict
from gpuscale.measure.launch import launcher_by_name
from gpuscale.measure.schedulers.scheduler import answer_of
from gpuscale.plugin import results_file, terminal
from gpuscale.plugin.command_item import CommandItem
from gpuscale.plugin.ending import (
    status_of_verdict,
    status_without_verdict,
    summary_lines,
    verdict_lines,
)
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
    validate_partitioning,
    validate_plans,
    validate_precision,
)
from gpuscale.plugin.run_maker import RunMaker, stopping_rule
from gpuscale.plugin.terminal import enter_run, of_other_tests
from gpuscale.records import Run
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
        report_to_night(error, os.environ)
        raise pytest.UsageError(str(error)) from None
    if config.option.verbose == 0:
        # Print a line for each item, with its step time, instead of a dot; 1 would cut reasons.
        config.option.verbose = 2
    # If CI is set, pytest would repeat whole tracebacks above the session's table.
    config.option.force_short_summary = True
    config.pluginmanager.register(session, "gpuscale-session")


def _session(config: pytest.Config, options: MeasureOptions) -> "_MeasuringSession":
    file = options.resume or options.results
    folder = config.invocation_params.dir / RESULTS_FOLDER if file is None else file.parent
    validate_writable(folder)
    is_command = any(isinstance(each, CommandItem) for each in config.pluginmanager.get_plugins())
    launcher = launcher_by_name(
        options.launcher,
        device=options.device,
        folder=folder,
        fresh_tasks=options.fresh_tasks,
        is_command=is_command,
    )
    # Ends with `-dirty` if the cases' folder has uncommitted changes.
    revision = answer_of(
        ["git", "-C", str(config.rootpath), "describe", "--always", "--dirty", "--abbrev=12"]
    )
    with ThreadPoolExecutor() as pool:
        if not is_command:
            # Meanwhile the process that will fork the ranks imports the same modules.
            pool.submit(_import_for_cases)
        environment = replace(
            launcher.environment, cases_revision=revision or None, cpu_bind=options.cpu_bind
        )
    validate_precision(options, environment)
    resumed = None if options.resume is None else ResumedResults(options.resume)
    if resumed is not None:
        results_file.validate_environment(
            resumed.path, resumed.results, environment, options.injections
        )
    recorder = results_file.Recorder(environment, options, folder=folder, resumed=resumed)
    maker = RunMaker(
        options=options,
        launcher=launcher,
        recorder=recorder,
        rule=stopping_rule(options),
        terminal=terminal.own_stream(),
    )
    return _MeasuringSession(config, maker)


def _import_for_cases() -> None:
    for name in _IMPORTED_BY_CASES:
        # The case that needs a broken or absent package reports it.
        with suppress(Exception):
            import_module(name)


@dataclass(eq=False)
class _MeasuringSession:
    """pytest hooks for a session that measures."""

    _config: pytest.Config
    _maker: RunMaker
    _words: dict[str, str] = field(default_factory=dict)
    _skips: Counter[str] = field(default_factory=Counter)
    _failed_tests: set[str] = field(default_factory=set)
    _failed_runs: set[str] = field(default_factory=set)
    _has_items: bool = False
    _anything_passed: bool = False
    _interrupted: bool = False
    _exit_code: int = 0

    def pytest_report_header(self) -> list[str]:
        options, recorder = self._maker.options, self._maker.recorder
        return list(terminal.header_lines(recorder.environment, options, recorder.resumed))

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "scaling" in metafunc.fixturenames:
            parametrize(metafunc, self._maker.options, self._maker.is_possible)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        maker, options, recorder = self._maker, self._maker.options, self._maker.recorder
        prepare_and_order(items)
        # pytest keeps an item without a plan if the case has none of the strategies asked for.
        self._has_items = any(map(uses_scaling, items))
        plans = plans_of(items)
        asked = [(plan, maker.request(plan)) for plan in plans]
        requests = [
            of_metric
            for _, request in asked
            if not isinstance(request, NoRun)
            for of_metric in request.by_metric
        ]
        try:
            validate_use_of_scaling(items)
            validate_plans(plans, options, recorder.environment)
            problems = {request.reason: None for _, request in asked if isinstance(request, NoRun)}
            if options.batches and problems:
                raise UsageError(f"--batch: {'; '.join(problems)}")
            validate_partitioning(plans, requests, options)
            recorder.is_of_commands = all(plan.strategy == COMMAND for plan in plans)
            if (resumed := recorder.resumed) is not None:
                runs = resumed.results.runs
                results_file.validate_configurations(resumed.path, runs, requests)
        except GpuscaleError as error:
            raise pytest.UsageError(str(error)) from None
        to_try = [
            request
            for plan, request in asked
            if not isinstance(request, NoRun) and maker.unmeasurable(plan) is None
        ]
        if misfits := maker.launcher.misfits(to_try):
            raise pytest.UsageError(*misfits)
        if isinstance(maker.rule, DecidedVerdict):
            maker.rule.cases = {request.configuration.label for request in requests}
            maker.rule.cases |= {plan.key.name for plan, asks in asked if isinstance(asks, NoRun)}
            maker.rule.configurations = {request.configuration for request in requests}

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        return list(notes_on_commands(plans_of(items), self._maker.options))

    def measure_for(self, request: pytest.FixtureRequest) -> Callable[[], Run]:
        """Return the function that the `scaling` fixture provides to a test."""
        item: pytest.Item = request.node
        plan: ItemPlan | NoRun = request.param
        if not isinstance(plan, ItemPlan | NoRun):
            raise pytest.UsageError(f"{item.nodeid}: 'scaling' was parametrised by another plugin")
        left_out = plan if isinstance(plan, NoRun) else self._maker.left_out(plan)
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
        """Fail a test that would otherwise pass without having measured anything."""
        outcome = yield
        if plan_of(pyfuncitem) is not None and not pyfuncitem.stash.get(_IS_MEASURED, False):
            pytest.fail("the test measured nothing; call scaling() in it", pytrace=False)
        return outcome

    def _measure(self, item: pytest.Item, plan: ItemPlan, benchmark: Any) -> Run:
        if item.stash.get(_IS_MEASURED, False):
            pytest.fail("scaling() measures once in a test; it was called again", pytrace=False)
        item.stash[_IS_MEASURED] = True
        request = self._maker.request(plan)
        if isinstance(request, NoRun):
            pytest.fail(request.reason, pytrace=False)
        later = item.session.items[item.session.items.index(item) + 1 :]
        run = self._maker.make(request, [plan, *plans_of(later)])
        if run.failure is not None:
            if run.failure.kind == "unsteady":
                # Neither passed nor failed: nothing is broken, but there is no number.
                self._words[item.nodeid] = "UNSTEADY"
                pytest.xfail(run.failure.message)
            self._failed_runs.add(item.nodeid)
            if self._maker.would_all_fail([plan_of(other) for other in later]):
                more = counted(len(later), "more run")
                item.session.shouldfail = f"{more} would fail as this one did"
            detail = f"\n{run.failure.detail}" if run.failure.detail else ""
            pytest.fail(f"{run.failure.message}{detail}", pytrace=False)
        if request.injections:
            benchmark.extra_info["injections"] = list(request.injections)
        left = self._maker.time_left(plans_of(later))
        if (metric := run.configuration.metric) is None:
            enter_run(item, benchmark, plan.label, run)
            said = f"{format_seconds(run.step_time_s)}/step"
        else:
            said = f"{run.measured[metric.name]:.4g} {metric.unit or metric.name}"
        self._words[item.nodeid] = f"PASSED {said}{left}"
        return run

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
        if report.when != "call" or report.failed or report.nodeid not in self._words:
            return None
        if hasattr(report, "wasxfail"):
            return "xfailed", "x", (self._words[report.nodeid], {"yellow": True})
        return "passed", ".", (self._words[report.nodeid], {"green": True})

    @pytest.hookimpl(wrapper=True)
    def pytest_benchmark_group_stats(self) -> Generator[None, Any, Any]:
        """Leave the runs out of pytest-benchmark's tables, unless an option asks for them."""
        groups = yield
        return of_other_tests(groups, self._config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        """Print the session's tables after all other output."""
        others = yield
        if not self._config.option.collectonly:
            self._summarize(terminalreporter)
        return others

    def _summarize(self, terminalreporter: pytest.TerminalReporter) -> None:
        recorder, rule = self._maker.recorder, self._maker.rule
        results, baseline = recorder.measured, self._maker.options.baseline
        terminalreporter.section("scaling", sep="-", bold=True)
        lines = summary_lines(
            results, recorder.path, rule, new_runs=recorder.new_runs, interrupted=self._interrupted
        )
        skips = (f"{count} skipped: {reason}" for reason, count in self._skips.items())
        for line in (*lines, *skips):
            terminalreporter.write_line(line)
        if isinstance(rule, DecidedVerdict) and baseline is not None and results.runs:
            terminalreporter.section(f"against {baseline.name}", sep="-", bold=True)
            files, colour = (baseline, recorder.path), terminalreporter.hasmarkup
            code = self._exit_code
            for line in verdict_lines(rule, results, files, colour, code):
                terminalreporter.write_line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        rule, measured = self._maker.rule, self._maker.recorder.measured
        given = int(session.exitstatus)
        if not isinstance(rule, DecidedVerdict):
            needless = not self._has_items or self._anything_passed
            session.exitstatus = status_without_verdict(given, measured.runs, needless=needless)
            return
        session.exitstatus = self._exit_code = status_of_verdict(
            given,
            failed_tests=bool(self._failed_tests - self._failed_runs),
            failed_runs=bool(self._failed_runs),
            comparison=rule.verdict_after(measured).comparison if measured.runs else None,
        )

    def pytest_unconfigure(self) -> None:
        self._maker.recorder.close()
        self._maker.launcher.close()
