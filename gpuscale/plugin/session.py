"""One pytest invocation that measures: from items to runs, results file and table."""

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gpuscale.errors import CANNOT_WRITE, FileError, GpuscaleError
from gpuscale.launch import Launcher
from gpuscale.launch.termination import RunTerminated
from gpuscale.night.attempt import LeftOut, left_out_property
from gpuscale.plugin.clock import BenchmarkFixture, show_windows
from gpuscale.plugin.confirming import BaselineJudge
from gpuscale.plugin.exit_status import status_of_verdict, status_without_verdict
from gpuscale.plugin.items import (
    CLOCK_KEY,
    ItemPlan,
    parametrize,
    plan_of,
    prepare_and_order,
)
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.progress import progress_line, terminal_stream
from gpuscale.plugin.recorder import Recorder
from gpuscale.plugin.requests import (
    refuse_absent_ranks,
    refuse_unknown_size,
    run_request,
    skip_reason,
)
from gpuscale.plugin.resuming import is_recorded, point_key, refuse_other_configurations
from gpuscale.plugin.stopping import settled_after
from gpuscale.plugin.summary import header_lines, run_word, summary_lines
from gpuscale.records import Environment, Run, RunRequest
from gpuscale.report.colour import Palette
from gpuscale.store import ResumedResults
from gpuscale.version import __version__

_MEASURED = pytest.StashKey[bool]()


class MeasuringSession:
    """The hooks of an invocation with `--gpus`."""

    def __init__(
        self,
        config: pytest.Config,
        options: MeasureOptions,
        launcher: Launcher,
        environment: Environment,
        resumed: ResumedResults | None,
        judge: BaselineJudge | None,
    ) -> None:
        self._options = options
        self._judge = judge
        self._launcher = launcher
        self._resumed = resumed
        self._recorder = Recorder(
            environment,
            results=options.results,
            folder=Path(config.invocation_params.dir),
            injections=options.injections,
            resumed=resumed,
            samples_on_nodes=launcher.samples,
        )
        self._config = config
        self._terminal = terminal_stream()
        self._words: dict[str, str] = {}
        self._skips: Counter[str] = Counter()
        self._failed_tests: set[str] = set()
        self._failed_runs: set[str] = set()
        self._has_items = False
        self._anything_passed = False
        self._interrupted = False
        self._exit_code = 0

    def pytest_report_header(self) -> list[str]:
        """Say what is measured on, before anything is."""
        environment = self._recorder.environment
        return list(header_lines(__version__, environment, self._options, self._resumed))

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make the items of tests that use `scaling`."""
        if "scaling" in metafunc.fixturenames:
            parametrize(metafunc, self._options)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Order items run by run.

        Raises:
            pytest.UsageError: they cannot be measured together, not in the size that was asked
                for, or not into the resumed file.
        """
        prepare_and_order(items)
        plans = [plan for item in items if (plan := plan_of(item)) is not None]
        # Of a case without the strategy that was asked for pytest keeps an item without a plan.
        self._has_items = any("scaling" in getattr(item, "fixturenames", ()) for item in items)
        try:
            refuse_unknown_size({plan.case for plan in plans}, self._options.size)
            refuse_absent_ranks(plans, self._options.injections)
        except GpuscaleError as error:
            raise pytest.UsageError(str(error)) from None
        requests = [r for plan in plans if not isinstance(r := self._request(plan), str)]
        if self._judge is not None:
            self._judge.judge_only(
                {f"{plan.key.case}/{plan.key.strategy}" for plan in plans},
                {request.configuration for request in requests},
            )
        if self._resumed is None:
            return
        try:
            refuse_other_configurations(self._resumed.path, self._resumed.results.runs, requests)
        except GpuscaleError as error:
            raise pytest.UsageError(str(error)) from None

    def measure_for(self, request: pytest.FixtureRequest) -> Callable[[], Run]:
        """What the `scaling` fixture hands to a test."""
        item: pytest.Item = request.node
        plan = plan_of(item)
        if plan is None:
            raise pytest.UsageError(f"{item.nodeid}: 'scaling' was parametrised by somebody else")
        if (left_out := self._left_out(plan)) is not None:
            reason, why = left_out
            self._skips[reason] += 1
            item.user_properties.append(left_out_property(why))
            pytest.skip(reason)
        benchmark: BenchmarkFixture = request.getfixturevalue("benchmark")

        def measure() -> Run:
            if item.stash.get(_MEASURED, False):
                pytest.fail("scaling() measures once in a test; it was called again", pytrace=False)
            item.stash[_MEASURED] = True
            return self._measure(item, plan, benchmark)

        return measure

    def _request(self, plan: ItemPlan) -> RunRequest | str:
        """The request for an item, or why there is none."""
        try:
            return run_request(plan, self._recorder.environment, self._options)
        except GpuscaleError as error:
            return str(error)

    def _left_out(self, plan: ItemPlan) -> tuple[str, LeftOut] | None:
        """Why an item makes no run, in words and for a night; None where it must."""
        environment = self._recorder.environment
        if reason := skip_reason(plan, environment, self._options):
            there = environment.node_count * environment.gpus_per_node
            lacks = environment.device == "cuda" and plan.gpus > there
            return reason, "GPUs missing" if lacks else "cannot be measured"
        reason = self._reason_to_leave_out(plan)
        return None if reason is None else (reason, "needless")

    def _reason_to_leave_out(self, plan: ItemPlan) -> str | None:
        """Why an item that could be measured need not be; None where it must."""
        request = self._request(plan)
        if isinstance(request, str):
            return None
        if self._resumed is not None and is_recorded(request, self._resumed.results.runs):
            return f"measured before, in {self._resumed.path.name}"
        if self._judge is not None:
            return self._judge.reason_to_leave_out(plan.key, plan.run, self._recorder.measured)
        if self._options.stopping is None:
            return None
        count = settled_after(
            point_key(request),
            self._recorder.runs,
            self._options.stopping,
            gpus=self._options.gpus,
        )
        return None if count is None else f"settled after {count} runs"

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """A test that passes without having measured would be a false green."""
        outcome = yield
        if plan_of(pyfuncitem) is not None and not pyfuncitem.stash.get(_MEASURED, False):
            pytest.fail("the test measured nothing; call scaling() in it", pytrace=False)
        return outcome

    def _measure(self, item: pytest.Item, plan: ItemPlan, benchmark: BenchmarkFixture) -> Run:
        # Until windows are entered; pytest-benchmark else warns of a fixture that nobody used.
        benchmark.skipped = True
        request = self._request(plan)
        if isinstance(request, str):
            pytest.fail(request, pytrace=False)
        try:
            with (
                progress_line(self._terminal, self._launcher),
                self._recorder.sampling(request) as sampling,
            ):
                run = self._launcher.run(request)
                run = self._recorder.append(run, sampling)
        except RunTerminated as terminated:
            # A scheduler's way to say that time is up: what comes after would be killed.
            pytest.exit(f"{terminated}; earlier runs are kept", returncode=128 + terminated.number)
        except FileError as error:
            # The next run would be lost as this one is, after as long a time.
            pytest.exit(f"{error}; earlier runs are kept", returncode=CANNOT_WRITE)
        if run.failure is not None:
            if run.failure.kind == "unsteady":
                # Nothing is broken, and there is no number either: neither passed nor failed.
                pytest.xfail(f"{plan.key.label}: {run.failure.message}")
            self._failed_runs.add(item.nodeid)
            detail = f"\n{run.failure.detail}" if run.failure.detail else ""
            pytest.fail(f"{plan.key.label}: {run.failure.message}{detail}", pytrace=False)
        assert run.steps_per_window is not None
        benchmark.extra_info.update(
            device=run.configuration.device,
            gpus=run.gpus,
            run=run.index,
            batch_per_gpu=run.batch_per_gpu,
        )
        if request.injections:
            benchmark.extra_info["injections"] = list(request.injections)
        benchmark.params = {**(benchmark.params or {}), "scaling": plan.label}
        benchmark.skipped = False
        show_windows(benchmark, item.stash[CLOCK_KEY], run.windows, run.steps_per_window)
        self._words[item.nodeid] = run_word(run)
        return run

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the session was ended before its time, by Ctrl-C or by itself."""
        self._interrupted = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember which tests failed, measurements or not, and whether any passed."""
        if report.failed:
            self._failed_tests.add(report.nodeid)
        self._anything_passed |= report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a file that could not be collected: with it some tests were never made."""
        if report.failed:
            self._failed_tests.add(report.nodeid)

    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Put the step time beside PASSED."""
        if report.when == "call" and report.passed and report.nodeid in self._words:
            return "passed", ".", (f"PASSED {self._words[report.nodeid]}", {"green": True})
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the scaling table and where the results are."""
        if self._config.option.collectonly:
            return
        terminalreporter.section("scaling", sep="-", bold=True)
        for line in summary_lines(self._recorder, self._options, interrupted=self._interrupted):
            terminalreporter.write_line(line)
        if self._judge is not None and self._recorder.runs:
            terminalreporter.section(f"against {self._judge.path.name}", sep="-", bold=True)
            colour = terminalreporter.hasmarkup
            verdict = self._judge.lines(
                self._recorder.measured, Palette(colour=colour), exit_code=self._exit_code
            )
            for line in verdict:
                terminalreporter.write_line(line)
        for reason, count in self._skips.items():
            terminalreporter.write_line(f"{count} skipped: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Never end with 0 where nothing gave a number; with a baseline, end with its verdict's."""
        if self._config.option.collectonly:
            return
        measured = self._recorder.measured
        if self._judge is None:
            session.exitstatus = status_without_verdict(
                int(session.exitstatus),
                measured=bool(measured.runs),
                valid=any(run.is_valid for run in measured.runs),
                needless=not self._has_items or self._anything_passed,
            )
            return
        session.exitstatus = self._exit_code = status_of_verdict(
            int(session.exitstatus),
            failed_tests=bool(self._failed_tests - self._failed_runs),
            failed_runs=bool(self._failed_runs),
            comparison=self._judge.comparison(measured) if measured.runs else None,
        )

    def pytest_unconfigure(self) -> None:
        """Close what is open."""
        self._recorder.close()
        self._launcher.close()
