"""Scaling points, and efficiency budgets of runs whose loss has a known place."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from builders import CNN, phased_run, phases, run
from changing import replace
from hypothesis import given
from hypothesis import strategies as st
from statements import known

from gpuscale.analysis.scaling import scaling_points, unit_error_note
from gpuscale.analysis.step_parts import EfficiencyBudget, efficiency_budgets, steps_of
from gpuscale.records import EntryKey, Estimate, Run, Statement
from gpuscale.records.configuration import DataKind
from gpuscale.records.evidence import Phases
from gpuscale.reports.reason_words import statement_text
from gpuscale.reports.show.step_parts import budget_lines, budget_text


def test_speedup_and_efficiency_are_ratios_of_throughput() -> None:
    one, two = scaling_points([run(1, 0.10), run(2, 0.125)])
    assert known(one.samples_per_s).value == pytest.approx(1280)
    assert known(two.samples_per_s).value == pytest.approx(2048)
    assert known(two.speedup).value == pytest.approx(1.6)
    assert known(two.efficiency).value == pytest.approx(0.8)


def test_a_speedup_is_of_samples_where_the_batch_per_gpu_differs() -> None:
    # Strong scaling divides the batch; JUWELS had 256 per GPU on 1 GPU, 128 from 16 GPUs up.
    for times_s, gpus, batches in (((0.4, 0.125), 4, (128, 32)), ((1.0, 0.5), 16, (256, 128))):
        one = run(1, times_s[0], batch_per_gpu=batches[0])
        _, several = scaling_points([one, run(gpus, times_s[1], batch_per_gpu=batches[1])])
        samples = gpus * batches[1] / batches[0]
        assert known(several.speedup).value == pytest.approx(samples * times_s[0] / times_s[1])


def test_memory_is_the_largest_of_any_rank_and_utilisation_the_mean() -> None:
    runs = (run(2, 0.1, peak_memory_bytes=n, utilization=u) for n, u in ((5000, 0.9), (4000, 0.7)))
    (point,) = scaling_points([*runs])
    assert point.peak_memory_bytes == 5001
    assert point.peak_host_memory_bytes == 1001
    assert point.gpu_utilization == pytest.approx(0.8)


def test_an_efficiency_above_1_1_is_noted_as_noise_or_a_unit_error() -> None:
    key = EntryKey("mnist_cnn", "ddp", 2)
    note = unit_error_note(key, Estimate(value=1.23))
    assert note == Statement.of("unit_error", row=key, value=1.23)
    assert unit_error_note(key, Estimate(value=1.23, low=1.12, high=1.35)) == note
    assert unit_error_note(key, Estimate(value=1.09)) is None
    assert "idle" in statement_text(known(note), "cpu")
    assert unit_error_note(key, None) is None


WORK = phases(forward_s=0.060, backward_s=0.030, optimizer_s=0.010)
ONE = phased_run([WORK])


def only_budget(*runs: Run) -> EfficiencyBudget:
    (budget,) = efficiency_budgets(runs)
    return budget


def with_data(seconds: float) -> Phases:
    return replace(WORK, data_s=seconds)


def on(own: list[Phases], communication_s: float = 0.0, **more: Any) -> Run:
    return phased_run(own, communication_s=communication_s, **more)


STRONG = replace(CNN, scaling="strong")
DP = replace(CNN, strategy="dp")
ON_DP = phased_run([with_data(0.025)], gpus=2, configuration=DP)
UNKNOWN = {"communication": None, "skew": None}
FIFTH = {"communication": 0.2}
LATE, LATER = ({"data_s": 0.005 * n, "h2d_s": 0.001 * n} for n in (1, 2))
# A run on one GPU, one on several, and the parts of the loss that are booked: all others are 0.
BOOKED: dict[str, tuple[Run, Run, Mapping[str, float | None]]] = {
    "ideal scaling loses nothing": (ONE, on([WORK] * 4), {}),
    "exposed communication": (ONE, on([WORK] * 4, 0.025), FIFTH),
    "data that all ranks wait longer for": (
        phased_run([replace(WORK, **LATE)]),
        on([replace(WORK, **LATER)] * 4),
        {"data": 0.006 / 0.112},
    ),
    "slow data on one rank is skew": (ONE, on([WORK, WORK, with_data(0.02)]), {"skew": 1 / 6}),
    "what DDP does on a single rank is no communication of several": (
        on([WORK], 0.010),
        on([WORK] * 2, 0.030),
        {"communication": 0.02 / 0.13},
    ),
    "what slows all ranks alike is the rest": (ONE, on([WORK.scaled(1.25)] * 2), {"rest": 0.2}),
    "under strong scaling the ideal step has its share of the data": (
        phased_run([with_data(0.020)], configuration=STRONG),
        on([with_data(0.020).scaled(1 / 4)] * 4, 0.010, configuration=STRONG, batch_per_gpu=32),
        {"communication": 0.25},
    ),
    "a halved batch": (ONE, on([WORK.scaled(0.5)] * 2, 0.0125, batch_per_gpu=64), FIFTH),
    "one process with several devices has data alone": (
        phased_run([WORK], configuration=DP),
        ON_DP,
        {**UNKNOWN, "data": 0.2},
    ),
    "what was not measured": (run(1, 0.1), run(2, 0.125), {**UNKNOWN, "data": None, "rest": 0.2}),
}


def test_the_parts_of_a_step_are_all_of_it() -> None:
    late = replace(WORK, backward_s=WORK.backward_s + 0.03)
    (step,) = steps_of([phased_run([WORK, WORK, late], communication_s=0.008)])
    assert math.fsum(step.parts.values()) == pytest.approx(step.time_s)
    assert min(step.parts.values()) > -1e-9


@pytest.mark.parametrize(("one", "several", "parts"), BOOKED.values(), ids=BOOKED)
def test_each_loss_is_booked(one: Run, several: Run, parts: Mapping[str, float | None]) -> None:
    budget = only_budget(one, several)
    for name in ("communication", "data", "skew", "rest"):
        part = budget.rest if name == "rest" else budget.parts.get(name)
        assert part == pytest.approx(parts.get(name, 0)), name
    assert budget.efficiency.value == pytest.approx(1 - sum(part or 0 for part in parts.values()))


def test_ddp_on_a_single_rank_exposes_nothing() -> None:
    alone = on([WORK], 0.010)
    assert alone.synchronization_s == pytest.approx(0.010)
    assert "exposed_communication_s" not in alone.measured


def test_what_was_not_measured_is_named_and_without_any_of_it_nothing_is_said() -> None:
    budget = only_budget(phased_run([WORK], configuration=DP), ON_DP)
    rest = "(not measured, so in the rest: communication, skew)"
    assert budget_text(budget) == f"E 0.80 = 1 − data 0.20 − rest 0.00 {rest}"
    assert not list(budget_lines([run(1, 0.1), run(2, 0.125)]))


def test_communication_that_was_exposed_in_one_run_of_three_is_not_in_the_rest() -> None:
    exposed = enumerate((0.002, 0.002, 0.060), start=1)
    budget = only_budget(ONE, *(on([WORK] * 2, added_s, index=n) for n, added_s in exposed))
    assert budget.parts["communication"] == pytest.approx(0.18, abs=0.01)
    assert abs(budget.rest) < 0.03


@pytest.mark.parametrize(
    ("data", "waits_s", "is_named"),
    [
        ("loader", [0.02, 0.0], True),
        ("real", [0.0, 0.02], True),
        ("loader", [0.01, 0.01], False),
        # There is no loader that could set the pace.
        ("synthetic", [0.02, 0.02], False),
    ],
)
def test_slow_loaders_get_a_remedy(data: DataKind, waits_s: list[float], is_named: bool) -> None:
    its = [replace(WORK, data_s=wait_s) for wait_s in waits_s]
    lines = "\n".join(budget_lines([on(its, configuration=replace(CNN, data=data))]))
    assert ("--data-workers" in lines) is is_named
    assert ("16.7 %" in lines) is is_named


SHARES = st.floats(-0.2, 0.5)


@given(SHARES, SHARES, SHARES, SHARES)
def test_printed_points_add_up_and_stay_within_a_point(
    communication: float, data: float, skew: float, rest: float
) -> None:
    parts = {"communication": communication, "data": data, "skew": skew}
    key, value = EntryKey("mnist_cnn", "ddp", 4), Estimate(value=1 - sum((*parts.values(), rest)))
    budget = EfficiencyBudget(key=key, configuration=CNN, efficiency=value, parts=parts, rest=rest)
    text = budget_text(budget)
    terms = re.findall(r" ([−+]) (\w+) (\d\.\d\d)", text)
    printed = {name: round(float(n) * 100) * (-1 if sign == "+" else 1) for sign, name, n in terms}
    assert 100 - sum(printed.values()) == round(float(text.split()[1]) * 100)
    for name, part in {**parts, "rest": rest}.items():
        assert abs(printed[name] - part * 100) <= 1 + 1e-6
    # Pages and pictures have the same numbers and signs.
    assert sum(budget.hundredths.values()) == 100
    assert {name: budget.hundredths[name] for name in printed} == printed


def test_the_budget_of_an_uncertain_efficiency_says_so() -> None:
    def line(factor: float) -> str:
        alone, first = (on([WORK] * gpus) for gpus in (1, 2))
        second = on([WORK.scaled(factor)] * 2, index=2)
        return [*budget_lines([alone, replace(alone, index=2), first, second])][1]

    assert "  E 1.00 = 1 " in line(1.0)
    assert "  E 0.82 ? = 1 " in line(1.5)
