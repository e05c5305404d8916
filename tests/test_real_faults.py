"""Faults made on purpose, in real sessions, show where they belong."""

import re
from pathlib import Path

import pytest
from builders import total_s
from measuring import Session, run_pytest, write_case
from statements import known

from gpuscale.analysis.step_parts import steps_of
from gpuscale.records import Run

# Their times are those of this machine, so that nothing may run beside them.
pytestmark = [pytest.mark.alone, pytest.mark.thorough]

OPTIONS = ("--runs", "1", "--device", "cpu", "--run-seconds", "2")


def measured(folder: Path, case: str, *options: str) -> tuple[Session, Run]:
    write_case(folder, case)
    session = run_pytest(folder, *OPTIONS, *options, STEADINESS_MATTERS="1")
    (run,) = session.results.runs
    return session, run


# Steps that are as long whatever else the machine does.
NAPPING = """
import time

class Case(Tiny):
    def forward(self, model, inputs):
        time.sleep(0.02)
        return model(inputs)
"""


def test_late_data_and_a_slow_rank_show_in_phases_and_as_skew_of_that_rank(tmp_path: Path) -> None:
    faults = ("--inject", "data=5ms", "--inject", "slow-rank=1:1.5")
    session, run = measured(tmp_path, NAPPING, "--gpus", "2", *faults)
    for rank in run.ranks:
        assert 0.004 < known(rank.phases).data_s < 0.006
    for window in (*run.windows, *run.unsynced_windows):
        assert total_s(known(window.phases)) == pytest.approx(window.time_s, rel=0.03)
    (skew,) = steps_of([run])
    # Half of the pace without faults, which is 20 ms and what a tiny step takes.
    assert skew.slowest.rank == 1
    assert 0.008 < skew.skew_s < 0.016
    assert "INJECTED data=5ms, slow-rank=1:1.5" in session.output
    assert session.results.injections == ("data=5ms", "slow-rank=1:1.5")


def test_an_injected_hang_is_found_as_such(tmp_path: Path) -> None:
    write_case(tmp_path, NAPPING)
    hang = ("--gpus", "2", "--inject", "hang=1@20", "--timeout", "20")
    hung = run_pytest(tmp_path, *OPTIONS, *hang).ended(1)
    assert "not done after 20 s" in hung.output
    assert re.search(r"rank 1 was here:.*in at_step", hung.output, re.DOTALL)


def test_a_real_case_that_slows_down_midway_gives_no_number(tmp_path: Path) -> None:
    slowing = """
import time

class Case(Tiny):
    started = None

    def forward(self, model, inputs):
        Case.started = Case.started or time.monotonic()
        # Twice as slow from then on: after 0.4 s of warm-up, in the middle of 3 s of windows.
        time.sleep(0.02 if time.monotonic() - Case.started < 1.2 else 0.04)
        return model(inputs)
"""
    session, run = measured(tmp_path, slowing, "--gpus", "1")
    assert known(run.failure).kind == "unsteady", session.output
    why = r"not steady: (second level, steps \d+% longer from window|drifts)"
    assert re.search(why, session.output)
    assert len(run.windows) >= 10
    assert "no run gave a number: there is nothing to compare" in session.output
    assert session.exit_code == 1
