"""Where the time of a step goes, as `gpuscale show --phases` prints it."""

import numpy as np
import pytest
from builders import phased_run, phases, results, shown_text
from changing import replace
from command_line import ARC4, gpuscale

from gpuscale.records import Run

WORKSHOP = phases(
    data_s=0.00176, h2d_s=0.00011, forward_s=0.00638, backward_s=0.00145, optimizer_s=0.0003
)


def table_row(text: str, case: str, gpus: int) -> dict[str, str]:
    """The cells of a row of the first table by column; a cell has time and share."""
    lines = text.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("---"))
    starts = [i for i in range(len(lines[rule])) if f" {lines[rule]}"[i : i + 2] == " -"]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    headers = [lines[rule - 1][slice(*span)].strip() for span in spans]
    for line in lines[rule + 1 :]:
        cells = [line[slice(*span)].strip() for span in spans]
        if cells[:2] == [case, str(gpus)]:
            return dict(zip(headers, cells, strict=True))
    raise AssertionError(f"no row for {case} on {gpus} in\n{text}")


def shown(*runs: Run) -> str:
    return shown_text(results(*runs), phases=True)


def test_each_phase_has_its_time_and_its_share_of_the_step() -> None:
    one = phased_run([WORKSHOP])
    (window,) = one.windows
    assert window.phases is not None
    tenfold = replace(window, time_s=10 * window.time_s, phases=window.phases.scaled(10))
    for each in (one, replace(one, steps_per_window=10, windows=(tenfold,))):
        row = table_row(shown(each), "mnist_cnn/ddp", 1)
        assert {name: " ".join(row[name].split()) for name in [*row][2:]} == {
            "step": "10.0 ms",
            "data": "1.76 ms 17.6 %",
            "h2d": "110 µs 1.1 %",
            "forward": "6.38 ms 63.8 %",
            "backward": "1.45 ms 14.5 %",
            "communication": "–",
            "optimizer": "300 µs 3.0 %",
            "sum": "100.0 %",
        }


def test_exposed_communication_is_taken_out_of_the_backward_pass() -> None:
    text = shown(phased_run([WORKSHOP] * 2, communication_s=0.0025))
    row = table_row(text, "mnist_cnn/ddp", 2)
    assert row["communication"].split() == ["2.50", "ms", "20.0", "%"]
    assert row["backward"].split() == ["1.45", "ms", "11.6", "%"]
    assert "a step with gradient synchronisation less one without" in text


def test_what_is_shown_adds_up_although_windows_differ() -> None:
    rng = np.random.default_rng(1)
    runs = [
        phased_run(
            [
                phases(
                    data_s=rng.exponential(0.002),
                    forward_s=rng.exponential(0.02),
                    backward_s=rng.exponential(0.03),
                    optimizer_s=rng.exponential(0.001),
                )
            ],
            index=index,
        )
        for index in range(1, 20)
    ]
    row = table_row(shown(*runs), "mnist_cnn/ddp", 1)
    columns = ("data", "h2d", "forward", "backward", "optimizer")
    shares = [float(row[column].split()[2]) for column in columns]
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_phases_that_miss_the_window_show_in_their_sum() -> None:
    one = phased_run([WORKSHOP])
    (window,) = one.windows
    longer = replace(one, windows=(replace(window, time_s=window.time_s * 1.05),))
    assert table_row(shown(longer), "mnist_cnn/ddp", 1)["sum"] == "95.2 %"


def test_exposed_communication_is_the_mean_over_runs_as_in_the_budget() -> None:
    runs = [
        phased_run([WORKSHOP] * 2, communication_s=seconds, index=index)
        for index, seconds in enumerate((0.001, 0.002, 0.009), start=1)
    ]
    text = shown(*runs)
    assert table_row(text, "mnist_cnn/ddp", 2)["communication"].startswith("4.00 ms")
    said = " ".join(text.split())
    assert "a single rank is in it, which the efficiency budget leaves out" in said


def test_extreme_windows_take_no_part() -> None:
    runs = [
        phased_run([WORKSHOP.scaled(factor)], index=index)
        for index, factor in enumerate([1.0, 1.1, 5.0], start=1)
    ]
    text = shown(*runs)
    assert table_row(text, "mnist_cnn/ddp", 1)["step"] == "11.0 ms"


def test_a_baseline_has_no_phases_to_show() -> None:
    answer = gpuscale("show", ARC4, "--phases")
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "a baseline has no phases; give --phases a results file" in answer.stderr
