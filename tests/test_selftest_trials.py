"""Trials of false alarms and faults, on a launcher whose machine is known."""

import random
import sys
from pathlib import Path

import pytest
from builders import CNN, cpu_environment, phased_run, phases
from changing import replace
from measuring import write_case
from statements import known

from gpuscale.base.errors import GpuscaleError
from gpuscale.campaigns.trials import (
    BASELINE_BLOCKS,
    Trials,
    blocks,
    injection_text,
    possible_faults,
)
from gpuscale.cli.selftest import load_case_class
from gpuscale.records import CauseKind, Failure, Rate, Run, RunRequest
from gpuscale.records.trial_report import Fault, OverheadReport, TrialsReport
from gpuscale.reports.machine_text import trials_text
from gpuscale.workload.cases import TrainingCase
from gpuscale.workload.injections import parse_injections
from gpuscale.workload.run_defaults import default_request

STEP_S = 0.1
GPUS = (1, 2)
HERE = replace(cpu_environment(), job_id=None)
OVERHEAD = OverheadReport(configuration=CNN, environment=HERE, results=(), wall_s=60.0)


class KnownMachine:
    """Makes runs of 100 ms a step with 0.3% noise; injected faults do what they say."""

    def __init__(self, *, deaf: bool = False, fails: bool = False) -> None:
        self._draw = random.Random(7)
        self._deaf = deaf
        self._fails = fails

    def run(self, request: RunRequest) -> Run:
        faults = () if self._deaf else parse_injections(request.injections)
        ranks = []
        for rank in range(request.gpus):
            factor, data_s = 1.0, 0.002
            for fault in faults:
                if fault.rank in (None, rank):
                    factor += (fault.factor or 1.0) - 1
                    data_s += fault.seconds or 0.0
            own = phases(
                data_s=data_s,
                forward_s=STEP_S * (factor - 0.7),
                backward_s=STEP_S * 0.6,
                optimizer_s=STEP_S * 0.08,
            )
            ranks.append(own.scaled(1 + self._draw.gauss(0, 0.003)))
        run = phased_run(
            ranks,
            communication_s=0.004 * self._draw.uniform(0.9, 1.1) if request.gpus > 1 else None,
            index=request.index,
            configuration=request.configuration,
            batch_per_gpu=known(request.batch_per_gpu),
            devices=[""] * request.gpus,
        )
        run = replace(
            run,
            sample_shape=request.sample_shape,
            ranks=tuple(replace(rank, device_uuids=(), devices=()) for rank in run.ranks),
        )
        failure = Failure(kind="unsteady", message="not steady") if self._fails else None
        return replace(run, failure=failure)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[TrainingCase]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_case(tmp_path, "Case = Tiny")
    return load_case_class(str(tmp_path / "test_tiny.py::Tiny"), "cpu")


def tried(
    machine: KnownMachine, case: type[TrainingCase], *, pairs: int, trials: int
) -> TrialsReport:
    configuration = default_request(case, HERE, gpus=2, run=1).configuration
    faults, not_tried = possible_faults(configuration, GPUS)
    session = Trials(machine.run, case, HERE, GPUS)
    for fault in blocks(faults, pairs=pairs, trials=trials):
        session.make(fault)
    return session.report(faults, not_tried, OVERHEAD)


def counts(rate: Rate | None) -> tuple[int, int] | None:
    return None if rate is None else (rate.count, rate.of)


def test_faults_are_found_and_named_and_nothing_else_is_alarmed(case: type[TrainingCase]) -> None:
    report = tried(KnownMachine(), case, pairs=6, trials=2)
    assert report.comparisons == 6
    assert counts(report.false_alarms) == (0, 12)
    assert [(its.fault.name, its.fault.size) for its in report.faults] == [
        *(("data stall", 0.2), ("data stall", 0.4)),
        *(("slow rank", 0.2), ("slow rank", 0.4)),
        *(("slower compute", 0.2), ("slower compute", 0.4)),
    ]
    for its in report.faults:
        assert (counts(its.found), counts(its.named)) == ((2, 2), (2, 2)), its.fault
    assert {its.key.gpus for its in report.detectable_losses} == {1, 2}
    assert all(0 < its.loss < 0.2 for its in report.detectable_losses)
    # 2 clean blocks before, 6 clean ones, 12 with a fault; 3 runs on 1 and on 2 GPUs each.
    assert (report.runs, report.failed_runs) == (20 * 3 * 2, 0)


def test_a_machine_that_is_never_steady_gives_no_rates(case: type[TrainingCase]) -> None:
    session = Trials(KnownMachine(fails=True).run, case, HERE, GPUS)
    for _ in range(BASELINE_BLOCKS + 1):
        session.make(None)
    report = session.report((), (), OVERHEAD)
    assert (report.comparisons, report.false_alarms, report.failed_runs) == (0, None, 18)
    assert "18 of them failed or not steady" in trials_text(report)
    stall = Fault(name="data stall", size=0.2, injection="data", kind=CauseKind.DATA)
    with pytest.raises(GpuscaleError, match="no run of tiny gave a number"):
        session.make(stall)


SLOW_RANK = ("slow-rank=3:1.2", "slow-rank=3:1.4")


@pytest.mark.parametrize(
    ("gpus", "of_slow_rank", "not_tried"),
    [((1, 4), SLOW_RANK, ["slow link"]), ((1,), (), ["slow rank", "slow link"])],
)
def test_each_fault_that_can_be_is_an_injection_of_its_size(
    gpus: tuple[int, ...], of_slow_rank: tuple[str, ...], not_tried: list[str]
) -> None:
    faults, reasons = possible_faults(CNN, gpus)
    texts = [injection_text(fault, step_time_s=0.05, gpus=gpus) for fault in faults]
    expected = ["data=10.000ms", "data=20.000ms", *of_slow_rank, "compute=1.2", "compute=1.4"]
    assert texts == expected
    assert len(parse_injections(texts[::2])) == len(texts) / 2
    assert [reason.partition(":")[0] for reason in reasons] == not_tried
