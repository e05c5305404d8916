"""The scaling table shows what was measured, and no column for what nobody has."""

import pytest
from builders import baseline, gpu_summary, measured, results, run, shown_text, window, with_values
from changing import replace

from gpuscale.analysis.scaling import scaling_points
from gpuscale.records import Failure, Run
from gpuscale.reports.show.scaling_table import scaling_table, table_notes


def run_with_energy(gpus: int, *energies_j: float | None, index: int = 1) -> Run:
    """A run of one window of one step, whose GPUs spent so much in it."""
    summaries = tuple(
        with_values(replace(gpu_summary(0.9), uuid=f"GPU-{number}"), energy_j=energy_j)
        for number, energy_j in enumerate(energies_j)
    )
    return replace(run(gpus, 0.1, batch_per_gpu=128, index=index), gpu_summaries=summaries)


def column(table: str, name: str) -> list[str]:
    """The cells of a right-aligned column."""
    header, _, *rows = table.splitlines()
    end = header.index(name) + len(name)
    return [row[:end].split("  ")[-1].strip() for row in rows]


@pytest.mark.parametrize(
    ("energies_j", "shown"),
    [((30.0, 34.0), ["4.00", "4.00"]), ((30.0, None), ["4.00", "–"])],
    ids=["the energy of all GPUs counts", "a GPU without a counter leaves its row open"],
)
def test_samples_per_joule_are_those_of_all_gpus(
    energies_j: tuple[float | None, ...], shown: list[str]
) -> None:
    points = scaling_points([run_with_energy(1, 32.0), run_with_energy(2, *energies_j)])
    assert points[0].samples_per_j is not None
    assert points[0].samples_per_j.value == pytest.approx(128 / 32)
    assert column(scaling_table(points), "samples/J") == shown


def test_samples_per_joule_have_an_interval_over_runs() -> None:
    runs = [run_with_energy(1, energy_j, index=i) for i, energy_j in enumerate((31, 32, 33), 1)]
    (point,) = scaling_points(runs)
    estimate = point.samples_per_j
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < 128 / 32 < estimate.high
    assert " ±" in scaling_table([point])


def test_without_any_counter_there_is_no_such_column() -> None:
    points = scaling_points([run_with_energy(1, None), run_with_energy(2)])
    assert [point.samples_per_j for point in points] == [None, None]
    assert "samples/J" not in scaling_table(points)


HEADLINES = ("speedup", "efficiency")
TWO = measured({1: (0.1, 0.101, 0.099), 2: (0.11, 0.112, 0.108)})


def test_a_counter_that_no_run_has_takes_no_column() -> None:
    with_memory = replace(run(1, 0.1), gpu_summaries=(gpu_summary(0.9),))
    (unknown,), (known,) = scaling_points([run(1, 0.1)]), scaling_points([with_memory])
    assert "GPU util" not in scaling_table([unknown])
    assert column(scaling_table([known]), "GPU util") == ["90.0 %"]


def test_a_narrow_terminal_gets_what_matters_first_and_the_rest_below() -> None:
    text = shown_text(TWO, columns=80)
    assert max(map(len, text.splitlines())) <= 80
    tables = [part for part in text.split("\n\n") if "----" in part]
    assert tables[0].splitlines()[0].split() == ["case", "GPUs", "step", "time", *HEADLINES]
    for name in ("runs", "samples/s"):
        assert name in tables[1]
    # Every table has every row.
    assert all(table.count("mnist_cnn/ddp") == 2 for table in tables)


@pytest.mark.parametrize("columns", [20, 40, 60, 100, 120, 140, 200])
def test_no_column_is_lost_however_narrow_the_terminal(columns: int) -> None:
    points = scaling_points(TWO.runs)
    whole = scaling_table(points)
    narrow = scaling_table(points, columns=columns)
    for row in whole.splitlines()[2:]:
        assert set(row.split()) <= set(narrow.split())
    if columns >= 60:
        assert max(map(len, narrow.splitlines())) <= columns
    assert (narrow == whole) == (columns >= max(map(len, whole.splitlines())))


def test_runs_without_a_number_are_counted_by_what_they_lack() -> None:
    unsteady = replace(run(1, None, index=2), failure=Failure(kind="unsteady", message="drifts"))
    runs = [run(1, 0.1), unsteady, run(1, None, index=3)]
    assert column(scaling_table(scaling_points(runs), runs), "runs") == ["1 (1 unsteady, 1 failed)"]
    assert column(scaling_table(scaling_points(runs[:2]), runs[:2]), "runs") == ["1 (1 unsteady)"]


def test_a_wide_interval_is_explained_where_there_is_one() -> None:
    wide = scaling_points(results(run(1, 0.1), run(1, 0.15, index=2)).runs)
    (note,) = [line for line in table_notes(wide) if "×[" in line]
    assert "a wide interval, as factors of the value" in note
    assert not [line for line in table_notes(scaling_points(TWO.runs)) if "×[" in line]
    for time_s, is_wide in ((0.15, True), (0.1001, False)):
        text = shown_text(baseline({1: (0.1, time_s)}))
        assert ("a wide interval, as factors of the value" in text) == is_wide


def test_slow_windows_that_the_median_bears_are_noted() -> None:
    slow = [0.5, 0.5, 0.7, 0.5, 0.5, 0.7, 0.5, 0.5, 0.7, 0.5]
    plain = run(2, 0.5)
    windows = tuple(window(time_s, 2) for time_s in slow)
    made = results(run(1, 0.5), *(replace(plain, windows=windows, index=i) for i in (1, 2)))
    text = " ".join(shown_text(made).split())
    assert "mnist_cnn/ddp on 2 GPUs, run 1: two levels, steps 40% longer in 3 of 10 windows" in text
    assert "and 1 run more" in text


def test_a_command_that_reports_another_step_time_is_noted() -> None:
    def text(reported_step_s: float | None) -> str:
        runs = [replace(run(1, 0.1, index=i), reported_step_s=reported_step_s) for i in (1, 2)]
        return shown_text(results(*runs))

    (line,) = [line for line in text(0.2).splitlines() if "themselves" in line]
    assert "mnist_cnn/ddp on 1 GPU" in line
    assert "200 ms" in line
    assert all("themselves" not in text(reported) for reported in (None, 0.095, 0.105))
