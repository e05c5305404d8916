"""Runs of a session: which items make one, how it is made, and how long the others will take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

import pytest
from msgspec.structs import replace

from gpuscale.base.errors import CANNOT_WRITE, FileError, GpuscaleError
from gpuscale.judge.stopping import StoppingRule
from gpuscale.measure.launch import Launcher, RunTerminated
from gpuscale.measure.telemetry.host_load import HostLoadMeter
from gpuscale.measure.telemetry.summary import gpus_of_run, sample_run
from gpuscale.plugin.further_runs import broken_by, left_text, seconds_left
from gpuscale.plugin.items import ItemPlan, NoRun
from gpuscale.plugin.options import MeasureOptions
from gpuscale.plugin.requests import run_request, skip_reason
from gpuscale.plugin.results_file import Recorder, is_recorded, with_printed_batch
from gpuscale.plugin.terminal import progress_line, relative
from gpuscale.records import Run, RunRequest


@dataclass(frozen=True, kw_only=True)
class RunMaker:
    """Makes and records the runs that items ask for."""

    options: MeasureOptions
    launcher: Launcher
    recorder: Recorder
    rule: StoppingRule | None
    terminal: TextIO | None

    def request(self, plan: ItemPlan) -> RunRequest | NoRun:
        """The request for an item's run, or the reason why its case cannot be trained so."""
        try:
            request = run_request(plan, self.recorder.environment, self.options)
            return with_printed_batch(request, self.recorder.measured.runs)
        except GpuscaleError as error:
            return NoRun(str(error))

    def left_out(self, plan: ItemPlan) -> NoRun | None:
        """The reason why an item makes no run; None if it must make one."""
        if (no_run := self.unmeasurable(plan)) is not None:
            return no_run
        request = self.request(plan)
        if self.rule and not isinstance(request, NoRun):
            reason = self.rule.reason_to_leave_out(request, self.recorder.measured)
            return None if reason is None else NoRun(reason, "needless")
        return None

    def unmeasurable(self, plan: ItemPlan) -> NoRun | None:
        """As `left_out`, ignoring runs that the stopping rule makes unnecessary."""
        environment, resumed = self.recorder.environment, self.recorder.resumed
        if reason := skip_reason(plan, environment, self.options):
            there = environment.node_count * environment.gpus_per_node
            lacks = environment.device == "cuda" and plan.gpus > there
            return NoRun(reason, "GPUs missing" if lacks else "cannot be measured")
        if (broken := broken_by(plan.key, self.recorder.new_runs)) is not None:
            return NoRun(f"would fail as {broken.key.label}, run {broken.index}, did")
        if resumed is not None:
            request = self.request(plan)
            if not isinstance(request, NoRun) and is_recorded(request, resumed.results.runs):
                return NoRun(f"measured before, in {resumed.path.name}", "needless")
        return None

    def would_all_fail(self, plans: Sequence[ItemPlan | None]) -> bool:
        """True if there are plans, and the runs so far show that the runs of all would fail."""
        runs = self.recorder.new_runs
        return bool(plans) and all(plan and broken_by(plan.key, runs) for plan in plans)

    def time_left(self, plans: Iterable[ItemPlan]) -> str:
        """`, at most 4 min left`: the text on the runs of these plans."""
        return self._left_text(self._seconds_left(plans))

    def make(self, request: RunRequest, plans: Iterable[ItemPlan]) -> Run:
        """Make a run, with the time that these plans, its own first, may take on the terminal."""
        left_s = self._seconds_left(plans)

        def text_after(seconds: float) -> str:
            return self._left_text(None if left_s is None else left_s - seconds)

        environment = self.recorder.environment
        try:
            with (
                progress_line(self.terminal, self.launcher, text_after),
                sample_run(request, environment, self.launcher.samples) as sampling,
            ):
                meter = HostLoadMeter([gpu.uuid or "" for gpu in gpus_of_run(request, environment)])
                run = self.launcher.run(request)
                return self.recorder.append(replace(run, host_load=meter.read()), sampling)
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
