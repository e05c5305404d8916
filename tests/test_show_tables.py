"""The tables of `gpuscale show` have what was measured, and no column for what nobody has."""

from collections.abc import Sequence

import builders
import pytest
from builders import CNN, baseline, measured, phased_run, phases, results, run, shown_text
from builders.comparisons import viewed
from changing import replace
from statements import known

from gpuscale.analysis.scaling import scaling_points
from gpuscale.judge.compare import compare
from gpuscale.records import Run
from gpuscale.records.baseline import ToleranceOverride, Tolerances
from gpuscale.reports.comparison.text_markdown_junit import text
from gpuscale.reports.show import odd_runs, scaling_lines, scaling_table, table_notes


def run_with_energy(gpus: int, *energies_j: float | None) -> Run:
    """A run of one window of one step with this energy."""
    gpu = builders.gpu_summary(0.9)
    summaries = tuple(
        builders.with_values(replace(gpu, uuid=f"GPU-{number}"), energy_j=energy_j)
        for number, energy_j in enumerate(energies_j)
    )
    return replace(run(gpus, 0.1), gpu_summaries=summaries)


def table_row(text: str, gpus: int) -> dict[str, str]:
    """The cells of a row of the first table by column; a cell has time and share."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    starts = [i for i in range(len(lines[rule])) if f" {lines[rule]}"[i : i + 2] == " -"]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    headers = [lines[rule - 1][slice(*span)].strip() for span in spans]
    for line in lines[rule + 1 :]:
        cells = [line[slice(*span)].strip() for span in spans]
        if cells[:2] == ["mnist_cnn/ddp", str(gpus)]:
            return dict(zip(headers, cells, strict=True))
    raise AssertionError(f"no row on {gpus} GPUs in\n{text}")


@pytest.mark.parametrize(("second_j", "shown"), [(34.0, "4.00"), (None, "–")])
def test_joules_are_of_all_gpus(second_j: float | None, shown: str) -> None:
    points = scaling_points([run_with_energy(1, 32.0), run_with_energy(2, 30.0, second_j)])
    assert known(points[0].samples_per_j).value == pytest.approx(128 / 32)
    rows = (table_row(scaling_table(points), gpus) for gpus in (1, 2))
    assert [row["samples/J"] for row in rows] == ["4.00", shown]


TWO = measured({1: (0.1, 0.101, 0.099), 2: (0.11, 0.112, 0.108)})


@pytest.mark.parametrize("columns", [20, 40, 60, 100, 120, 140, 200])
def test_no_column_is_lost_however_narrow_the_terminal(columns: int) -> None:
    points = scaling_points(TWO.runs)
    whole = scaling_table(points)
    narrow = scaling_table(points, columns=columns)
    assert "0.91 ±3.7 %" in whole
    for row in whole.splitlines()[2:]:
        assert set(row.split()) <= set(narrow.split())
    if columns >= 60:
        assert max(map(len, narrow.splitlines())) <= columns
    assert (narrow == whole) == (columns >= max(map(len, whole.splitlines())))


@pytest.mark.parametrize(("gpus", "is_noted"), [((1,), False), ((1, 2), True)])
def test_only_several_ranks_may_not_train_together(gpus: tuple[int, ...], is_noted: bool) -> None:
    ran = replace(CNN, strategy="command", command="python train.py")
    made = results(*(replace(run(n, 0.1), configuration=ran) for n in gpus))
    for texts in (table_notes(scaling_points(made.runs)), scaling_lines(made, 100)):
        assert ("cannot check" in " ".join(texts)) is is_noted
    (note,) = [line for line in scaling_lines(made, 200) if "{batch}" in line]
    asks = "mnist_cnn/command: the command has no {batch}, so check that it trains with that given"
    assert note == asks
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
    times_s = ((n, i, 0.1 + i * n / 20) for n in (1, 2) for i in (0, 1))
    both = scaling_points([run(n, time_s, index=1 + i) for n, i, time_s in times_s])
    assert "\n\n" not in scaling_table(both, columns=100)
    (note,) = [line for line in table_notes(useless) if line.startswith("?: ")]
    assert "uncertain by more than a factor of two" in note
    for time_s, is_open in ((0.15, True), (0.1001, False)):
        text = shown_text(baseline({1: (0.1, time_s)}))
        assert (" ?" in text and "factor of two" in text) == is_open


def test_a_baseline_shows_the_limits_that_a_site_has_set() -> None:
    usual = baseline({1: (0.1, 0.1)})
    own = Tolerances(overrides=(ToleranceOverride(case="mnist_cnn", margin=0.1),))
    assert "\nlimits " not in shown_text(usual)
    line = 'limits    {"overrides": [{"case": "mnist_cnn", "margin": 0.1}]}\n'
    assert line in shown_text(replace(usual, tolerances=own))


UNEVEN = [0.0832 * 1.23 ** (place / 11) for place in range(12)]


@pytest.mark.parametrize(
    ("times_s", "named"),
    [
        ((0.1, 0.101, 0.14), "run 3 {} stands out: 140 ms, the others 100 ms to 101 ms"),
        ((0.1, 0.08, 0.1), "run 2 {} stands out: 80.0 ms, the others 100 ms"),
        ((*UNEVEN, 0.131), "run 13 {} stands out: 131 ms, the others 83.2 ms to 102 ms"),
        ((*UNEVEN, 0.12), ""),
        ((0.1, 0.101, 0.105), ""),
        # Of three noisy runs two are often near each other.
        ((0.139, 0.163, 0.166), ""),
        ((0.1, 0.12, 0.14), ""),
        ((0.1, 0.1, 0.14, 0.14), ""),
        ((0.1, 0.14), ""),
    ],
)
def test_a_run_that_stands_out_is_named(times_s: Sequence[float], named: str) -> None:
    named = named.format("(2023-11-14 22:13)")
    made = results(*(run(1, time_s, index=i) for i, time_s in enumerate(times_s, 1)))
    noted = [line for line in scaling_lines(made, 200) if "stands out" in line]
    assert noted == ([f"mnist_cnn/ddp on 1 GPU: {named}"] if named else [])
    compared = text(viewed(compare(baseline({1: [0.099, 0.1, 0.101]}), [made]), made))
    assert (named or "run") in " ".join(compared.split())
    assert ("stands out" in compared) is bool(named)


def test_a_run_that_stands_out_is_found_by_its_start_and_its_host_if_others_ran_elsewhere() -> None:
    *others, odd = (run(1, time_s, index=1) for time_s in (0.1, 0.101, 0.14))
    there = [replace(rank, host="node2") for rank in odd.ranks]
    elsewhere = replace(odd, ranks=tuple(there), started_at_s=1.7e9 + 3600)
    (line,) = odd_runs([*others, elsewhere])
    assert "run 1 (2023-11-14 23:13, node2) stands out" in line
    (line,) = odd_runs([*others, replace(odd, started_at_s=None)])
    assert "run 1 stands out" in line


WORKSHOP = phases(
    data_s=0.00176, h2d_s=0.00011, forward_s=0.00638, backward_s=0.00145, optimizer_s=0.0003
)


def phases_shown(*runs: Run) -> str:
    return shown_text(results(*runs), phases=True)


def test_phases_that_miss_the_window_show_in_their_sum() -> None:
    one = phased_run([WORKSHOP])
    (window,) = one.windows
    longer = replace(one, windows=(replace(window, time_s=window.time_s * 1.05),))
    assert table_row(phases_shown(longer), 1)["sum"] == "95.2 %"


def test_exposed_communication_is_taken_out_of_the_backward_pass_as_its_mean() -> None:
    one, *others = (
        phased_run([WORKSHOP] * 2, communication_s=seconds, index=index)
        for index, seconds in enumerate((0.0025, 0.001, 0.0085), start=1)
    )
    assert table_row(phases_shown(one), 2)["backward"] == "1.45 ms 11.6 %"
    text = phases_shown(one, *others)
    assert table_row(text, 2)["communication"].startswith("4.00 ms")
    said = " ".join(text.split())
    assert "a step with gradient synchronisation less one without" in said
    assert "what it costs a single rank (there in backward), which the efficiency budget" in said


def test_communication_in_the_forward_pass_is_taken_out_of_it_alone() -> None:
    one = phased_run([WORKSHOP] * 2, communication_s=0.0025)
    (synced,), (alone,) = one.windows, one.unsynced_windows
    both, own = known(synced.phases), known(alone.phases)
    gathered = replace(both, forward_s=0.00638 + 0.002, backward_s=both.backward_s - 0.002)
    twice = replace(
        one,
        steps_per_window=2,
        windows=(replace(synced, time_s=2 * synced.time_s, phases=gathered.scaled(2)),),
        unsynced_windows=(replace(alone, time_s=2 * alone.time_s, phases=own.scaled(2)),),
    )
    row = table_row(phases_shown(twice), 2)
    shown = [row[name].split(" ms")[0] for name in ("forward", "backward", "communication")]
    assert shown == ["6.38", "1.45", "2.50"]


def test_communication_that_noise_makes_negative_is_shown_as_none() -> None:
    less = phased_run([WORKSHOP] * 2, communication_s=0.001)
    noisy = replace(less, measured={**less.measured, "exposed_communication_s": -0.0002})
    assert table_row(phases_shown(noisy), 2)["communication"] == "0 µs 0.0 %"
