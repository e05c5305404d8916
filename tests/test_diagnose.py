"""The causes found for losses whose true cause is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import environment, results, row_on, with_values
from builders.causes import (
    FAULTS,
    LATE,
    LOST_S,
    ONE_SLOW,
    SLOW,
    SLOW_CLOCK,
    SLOW_LINK,
    diagnosed,
    night_of,
    tally,
    well,
)
from builders.nights import EXPOSED_S, WELL, Fault
from changing import replace

from gpuscale.judge.compare import compare
from gpuscale.judge.diagnose.causes import diagnose
from gpuscale.judge.sides import sides_of
from gpuscale.records import Environment, GpuDevice, GpuSummary, Run
from gpuscale.records.baseline import ToleranceOverride
from gpuscale.records.cause import Cause, CauseKind, Remedy


def causes(
    fault: Fault, *, seen: Callable[[Run], Run] = lambda run: run, **noise: Any
) -> tuple[Cause, ...]:
    """Return the causes found in three steady runs with a fault; `seen` changes each run."""
    rng, noise = np.random.default_rng(7), {"deviation": 0.003, **noise}
    usual = well(rng, [4], **noise)
    now = night_of(rng, [4], 3, fault, **noise)
    shown = replace(now, runs=tuple(seen(run) for run in now.runs))
    return diagnosed(usual, shown)[4].causes


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_fifth_of_the_step_is_the_first_cause(name: str) -> None:
    rng = np.random.default_rng(5)
    assert tally(rng, FAULTS[name], 4, deviation=0.003, runs=3, trials=4) == (4, 4)


def test_a_slow_rank_makes_a_seeming_loss_a_loss_and_noise_does_not() -> None:
    rng, slow = np.random.default_rng(3), Fault(computing=1.2, ranks=frozenset({1}))

    def losses(fault: Fault, trials: int) -> tuple[int, int]:
        """Return how often the runs alone show a loss, and how often they do with their ranks."""
        nights = [
            (well(rng, [1, 4], deviation=0.06), night_of(rng, [1, 4], 6, fault, deviation=0.06))
            for _ in range(trials)
        ]
        alone = sum(row_on(4, compare(usual, [now])).verdict.is_loss for usual, now in nights)
        return alone, sum(diagnosed(usual, now)[4].verdict.is_loss for usual, now in nights)

    alone, with_ranks = losses(slow, 60)
    assert alone <= 45
    assert with_ranks >= 51
    alone, with_ranks = losses(WELL, 150)
    assert alone == with_ranks <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize(("deviation", "runs"), [(0.02, 3), (0.05, 8)])
@pytest.mark.parametrize("name", FAULTS)
def test_noise_rarely_hides_the_cause(name: str, deviation: float, runs: int, gpus: int) -> None:
    rng = np.random.default_rng(5)
    losses, right = tally(rng, FAULTS[name], gpus, deviation=deviation, runs=runs, trials=12)
    assert losses >= 7
    assert right >= 0.9 * losses


def test_a_part_that_a_row_s_own_deviation_explains_is_no_cause() -> None:
    rng = np.random.default_rng(6)
    mixed = Fault(computing=1.08, communication_s=0.030)
    usual = well(rng, [1, 4], deviation=0.001)
    now = night_of(rng, [1, 4], 6, mixed, deviation=0.001)
    kinds = []
    for deviation in (None, 0.05):
        override = ToleranceOverride(gpus=4, allocation_deviation=deviation, margin=0.02)
        own = replace(usual, tolerances=replace(usual.tolerances, overrides=(override,)))
        kinds.append([cause.kind for cause in diagnosed(own, now)[4].causes])
    assert kinds == [[CauseKind.COMMUNICATION, CauseKind.COMPUTE], [CauseKind.COMMUNICATION]]


def test_a_gpu_that_a_cause_names_is_said_where_an_admin_finds_it() -> None:
    rng = np.random.default_rng(7)
    usual = well(rng, [4], deviation=0.003)
    now = night_of(rng, [4], 3, ONE_SLOW, deviation=0.003)
    slow = next(uuid for cause in diagnosed(usual, now)[4].causes for uuid in cause.device_uuids)
    gpus = tuple(
        GpuDevice(index=n, name="V100", uuid=uuid, smi_index=n + 4, pci_address=f"0000:C{n}:00.0")
        for n, uuid in enumerate(("another", slow))
    )
    found = replace(now, environment=replace(now.environment, host="node1", gpus=gpus))
    comparison = diagnose(sides_of(usual, [found]), compare(usual, [found]))
    (places,) = [note.facts["places"] for note in comparison.notes if note.code == "gpu_places"]
    assert places == {slow: "GPU 5 at 0000:C1:00.0 of node1"}


def test_what_a_baseline_without_telemetry_cannot_know_is_judged_by_itself() -> None:
    rng = np.random.default_rng(34)
    before = well(rng, [4], deviation=0.003)

    def worn(summary: GpuSummary) -> GpuSummary:
        lowered = {"pcie_width": 8, "ecc_uncorrected": 1}
        return with_values(summary, **lowered) if summary.uuid == "GPU-3" else summary

    now = night_of(rng, [4], 3, SLOW, deviation=0.003, telemetry=True, devices=worn)
    slow, *faults = diagnosed(before, now)[4].causes
    assert slow.kind is CauseKind.COMPUTE
    assert [each.kind for each in faults] == [CauseKind.PCIE, CauseKind.MEMORY_ERRORS]
    assert {each.device_uuids for each in faults} == {("GPU-3",)}


def test_ranks_that_lag_in_turn_are_not_blamed_one_by_one() -> None:
    rng = np.random.default_rng(11)
    before = well(rng, [4], deviation=0.003)
    faults = (Fault(computing=1.3, ranks=frozenset({rank})) for rank in range(4))
    nights = [night_of(rng, [4], 1, fault, deviation=0.003) for fault in faults]
    runs = [replace(run, index=i) for i, night in enumerate(nights, 1) for run in night.runs]
    (cause,) = diagnosed(before, results(*runs))[4].causes
    assert cause.kind is CauseKind.SLOW_RANK
    assert cause.ranks == ()
    assert cause.remedy == Remedy("jobs_on_hosts", ("node1",))


def test_late_data_that_hide_the_communication_are_not_called_slow_computing() -> None:
    def hidden(run: Run) -> Run:
        """Steps without synchronisation wait for data as long as those with it."""
        ranks = (replace(each, pace_s=(each.pace_s or 0.0) + EXPOSED_S) for each in run.ranks)
        return replace(run, unsynced_windows=run.windows, ranks=tuple(ranks))

    (cause,) = causes(LATE, seen=hidden)
    assert cause.kind is CauseKind.DATA


def test_clocks_of_gpus_that_wait_for_data_and_what_a_device_always_lacked_are_no_causes() -> None:
    (cause,) = causes(replace(LATE, clock=SLOW_CLOCK.clock), telemetry=True)
    assert cause.kind is CauseKind.DATA
    (cause,) = causes(SLOW, telemetry=True, devices=lambda gpu: with_values(gpu, pcie_width=8))
    assert cause.kind is CauseKind.COMPUTE


def test_what_any_night_of_the_baseline_had_is_no_change() -> None:
    rng = np.random.default_rng(23)
    before = well(rng, [4], deviation=0.003)
    other: Environment = replace(environment(), torch_version="2.12")
    again = replace(before.runs[0], allocation="another night")
    where = {**before.environments, "another night": other}
    both = replace(before, runs=(*before.runs[1:], again), environments=where)
    now = night_of(rng, [4], 3, SLOW_LINK, deviation=0.003, where=other)
    assert [c.kind for c in diagnosed(before, now)[4].causes][1:] == [CauseKind.ENVIRONMENT]
    assert [c.kind for c in diagnosed(both, now)[4].causes][1:] == []


def test_time_that_no_part_holds_is_not_put_down_to_one() -> None:
    def stretched(run: Run) -> Run:
        windows, unsynced = (
            tuple(replace(w, time_s=w.time_s + LOST_S) for w in each)
            for each in (run.windows, run.unsynced_windows)
        )
        return replace(run, windows=windows, unsynced_windows=unsynced)

    (cause,) = causes(WELL, seen=stretched)
    assert cause.kind is CauseKind.NOT_ESTABLISHED
    assert cause.lost_s == pytest.approx(LOST_S, rel=0.1)
