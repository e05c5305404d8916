"""The pytest session that measures: turn items into runs, results, tables and an exit code."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from gpuscale.base.errors import GpuscaleError, UsageError
from gpuscale.base.strategies import COMMAND
from gpuscale.base.text import counted, format_seconds, joined, spell_out
from gpuscale.campaigns.night.outcome import LEFT_OUT, report_to_night
from gpuscale.measure.evidence.node import LoadMeter
from gpuscale.measure.launch import ignore_terminations
from gpuscale.plugin import results_file, terminal
from gpuscale.plugin.items import (
    CommandItem,
    ItemPlan,
    NoRun,
    misuse,
    parametrize,
    plan_of,
    prepare_and_order,
    uses_scaling,
)
from gpuscale.plugin.requests import validate_micro_batches, validate_plans
from gpuscale.plugin.run_maker import RunMaker, broken_by, maker_for
from gpuscale.records import HostLoad, Run, RunRequest

_SHOW_TABLES = ("columns", "compare", "compare_fail", "cprofile", "histogram", "verbose")
"""Options of pytest-benchmark, without the prefix `--benchmark-`, that request its tables."""
_IS_MEASURED = pytest.StashKey[bool]()
_LEFT_OUT = pytest.StashKey[NoRun | None]()


def start_session(config: pytest.Config) -> None:
    """Check the options and the machine, and register the plugin that measures."""
    spell_out(sys.stdout, sys.stderr)
    if config.getoption("numprocesses", default=None) or hasattr(config, "workerinput"):
        raise pytest.UsageError(
            "gpuscale measures one item at a time; leave out pytest-xdist's -n (or give -n 0)"
        )
    if not hasattr(config.option, "benchmark_columns"):
        raise pytest.UsageError("gpuscale needs pytest-benchmark; leave out -p no:benchmark")
    meter = LoadMeter()
    try:
        plugins = config.pluginmanager.get_plugins()
        command = next((p.case for p in plugins if isinstance(p, CommandItem)), None)
        maker = maker_for(config, command)
    except GpuscaleError as error:
        report_to_night(error, os.environ)
        raise pytest.UsageError(str(error)) from None
    if not any(getattr(config.option, f"benchmark_{name}") for name in _SHOW_TABLES):
        config.option.benchmark_quiet = True
    if config.option.verbose == 0:
        # Print each item's step time on a line instead of a dot.
        config.option.verbose = 1
    session = _MeasuringSession(config, maker, command is not None, meter.load())
    config.pluginmanager.register(session, "gpuscale-session")


@dataclass(eq=False)
class _MeasuringSession:
    _config: pytest.Config
    _maker: RunMaker
    _is_command: bool
    _load: HostLoad
    """Load on the host while gpuscale examined it, before the runs."""
    _words: dict[str, str] = field(default_factory=dict)
    _skips: Counter[str] = field(default_factory=Counter)
    _failed_tests: set[str] = field(default_factory=set)
    _failed_runs: set[str] = field(default_factory=set)
    _first_failures: dict[str, str] = field(default_factory=dict)
    """Name of the first item that failed with a message, keyed by the normalised message."""
    _has_items: bool = False
    _anything_passed: bool = False
    _interrupted: bool = False
    _exit_code: int = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(self) -> Generator[None, list[object], list[object]]:
        """Add the machine to pytest's header; for a command, omit pytest's own header lines."""
        of_others = yield
        options, recorder = self._maker.options, self._maker.recorder
        found, resumed, is_command = recorder.environment, recorder.resumed, self._is_command
        own = terminal.header_lines(found, options, resumed, self._load, is_command=is_command)
        return [[*own]] if self._is_command else [[*own], *of_others]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, Any]:
        """Replace the traceback of a failed import with an explanation if gpuscale was misused."""
        report = yield
        if (excinfo := getattr(getattr(report, "call", None), "excinfo", None)) is not None:
            # pytest raises an error of its own from an ImportError.
            report.longrepr = misuse(excinfo.value.__cause__ or excinfo.value) or report.longrepr
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "scaling" in metafunc.fixturenames:
            parametrize(metafunc, self._maker.options, self._maker.is_possible)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        maker, options, recorder = self._maker, self._maker.options, self._maker.recorder
        # pytest keeps an item without a plan if the case has none of the strategies asked for.
        self._has_items = any(map(uses_scaling, items))
        plans = [*filter(None, map(plan_of, items))]
        asked = [(plan, maker.request(plan)) for plan in plans]
        possible = [request for _, request in asked if isinstance(request, RunRequest)]
        requests = [of_metric for request in possible for of_metric in request.by_metric]
        try:
            prepare_and_order(items)
            validate_plans(plans, options, recorder.environment)
            problems = {request.reason: None for _, request in asked if isinstance(request, NoRun)}
            if options.batches and problems:
                raise UsageError(f"--batch: {'; '.join(problems)}")
            validate_micro_batches(requests, options)
            recorder.add_scripts(requests)
            recorder.is_of_commands = all(plan.strategy == COMMAND for plan in plans)
            if (resumed := recorder.resumed) is not None:
                results_file.validate_configurations(resumed.path, resumed.results.runs, requests)
        except GpuscaleError as error:
            raise pytest.UsageError(str(error)) from None
        if maker.rule is not None:
            maker.rule.cases = {request.configuration.label for request in requests}
            maker.rule.cases |= {plan.key.name for plan, asks in asked if isinstance(asks, NoRun)}
            maker.rule.configurations = {request.configuration for request in requests}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Subtract items that need no run from pytest's count, so that progress ends at 100 %."""
        left_out = map(self._maker.left_out, filter(None, map(plan_of, session.items)))
        needless = sum(each is not None and each.kind == "needless" for each in left_out)
        # pytest would end with 5 if nothing were left.
        session.testscollected -= min(needless, max(0, session.testscollected - 1))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Skip an item that needs no run; pytest's summary counts it, but no line is printed."""
        plan = plan_of(item)
        item.stash[_LEFT_OUT] = left_out = None if plan is None else self._maker.left_out(plan)
        if left_out is None or left_out.kind != "needless":
            return None
        self._words[item.nodeid] = ""
        runner: Any = self._config.pluginmanager.getplugin("runner")
        for report in runner.runtestprotocol(item, log=False, nextitem=nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    def measure_for(self, request: pytest.FixtureRequest) -> Callable[[], Run]:
        """Return the function that `scaling` provides; skip a test that has no run to execute."""
        item: pytest.Item = request.node
        plan: ItemPlan | NoRun = request.param
        left_out = plan if isinstance(plan, NoRun) else item.stash[_LEFT_OUT]
        if left_out is not None:
            self._skips[left_out.reason] += 1
            item.user_properties.append((LEFT_OUT, left_out.kind))
            pytest.skip(left_out.reason)
        assert isinstance(plan, ItemPlan)
        benchmark = request.getfixturevalue("benchmark")
        # Until windows are entered, pytest-benchmark would warn about an unused fixture.
        benchmark.skipped = True
        return partial(self._measure, item, plan, benchmark)

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
        later = [*map(plan_of, item.session.items[item.session.items.index(item) + 1 :])]
        run = self._maker.make(request)
        runs_left = sum(self._maker.unmeasurable(plan) is None for plan in filter(None, later))
        if not runs_left:
            # A scheduler's SIGTERM must not end a session that only has its table left to print.
            ignore_terminations()
        if run.failure is not None:
            if run.failure.kind == "unsteady":
                # Neither passed nor failed: nothing is broken, but there is no number.
                self._words[item.nodeid] = "UNSTEADY"
                pytest.xfail(run.failure.message)
            self._failed_runs.add(item.nodeid)
            made = self._maker.recorder.new_runs
            if later and all(plan and broken_by(plan.key, made) for plan in later):
                more = counted(len(later), "more run")
                item.session.shouldfail = f"{more} left out, since they would fail in the same way"
            detail = f"\n{run.failure.detail}" if run.failure.detail else ""
            first = self._first_failures.setdefault(run.failure.normalised_message, item.name)
            if detail and first != item.name:
                detail = f"\ndetails are above, at {first}, which failed in the same way"
            pytest.fail(f"{run.failure.message}{detail}", pytrace=False)
        if request.injections:
            benchmark.extra_info["injections"] = list(request.injections)
        if (metric := run.configuration.metric) is None:
            terminal.enter_run(item, benchmark, plan.label, run)
            said = f"{format_seconds(run.step_time_s)}/step"
        else:
            said = f"{run.measured[metric.name]:.4g} {metric.unit or metric.name}"
        self._words[item.nodeid] = f"PASSED {said}{self._maker.time_left(runs_left)}"
        return run

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest.exit() also calls this hook.
        self._interrupted = True
        # Python has instructions without a line number; pytest's report of one would fail.
        with_line = excinfo.traceback.filter(lambda entry: entry._rawentry.tb_lineno is not None)
        excinfo.traceback = with_line

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed_tests.add(report.nodeid)
        self._anything_passed |= report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # If a file cannot be collected, its tests did not run.
        if report.failed:
            self._failed_tests.add(report.nodeid)

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:
        if report.skipped and self._words.get(report.nodeid) == "":
            return "skipped", "", ""
        if report.when != "call" or report.failed or report.nodeid not in self._words:
            return None
        if hasattr(report, "wasxfail"):
            return "unsteady", "u", (self._words[report.nodeid], {"yellow": True})
        return "passed", ".", (self._words[report.nodeid], {"green": True})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Shorten a failure's message to its first line for the list of failures in the summary."""
        report = yield
        if (crash := getattr(report.longrepr, "reprcrash", None)) is not None:
            crash.message = crash.message.removeprefix("Failed: ").partition("\n")[0]
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> Generator[None, object, object]:
        """Print the tables after all other output, unless a usage error prevented all runs."""
        others = yield
        recorder, rule = self._maker.recorder, self._maker.rule
        is_refused = exitstatus == pytest.ExitCode.USAGE_ERROR and not recorder.new_runs
        if self._config.option.collectonly or is_refused:
            return others
        results, baseline = recorder.measured, self._maker.options.baseline
        terminalreporter.section("scaling", sep="-", bold=True)
        lines = terminal.summary_lines(
            results, recorder.path, new_runs=recorder.new_runs, interrupted=self._interrupted
        )
        skips = (f"{count} skipped: {reason}" for reason, count in self._skips.items())
        for line in (*lines, *skips):
            terminalreporter.write_line(line)
        if rule is not None and baseline is not None and results.runs:
            terminalreporter.section(f"against {baseline.name}", sep="-", bold=True)
            files, colour = (baseline, recorder.path), terminalreporter.hasmarkup
            for line in terminal.verdict_lines(rule, results, files, colour, self._exit_code):
                terminalreporter.write_line(line)
        elif not (self._interrupted or results.injections or exitstatus):
            record = f"gpuscale baseline record {joined([terminal.relative(recorder.path)])}"
            text = f"as a baseline, if strong enough: {record} --cluster NAME -o NEW.json"
            terminalreporter.write_line(text)
        return others

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        ignore_terminations()
        # In pytest's summary, a needless run is a skipped one.
        self._words.clear()
        rule, measured = self._maker.rule, self._maker.recorder.measured
        given = int(session.exitstatus)
        if rule is None:
            session.exitstatus = terminal.status_without_verdict(
                given, measured.runs, needless=not self._has_items or self._anything_passed
            )
            return
        session.exitstatus = self._exit_code = terminal.status_of_verdict(
            given,
            failed_tests=bool(self._failed_tests - self._failed_runs),
            failed_runs=bool(self._failed_runs),
            comparison=terminal.diagnosed(rule, measured) if measured.runs else None,
        )

    def pytest_unconfigure(self) -> None:
        self._maker.recorder.close()
        self._maker.launcher.close()
