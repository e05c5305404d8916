"""Lines that arrive become steps of one training, whatever they count."""

import re
from collections.abc import Callable, Iterable

import pytest
from builders import request
from statements import known

from gpuscale.measure.worker.log_reader import CommandError, LogReader
from gpuscale.measure.worker.marks import Windows
from gpuscale.measure.worker.output import Line
from gpuscale.records import TimingPlan
from gpuscale.records.request import CommandRequest
from gpuscale.workload.log_formats import FORMATS, Mark

TIMING = TimingPlan(warmup_steps=1, warmup_s=0, windows=3, window_s=1, run_seconds=5)


def reader_of(
    log_format: str | None, lines: Iterable[tuple[float, str]], *, gpus: int = 1
) -> LogReader:
    """The reader of lines with the moments of their arrival, in seconds."""
    command = CommandRequest(
        words=("train",),
        folder="/",
        launch="once",
        log_format=log_format,
        step_regex=None,
        tells_batch=False,
    )
    asked = request(command=command, timing=TIMING, gpus=gpus)
    reader = LogReader(asked, shared_pipe=False)
    reader.take([Line("the command", text, at_s) for at_s, text in lines])
    return reader


def windows(log_format: str | None, lines: Iterable[tuple[float, str]]) -> Windows:
    """Windows from lines with their times of arrival in seconds."""
    return known(reader_of(log_format, lines).windows)


def seconds_per_step(told: Windows) -> set[float]:
    return {round((end_s - begin_s) / told.steps, 6) for begin_s, end_s in told.spans}


def test_a_suggested_line_can_be_printed_as_it_stands() -> None:
    said = reader_of(None, [(0.0, "hello")]).told_so_far()
    line = re.search("GPUSCALE [^']*", said)
    assert line
    assert FORMATS["gpuscale"].read(line[0]) == Mark(step=10)


def test_a_line_at_the_end_of_each_epoch_stands_for_its_steps() -> None:
    lines = [(number * 24.5, f"98/98 - 24s - 241ms/step - loss: {number}") for number in range(9)]
    told = windows(None, lines)
    assert seconds_per_step(told) == {0.25}
    assert len(told.spans) == 7


def test_a_validation_between_two_steps_is_no_part_of_them() -> None:
    lines, at_s = [], 0.0
    for step in range(0, 200, 10):
        if step % 50 == 0:
            at_s += 30
            lines.append((at_s, f"step {step}: train loss 3.1, val loss 3.2"))
        at_s += 10
        lines.append((at_s, f"iter {step}: loss 3.1, time 1000.00ms, mfu 38.10%"))
    assert seconds_per_step(windows(None, lines)) == {1.0}


def test_another_bar_between_two_steps_is_no_part_of_them() -> None:
    lines, at_s = [], 0.0
    for step in range(0, 200, 5):
        if step % 50 == 0:
            for batch in range(25):
                at_s += 0.1
                lines.append((at_s, f" 10%|█   | {batch}/25 [00:07<00:00, 13.33it/s]"))
        at_s += 5
        lines.append((at_s, f" 10%|█   | {step}/200 [00:07<00:00, 13.33it/s]"))
    assert seconds_per_step(windows("tqdm", lines)) == {1.0}


def test_a_counter_of_samples_is_counted_in_steps() -> None:
    bar = FORMATS["tqdm-samples"].example
    lines = [(number * 0.5, bar.replace("1024/", f"{number * 128}/")) for number in range(30)]
    told = windows("tqdm-samples", lines)
    assert seconds_per_step(told) == {0.5 * known(request().batch_per_gpu) / 128}


@pytest.mark.parametrize(
    ("log_format", "line", "reported_s"),
    [
        ("nanogpt", "iter {step}: loss 3.1, time 500.00ms, mfu 38.10%", 0.5),
        ("tqdm", " 10%|█   | {step}/999 [00:07<00:00, 2.00it/s]", 0.5),
        # Of the 128 samples that each of two GPUs has in a step.
        (
            "timm",
            "Train: 0 [{step}/999 (  4%)]  Loss: 6.9 (6.9)  Time: 1s,  819.2/s  LR: 1",
            0.3125,
        ),
        ("tqdm-samples", " 10%|█   | {samples}/99999 [00:07<00:00, 256.00img/s]", 0.5),
        # The average since the start holds the warm-up.
        ("keras", "{step}/999 ━━━━ 2s 500ms/step - loss: 2.1", None),
        ("gpuscale", 'GPUSCALE {{"step": {step}}}', None),
    ],
)
def test_reported_figures_are_kept(log_format: str, line: str, reported_s: float | None) -> None:
    lines = [(n * 0.25, line.format(step=n, samples=n * 128)) for n in range(60)]
    reader = reader_of(log_format, lines, gpus=2)
    told = known(reader.windows)
    outcome = reader.outcome(told, started_s=0, clock_s=0)
    assert outcome.windows[0].time_s / outcome.steps_per_window == 0.25
    assert outcome.reported_step_s == reported_s


def test_figures_are_those_of_all_windows() -> None:
    line = "iter {}: loss 3.1, time {:.2f}ms, mfu 38.10%"
    lines = [(n * 0.25, line.format(n, 100 if n < 7 else 500)) for n in range(60)]
    reader = reader_of("nanogpt", lines)
    outcome = reader.outcome(known(reader.windows), started_s=0, clock_s=0)
    assert outcome.reported_step_s == 0.5


@pytest.mark.parametrize(("per_s", "batch"), [(256.0, "32"), (2048.0, "256"), (1024.0, None)])
def test_contradicting_samples_make_no_number(per_s: float, batch: str | None) -> None:
    line = "Train: 0 [{step}/999 (  4%)]  Loss: 6.9 (6.9)  Time: 1s,  {per_s}/s  LR: 1"
    lines = [(n * 0.25, line.format(step=n, per_s=per_s)) for n in range(60)]
    reader = reader_of("timm", lines, gpus=2)
    if batch is None:
        assert reader.outcome(known(reader.windows), started_s=0, clock_s=0).batch_per_gpu == 128
        return
    said = (
        f"{per_s:.4g} samples/s, and a batch of 128 .* 1024: .* trains? on about {batch}; .*--batch"
    )
    with pytest.raises(CommandError, match=said):
        reader.outcome(known(reader.windows), started_s=0, clock_s=0)


def test_a_counter_that_stands_while_lines_go_on_is_a_hang() -> None:
    lines = [(number * 1.0, f'GPUSCALE {{"step": {number}}}') for number in range(3)]
    reader = reader_of(None, [*lines, *((2.5 + 0.1 * n, "retrying") for n in range(90))])
    assert reader.standstill(now_s=4.0) is None
    said = known(reader.standstill(now_s=62.0))
    assert "in the last 60 s, after step 2, and its last line is: retrying" in said


def test_a_number_that_counts_no_steps_makes_its_run_invalid_and_not_the_session_end() -> None:
    lines = [(n * 1.0, f'GPUSCALE {{"step": {10**18 + n * 10**10}}}') for n in range(30)]
    reader = reader_of(None, lines)
    with pytest.raises(CommandError, match=r"went up to 1e\+18.*--step-regex"):
        reader.outcome(known(reader.windows), started_s=0, clock_s=0)


@pytest.mark.parametrize(
    ("counter", "said"),
    [
        (lambda n: 5, "its lines told step 5 and no later one"),
        (lambda n: 50 - n, "told 30 steps, and none was later than the one before"),
    ],
)
def test_a_number_that_does_not_count_up_is_told(counter: Callable[[int], int], said: str) -> None:
    lines = [(n * 1.0, f'GPUSCALE {{"step": {counter(n)}}}') for n in range(30)]
    assert said in reader_of(None, lines).told_so_far()
