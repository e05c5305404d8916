"""`--batch 32,64,128`, each a point of its own, and `gpuscale batch`, which finds the largest."""

import re
import sys
from pathlib import Path

import pytest
from builders import CNN, environment, request, results, run
from changing import replace
from measuring import BENCH_CASES, run_gpuscale, run_pytest, write_case
from statements import known

from gpuscale.analysis.scaling import scaling_points
from gpuscale.base.errors import GpuscaleError, UsageError
from gpuscale.cli.batch import has_fitted, largest_batch
from gpuscale.judge.baseline import baseline_from_results
from gpuscale.judge.compare import compare
from gpuscale.judge.stopping import DecidedVerdict
from gpuscale.plugin.items import ItemPlan
from gpuscale.plugin.options import MeasureOptions, parse_options
from gpuscale.plugin.requests import run_request
from gpuscale.plugin.run_maker import stopping_rule
from gpuscale.records import Failure, FailureKind, Run, Verdict
from gpuscale.store.files import write_baseline
from gpuscale.store.results import read_results
from gpuscale.workload.cases import TrainingCase, case_class

QUICK = ("--device", "cpu", "--run-seconds", "0.1", "--runs", "1")


def at_batch(batch: int, gpus: int, step_time_s: float, index: int = 1) -> Run:
    configuration = replace(CNN, batch=batch)
    made = run(gpus, step_time_s, configuration=configuration, batch_per_gpu=batch, index=index)
    return replace(made, samples_per_epoch=51_200)


def curve(step_times_s: dict[int, tuple[float, float]], runs: int = 6) -> list[Run]:
    """Runs on 1 and 2 GPUs at each batch, in turn."""
    return [
        at_batch(batch, gpus, time_s * (1 + 0.001 * (index % 3)), index)
        for index in range(1, runs + 1)
        for batch, times_s in step_times_s.items()
        for gpus, time_s in enumerate(times_s, start=1)
    ]


BEFORE = {32: (0.1, 0.11), 64: (0.15, 0.16)}


def test_each_batch_has_its_own_speedup_and_time_per_epoch() -> None:
    points = scaling_points(curve(BEFORE, runs=1))
    assert [(p.batch_per_gpu, p.key.gpus) for p in points] == [(32, 1), (32, 2), (64, 1), (64, 2)]
    speedups = [known(point.speedup).value for point in points]
    assert speedups == pytest.approx([1, 2 * 0.1 / 0.11, 1, 2 * 0.15 / 0.16])
    # 51,200 samples are 1,600 steps of 32.
    assert known(points[0].epoch_s) == pytest.approx(1600 * 0.1 * 1.001)
    first = scaling_points(curve(BEFORE, runs=3))[0]
    epoch, step = known(first.epoch_time_s), known(first.step_time_s)
    assert known(epoch.high) / epoch.value == pytest.approx(known(step.high) / step.value)


def test_a_batch_is_judged_against_the_same_batch_only() -> None:
    then = baseline_from_results([results(*curve(BEFORE))], name="then", cluster="here")
    now = results(*curve({**BEFORE, 64: (0.15, 0.2), 128: (0.2, 0.2)}))
    found = compare(then, [now]).entries
    assert {(known(e.configuration).batch, e.key.gpus): e.verdict for e in found} == {
        (32, 1): Verdict.OK,
        (32, 2): Verdict.OK,
        (64, 1): Verdict.OK,
        (64, 2): Verdict.REGRESSED,
        (128, 1): Verdict.MISSING,
        (128, 2): Verdict.MISSING,
    }


def test_while_measuring_only_the_batch_that_is_not_decided_gets_more_runs(tmp_path: Path) -> None:
    then = baseline_from_results([results(*curve(BEFORE))], name="then", cluster="here")
    write_baseline(tmp_path / "then.json", then)
    options = parse_options({"gpus": "1,2", "baseline": str(tmp_path / "then.json")})
    judge = stopping_rule(options)
    assert isinstance(judge, DecidedVerdict)
    now = results(*curve({**BEFORE, 64: (0.15, 0.2)}, runs=3), where=environment())

    def needs(batch: int, gpus: int) -> bool:
        asked = request(gpus, 4, configuration=replace(CNN, batch=batch), batch_per_gpu=batch)
        return judge.reason_to_leave_out(asked, now) is None

    rows = [(32, 1), (32, 2), (64, 1), (64, 2)]
    assert [row for row in rows if needs(*row)] == rows[2:]


def test_the_batch_of_the_size_asked_for_by_its_number_is_no_other_one() -> None:
    class Small(TrainingCase):
        sample_shape = (16,)
        batch = 8

    def asked(batch: int | None) -> object:
        here = environment("cpu")
        plan = ItemPlan(case=Small, strategy="ddp", gpus=1, run=1, batch=batch)
        return run_request(plan, here, MeasureOptions())

    assert asked(8) == asked(None) != asked(16)


def test_a_session_measures_each_batch_and_goes_on_with_another(tmp_path: Path) -> None:
    write_case(tmp_path, "Case = Tiny")
    first = run_pytest(tmp_path, *QUICK, "--gpus", "1,2", "--batch", "4,8", "--results", "a.jsonl")
    assert "[ddp-2gpus-batch4-run1]" in first.output
    more = run_pytest(tmp_path, *QUICK, "--gpus", "1", "--batch", "8,16", "--resume", "a.jsonl")
    assert "measured before, in a.jsonl" in more.output
    assert (first.exit_code, more.exit_code) == (0, 0), first.output + more.output
    made = [(each.batch_per_gpu, each.gpus) for each in read_results(tmp_path / "a.jsonl").runs]
    assert sorted(made) == [(4, 1), (4, 2), (8, 1), (8, 2), (16, 1)]


def test_a_batch_that_cannot_be_divided_is_refused_before_anything_runs(tmp_path: Path) -> None:
    case = str(BENCH_CASES / "test_mnist_net.py")
    session = run_pytest(tmp_path, case, *QUICK, "--gpus", "1,2", "--batch", "64,33").ended(4)
    assert "--batch: mnist_net: a global batch of 33 cannot be divided among 2" in session.output
    assert not (tmp_path / ".gpuscale").exists()


NO_ENGINE = "RuntimeError: GET was unable to find an engine to execute this computation"


def tried(most: int, *, first: int, unit: int = 1, limit: int) -> tuple[int, list[int]]:
    """The batch found on a machine that holds `most`, and all that were tried."""
    batches: list[int] = []

    def does_fit(batch: int, fitted: int) -> bool:
        assert fitted == max((b for b in batches if b <= most), default=0)
        batches.append(batch)
        return batch <= most

    return largest_batch(does_fit, first=first, unit=unit, most=limit), batches


def failed(kind: FailureKind, message: str = "it failed") -> Failure:
    return Failure(kind=kind, message=message, rank=3)


def test_powers_of_two_and_then_halves_lead_to_the_largest() -> None:
    found, batches = tried(143, first=20, limit=1000)
    assert found == 143
    assert batches == [16, 32, 64, 128, 256, 192, 160, 144, 136, 140, 142, 143]


@pytest.mark.parametrize("first", [1, 7, 64, 900])
@pytest.mark.parametrize("unit", [1, 3])
def test_whatever_fits_is_found_and_nothing_is_tried_twice(first: int, unit: int) -> None:
    for most in range(70):
        found, batches = tried(most, first=first, unit=unit, limit=65)
        assert found == min(most, 65) // unit * unit
        assert len(set(batches)) == len(batches)


def test_a_batch_fits_unless_memory_is_lacking_and_another_failure_ends_the_search() -> None:
    made = run(1, 0.1)
    for failure in (None, failed("unsteady")):
        assert has_fitted(replace(made, failure=failure), 16, fitted=8)
    for failure in (failed("out_of_memory"), failed("raised", NO_ENGINE)):
        assert not has_fitted(replace(made, failure=failure), 16, fitted=8)
    with pytest.raises(GpuscaleError, match=r"a batch of 16, after 8 had fitted: it failed"):
        has_fitted(replace(run(1, None), failure=failed("raised")), 16, fitted=8)
    # If no batch has fitted, cuDNN may just have no engine for this GPU.
    with pytest.raises(GpuscaleError, match="a batch of 8: RuntimeError"):
        has_fitted(replace(made, failure=failed("raised", NO_ENGINE)), 8, fitted=0)


def test_cpu_ranks_are_refused(tmp_path: Path) -> None:
    path = write_case(tmp_path, "Case = Tiny")
    said = run_gpuscale(tmp_path, "batch", f"{path}::Case", "--device", "cpu").ended(2)
    (line,) = said.output.splitlines()
    assert "gpuscale batch fills the memory of GPUs" in line


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("test_tiny.py::Other", "there is test_tiny.py::Tiny"),
        # Whatever a user's file raises is a message, and no bug of ours.
        ("test_broken.py::Case", "No module named 'nowhere_at_all'"),
        ("none.py::Case", "there is no file none.py"),
        ("test_tiny.py", "as FILE::Class"),
    ],
)
def test_a_case_that_cannot_be_had_is_told_with_those_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, told: str
) -> None:
    write_case(tmp_path, "Case = Tiny")
    (tmp_path / "test_broken.py").write_text("import nowhere_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match=re.escape(told)):
        case_class(case)
