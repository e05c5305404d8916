"""The scaling table shows what was measured, and no column for what nobody has."""

from collections.abc import Sequence

import pytest
from builders import CNN, baseline, gpu_summary, measured, results, run, shown_text, with_values
from changing import replace

from gpuscale.analysis.scaling import scaling_points
from gpuscale.judge.compare import compare
from gpuscale.records import Run
from gpuscale.reports.comparison import view_of
from gpuscale.reports.comparison.texts import text
from gpuscale.reports.show import scaling_lines, scaling_table, table_notes


def run_with_energy(gpus: int, *energies_j: float | None, index: int = 1) -> Run:
    """A run of one window of one step with this energy."""
    summaries = tuple(
        with_values(replace(gpu_summary(0.9), uuid=f"GPU-{number}"), energy_j=energy_j)
        for number, energy_j in enumerate(energies_j)
    )
    return replace(run(gpus, 0.1, batch_per_gpu=128, index=index), gpu_summaries=summaries)


def column(table: str, name: str) -> list[str]:
    """The cells of a right-aligned column."""
    *_, header = table.partition("---")[0].splitlines()
    rows = table.rpartition("---")[2].splitlines()[1:]
    end = header.index(name) + len(name)
    return [row[:end].split("  ")[-1].strip() for row in rows]


@pytest.mark.parametrize(
    ("energies_j", "shown"),
    [((30.0, 34.0), ["4.00", "4.00"]), ((30.0, None), ["4.00", "–"])],
    ids=["the energy of all GPUs counts", "a GPU without a counter leaves its row open"],
)
def test_joules_are_of_all_gpus(energies_j: tuple[float | None, ...], shown: list[str]) -> None:
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


TWO = measured({1: (0.1, 0.101, 0.099), 2: (0.11, 0.112, 0.108)})


@pytest.mark.parametrize("columns", [20, 40, 60, 100, 120, 140, 200])
def test_no_column_is_lost_however_narrow_the_terminal(columns: int) -> None:
    points = scaling_points(TWO.runs)
    whole = scaling_table(points)
    narrow = scaling_table(points, columns=columns)
    assert "[0.88, 0.94]" in whole
    for row in whole.splitlines()[2:]:
        # The interval of the efficiency is that of the speedup over the number of GPUs.
        assert set(row.replace("[0.88, 0.94]", "").split()) <= set(narrow.split())
    if columns >= 60:
        assert max(map(len, narrow.splitlines())) <= columns
    assert (narrow == whole) == (columns >= max(map(len, whole.splitlines())))


@pytest.mark.parametrize(("gpus", "is_noted"), [((1,), False), ((1, 2), True)])
def test_ranks_of_a_command_train_together_or_not_only_where_there_are_several(
    gpus: tuple[int, ...], is_noted: bool
) -> None:
    ran = replace(CNN, strategy="command", command="python train.py")
    made = results(*(replace(run(n, 0.1), configuration=ran) for n in gpus))
    for texts in (table_notes(scaling_points(made.runs)), scaling_lines(made, 100)):
        assert ("was not checked" in " ".join(texts)) is is_noted
    (note,) = [line for line in scaling_lines(made, 200) if "{batch}" in line]
    assert "the command has no {batch}, so check that its batch on each GPU is 128" in note
    notes = compare(baseline({1: [0.1]}), [made]).notes
    assert ("unchecked_training" in {note.code for note in notes}) is is_noted


def test_an_interval_shows_its_ends_if_it_is_wide_and_only_a_sign_beyond_a_factor_of_two() -> None:
    wide = scaling_points(results(run(1, 0.1), run(1, 0.105, index=2)).runs)
    assert "102 ms [75.2 ms, 140 ms]" in scaling_table(wide)
    assert not [line for line in table_notes(wide) if "factor of two" in line]
    useless = scaling_points(results(run(1, 0.1), run(1, 0.15, index=2)).runs)
    assert "122 ms ?" in scaling_table(useless)
    efficiency_too = scaling_points(
        results(*(run(1, 0.1, index=i) for i in (1, 2)), run(2, 0.1), run(2, 0.15, index=2)).runs
    )
    for columns in (None, 60):
        assert "0.82 ?" in scaling_table(efficiency_too, columns=columns)
    both = scaling_points(
        results(
            *(run(n, t, index=i) for n in (1, 2) for i, t in enumerate((0.1, 0.1 + n / 20), 1))
        ).runs
    )
    assert "\n\n" not in scaling_table(both, columns=100)
    (note,) = [line for line in table_notes(useless) if line.startswith("?: ")]
    assert "the runs do not tell the value within a factor of two" in note
    for time_s, is_open in ((0.15, True), (0.1001, False)):
        text = shown_text(baseline({1: (0.1, time_s)}))
        assert (" ?" in text and "factor of two" in text) == is_open


@pytest.mark.parametrize(
    ("times_s", "named"),
    [
        ((0.1, 0.101, 0.14), "run 3 stands out: 140 ms, the others 100 ms to 101 ms"),
        ((0.1, 0.08, 0.1), "run 2 stands out: 80.0 ms, the others 100 ms"),
        ((0.1, 0.101, 0.105), ""),
        ((0.1, 0.12, 0.14), ""),
        ((0.1, 0.1, 0.14, 0.14), ""),
        ((0.1, 0.14), ""),
    ],
)
def test_a_run_that_stands_out_is_named_in_the_session_and_beside_an_open_row(
    times_s: Sequence[float], named: str
) -> None:
    made = results(*(run(1, time_s, index=i) for i, time_s in enumerate(times_s, 1)))
    noted = [line for line in scaling_lines(made, 200) if "stands out" in line]
    assert noted == ([f"mnist_cnn/ddp on 1 GPU: {named}"] if named else [])
    compared = text(view_of(compare(baseline({1: [0.099, 0.1, 0.101]}), [made]), [made]))
    assert (named or "run") in " ".join(compared.split())
    assert ("stands out" in compared) is bool(named)
