"""The scaling table shows what was measured, and no column for what nobody has."""

from dataclasses import replace

import pytest
from scaling_records import gpu_summary, run

from gpuscale.records import Run
from gpuscale.report.table import scaling_table
from gpuscale.scaling import scaling_points


def run_with_energy(gpus: int, *energies_j: float | None, index: int = 1) -> Run:
    """A run of one window of one step, whose GPUs spent so much in it."""
    summaries = tuple(
        replace(gpu_summary(0.9), uuid=f"GPU-{number}", energy_j=energy_j)
        for number, energy_j in enumerate(energies_j)
    )
    return replace(run(gpus, 0.1, batch_per_gpu=128, index=index), gpu_summaries=summaries)


def column(table: str, name: str) -> list[str]:
    """The cells of a right-aligned column."""
    header, _, *rows = table.splitlines()
    end = header.index(name) + len(name)
    return [row[:end].split("  ")[-1].strip() for row in rows]


def test_samples_per_joule_count_the_energy_of_all_gpus() -> None:
    runs = [run_with_energy(1, 32.0), run_with_energy(2, 30.0, 34.0)]
    one, two = scaling_points(runs)
    assert one.samples_per_j is not None
    assert two.samples_per_j is not None
    assert one.samples_per_j.value == pytest.approx(128 / 32)
    assert two.samples_per_j.value == pytest.approx(256 / 64)
    assert column(scaling_table([one, two]), "samples/J") == ["4.00", "4.00"]


def test_samples_per_joule_have_an_interval_over_runs() -> None:
    runs = [run_with_energy(1, energy_j, index=i) for i, energy_j in enumerate((31, 32, 33), 1)]
    (point,) = scaling_points(runs)
    estimate = point.samples_per_j
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < 128 / 32 < estimate.high
    assert " ±" in scaling_table([point])


def test_a_gpu_without_a_counter_leaves_its_row_open() -> None:
    points = scaling_points([run_with_energy(1, 32.0), run_with_energy(2, 30.0, None)])
    assert column(scaling_table(points), "samples/J") == ["4.00", "–"]


def test_without_any_counter_there_is_no_such_column() -> None:
    points = scaling_points([run_with_energy(1, None), run_with_energy(2)])
    assert [point.samples_per_j for point in points] == [None, None]
    assert "samples/J" not in scaling_table(points)
