"""Lines that arrive become steps of one training, whatever they count."""

import math
import re
from collections.abc import Iterable

import pytest
from builders import COMMAND, request
from changing import replace
from statements import known

from gpuscale.measure.worker.log_reader import LogReader
from gpuscale.measure.worker.output import CommandError, Line, _Pipe
from gpuscale.measure.worker.windows import Point, Series, Windows, comes_in_bursts, windows_of
from gpuscale.records import TimingPlan
from gpuscale.reports.screen import progress_text
from gpuscale.workload.step_log_formats import FORMATS, Mark, by_regex

TIMING = TimingPlan(warmup_steps=1, warmup_s=0, windows=3, window_s=1, run_seconds=5)


def reader_of(
    log_format: str | None, lines: Iterable[tuple[float, str]], *, gpus: int = 1
) -> LogReader:
    """Return a reader that has read these lines, given with their arrival times in seconds."""
    command = replace(COMMAND, log_format=log_format)
    asked = request(command=command, timing=TIMING, gpus=gpus)
    reader = LogReader(asked)
    reader.take([Line("the command", text, at_s) for at_s, text in lines])
    return reader


def windows(log_format: str | None, lines: Iterable[tuple[float, str]]) -> Windows:
    return known(reader_of(log_format, lines).windows)


def seconds_per_step(told: Windows) -> set[float]:
    return {round((end_s - begin_s) / told.steps, 6) for begin_s, end_s in told.spans}


def test_a_suggested_line_can_be_printed_as_it_stands() -> None:
    said = reader_of(None, [(0.0, "hello")]).explain_incomplete()
    line = re.search("GPUSCALE [^']*", said)
    assert line
    assert FORMATS["gpuscale"].read(line[0]) == Mark(step=10)


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


@pytest.mark.parametrize(("per_s", "batch"), [(256.0, "32"), (2048.0, "256"), (1024.0, None)])
def test_contradicting_samples_make_no_number(per_s: float, batch: str | None) -> None:
    line = "Train: 0 [{step}/999 (  4%)]  Loss: 6.9 (6.9)  Time: 1s,  {per_s}/s  LR: 1"
    lines = [(n * 0.25, line.format(step=n, per_s=per_s)) for n in range(60)]
    reader = reader_of("timm", lines, gpus=2)
    if batch is None:
        assert reader.outcome(known(reader.windows), started_s=0, clock_s=0).batch_per_gpu == 128
        return
    said = f"{per_s:.4g} samples/s, and a batch of 128 .* 1024: .* on about {batch}; .*--batch"
    with pytest.raises(CommandError, match=said):
        reader.outcome(known(reader.windows), started_s=0, clock_s=0)


def test_a_number_that_counts_no_steps_is_none() -> None:
    lines = [(n * 1.0, f'GPUSCALE {{"step": {10**18 + n * 10**10}}}') for n in range(30)]
    assert not reader_of(None, lines).has_steps


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("round {n} step {n} of it, loss 0.5", r"step\s*(?P<step>\d+)"),
        ("{{'step': {n}, 'loss': 0.5}}", r"\{.step.:\s*(?P<step>\d+)"),
        ("2026-11-22 15:03:11,5 batch [{n}/25]", r"batch\s*\[(?P<step>\d+)/\d+"),
        ("Epoch: 1 [{n}/60000 (0%)] Loss: 2.3", r"Epoch:\s*(?P<epoch>\d+)\s*\[(?P<step>\d+)/\d+"),
        ("[2/3] [{n}/400] loss 2.3658", r"\[\d+/\d+\]\s*\[(?P<step>\d+)/\d+"),
        ("epoch 3/9 batch {n}, loss 2.3", r"epoch\s*(?P<epoch>\d+)/\d+\s*batch\s*(?P<step>\d+)"),
        ("epoch 3/9 it {n} loss", r"epoch\s*(?P<epoch>\d+)/\d+\s*it\s*(?P<step>\d+)"),
    ],
)
def test_a_command_is_not_waited_for_if_its_lines_are_a_training(line: str, pattern: str) -> None:
    lines = [(number * 1.0, line.format(n=number)) for number in range(30)]
    with pytest.raises(CommandError) as error:
        reader_of("timm", lines).validate_lines(0, is_late=True)
    failure = error.value.failure
    assert failure.kind == "unread"
    assert f"timm does not read a step in lines such as: {lines[-1][1]}; " in failure.message
    assert f"give --step-regex '{pattern}'" in failure.message
    # The total may depend on the number of GPUs.
    longer = re.sub("/(?=[^/]*$)", "/9", line)
    assert known(by_regex(pattern).read(longer.format(n=7))).step == 7
    # The format that was asked for may still come, and other ranks print what they like.
    reader_of("timm", lines).validate_lines(0, is_late=False)
    reader_of("timm", lines).validate_lines(1, is_late=True)


@pytest.mark.parametrize(("line", "pace_s"), [("it has file {}", 1), ("epoch {}, loss 0.5", 0.3)])
def test_a_command_that_may_only_start_is_waited_for(line: str, pace_s: float) -> None:
    lines = [(number * pace_s, line.format(number)) for number in range(30)]
    reader_of(None, lines).validate_lines(0, is_late=False)
    reader = reader_of(None, [(number * 1.0, f"epoch {number}, loss 0.5") for number in range(30)])
    with pytest.raises(CommandError, match="no format known reads a step in lines"):
        reader.validate_lines(0, is_late=False)


OF_TRAINING = ("epoch {}: 0.53", "lr 0.1 acc: {}", "[{0}] ppl={0}", "Accuracy {}", "{0} seen, ce=1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((line, "or judge a figure that it prints, by --figure") for line in OF_TRAINING),
        (
            "{{'loss': 2.3, 'grad_norm': 1.23, 'learning_rate': 0.001, 'epoch': 0.{:02}}}",
            r"keep the bar of .* \(no disable_tqdm=True\)",
        ),
    ],
)
def test_words_that_only_training_prints_show_that_it_has_begun(line: str, said: str) -> None:
    lines = [(number * 1.0, line.format(number)) for number in range(30)]
    with pytest.raises(CommandError, match=said):
        reader_of(None, lines).validate_lines(0, is_late=False)


@pytest.mark.parametrize("times", [1, 30])
def test_a_number_that_never_rises_is_not_proposed_as_the_step(times: int) -> None:
    lines = [(number * 1.0, "Starting on 1 ranks, batch 64 of 4/9") for number in range(times)]
    said = reader_of(None, lines).explain_incomplete()
    assert "--step-regex" not in said
    assert "at each step print 'GPUSCALE {\"step\": 10}', as gpuscale.report does" in said


@pytest.mark.parametrize(
    ("line", "per_epoch", "pattern"),
    [
        ("epoch {} batch {}, loss 0.5", 2, r"batch\s*(?P<step>\d+)"),
        ("[{}/3] [{}/400] loss 2.4", 10, r"\[\d+/\d+\]\s*\[(?P<step>\d+)/\d+"),
    ],
)
def test_a_counter_that_begins_anew_with_each_epoch_is_proposed(
    line: str, per_epoch: int, pattern: str
) -> None:
    counts = [divmod(number, per_epoch) for number in range(31)]
    lines = [(n * 1.0, line.format(*both)) for n, both in enumerate(counts)]
    assert pattern in reader_of("timm", lines).explain_incomplete()


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("[E{n:02}] loss=0.33 (1.2s)", r"\[E(?P<step>\d+)"),
        ("2026-11-22 15:03:{n:02},5 round {n} took 1.2 s", r"round\s*(?P<step>\d+)"),
        ("2026-11-22 15:03:11,5 b [{n}/25]", r"b\s*\[(?P<step>\d+)/\d+"),
        ("  {n} 0.33 1.2", r"^\s*(?P<step>\d+)"),
    ],
)
def test_a_number_that_rises_is_proposed_as_the_counter(line: str, pattern: str) -> None:
    # Too few lines to be sure of, and another one after them.
    lines = [line.format(n=number) for number in range(12)]
    said = reader_of(None, [*enumerate([*lines, "saved model.pt"])]).explain_incomplete()
    assert f"such as: {lines[-1].strip()}; if that counts steps, give" in said
    assert f"give --step-regex '{pattern}'" in said
    assert [known(by_regex(pattern).read(text)).step for text in lines] == [*range(12)]


@pytest.mark.parametrize("log_format", [None, "timm"])
def test_who_waits_for_the_first_step_sees_that_the_lines_hold_none(log_format: str | None) -> None:
    assert progress_text(*reader_of(log_format, []).progress()).endswith(" window 0/10")
    lines = [(number * 9.0, f"[{number}/390]\t0.25") for number in range(40)]
    reader = reader_of(log_format, lines)
    # Nothing shows that these lines are of a training rather than of what comes before it.
    reader.validate_lines(0, is_late=True)
    said = "no step read in 40 lines (--step-regex?); last: [39/390] 0.25"
    assert [progress_text(*reader.progress(), room) for room in (99, 24)] == [said, said[:24]]
    steps = [(number * 1.0, f"Epoch [1/5], Step [{number}/600], Loss: 0.1") for number in range(9)]
    assert "window" in progress_text(*reader_of(None, [*lines, *steps]).progress())


PLAN = TimingPlan(warmup_steps=2, warmup_s=1.0, windows=20, window_s=0.5, run_seconds=20.0)


def told(*steps: int, pace_s: float = 0.1, **more: object) -> Series:
    """Return the series of a process that makes these steps at a fixed interval in seconds."""
    series = Series(shared=False)
    for step in steps:
        series.add(Mark(step=step, **more), step, 100 + step * pace_s)  # type: ignore[arg-type]
    return series


def durations(series: Series) -> list[float]:
    windows = known(windows_of(series.stretches, PLAN))
    return [end - begin for begin, end in windows.spans]


def test_windows_begin_after_the_warm_up_and_are_as_long_as_planned() -> None:
    windows = known(windows_of(told(*range(200)).stretches, PLAN))
    assert (windows.warmup_steps, windows.steps, windows.wanted) == (10, 5, 20)
    assert windows.warmup_s == pytest.approx(1.0)
    assert windows.spans[0] == pytest.approx((101.0, 101.5))
    assert len(windows.spans) == (199 - 10) // 5
    assert known(windows_of(told(*range(1000, 1200)).stretches, PLAN)).warmup_steps == 10
    # A window needs a second line after the warm-up.
    assert windows_of(told(*range(10)).stretches, PLAN) is None
    assert windows_of(told(*range(11)).stretches, PLAN) is None
    assert known(windows_of(told(*range(12)).stretches, PLAN)).spans == []


def test_windows_end_with_lines_of_many_or_of_long_steps_and_else_between_them() -> None:
    assert known(windows_of(told(*range(0, 400, 8)).stretches, PLAN)).steps == 8
    long = known(windows_of(told(*range(0, 100, 10), pace_s=3.0).stretches, PLAN))
    assert (long.steps, long.wanted) == (10, 10)
    # The lines of a bar.
    assert durations(told(*[*range(0, 200, 7), *range(203, 400, 9)])) == pytest.approx([0.7] * 54)


def test_a_gap_between_two_epochs_is_in_no_window() -> None:
    series = told(*range(100))
    for step in range(100):
        series.add(Mark(step=step), step, 1000 + step * 0.1)
    assert durations(series) == pytest.approx([0.5] * (17 + 19))


def test_a_step_that_is_printed_twice_ends_with_its_first_line() -> None:
    series = Series(shared=False)
    for at_s, (step, epoch) in enumerate([(5, 1), (5, 1), (6, 1), (6, 2), (7, 2), (3, 2)]):
        series.add(Mark(step=step, epoch=epoch), step, at_s)
    # Another epoch, or a step that counts down, begins a new stretch.
    first, second, third = series.stretches
    assert (first, second) == ([Point(5, 0), Point(6, 2)], [Point(6, 3), Point(7, 4)])
    assert third == [Point(3, 5)]


def test_speeds_of_windows_are_their_median_without_those_that_cannot_be() -> None:
    series = Series(shared=True)
    assert series.latest == 0
    for step in (5, 6):
        series.add(Mark(step=step), step, step)
    assert series.latest == 6
    series.speeds = [(1.0, 9.0), (2.0, 0.5), (3.0, 0.0), (3.0, math.inf), (4.0, 0.6), (5.0, 0.7)]
    assert series.median_speed(1.0, 5.0) == 0.6
    assert series.median_speed(1.0, 4.9) is None


def test_the_loop_that_takes_longest_is_the_training() -> None:
    series = told(*range(100), total_steps=100)
    for second in range(20):
        for step in range(2):
            series.add(Mark(step=step, total_steps=2), step, 200 + second + step * 0.1)
    (training,) = series.stretches
    assert [point.step for point in training] == [*range(100)]


def stretch(*moments: float) -> list[list[Point]]:
    return [[Point(step, at_s) for step, at_s in enumerate(moments)]]


def test_lines_in_bursts_are_told_from_quick_steps() -> None:
    bursts = [second + line * 1e-5 for second in range(5) for line in range(50)]
    assert comes_in_bursts(stretch(*bursts), 0.0)
    assert comes_in_bursts(stretch(*[9 + line * 1e-5 for line in range(50)]), 0.0)
    assert not comes_in_bursts(stretch(*[line * 1e-3 for line in range(5000)]), -1.0)
    assert not comes_in_bursts(stretch(*[line * 1e-2 for line in range(500)]), -1.0)
    # Two lines of each step, such as of two ranks.
    assert not comes_in_bursts(stretch(*[line // 2 * 0.01 for line in range(500)]), -1.0)
    # Two bursts of 1.9 ms each: more than a twentieth of 70 ms, and less than one of a second.
    two = stretch(0.01, 0.0119, 0.068, 0.0699)
    assert not comes_in_bursts(two, 0.0)
    assert comes_in_bursts(two, -1.0)
    # Of three, their pauses decide.
    assert not comes_in_bursts(stretch(0.0, 0.0019, 0.0419, 0.0438, 0.0838, 0.0857), -1.0)
    # From the last line of a burst to the first of the next: 49 ms are no pause, 51 ms are.
    for pause_s, is_pause in ((0.049, False), (0.051, True)):
        pairs = [n * (0.0015 + pause_s) + line * 0.0015 for n in range(9) for line in range(2)]
        assert comes_in_bursts(stretch(*pairs), -1.0) is is_pause


def test_lines_that_are_read_late_all_at_once_leave_each_window_its_share_of_the_time() -> None:
    # For 1.7 s, which three windows fit into, whoever reads them got no core.
    moments = [3.0 if 1.3 <= at_s <= 3.0 else at_s for at_s in (step * 0.1 for step in range(200))]
    windows = known(windows_of(stretch(*moments), PLAN))
    assert windows.steps == 5
    assert [end - begin for begin, end in windows.spans] == pytest.approx([0.5] * 37)


def test_a_line_arrives_with_its_last_character() -> None:
    pipe = _Pipe("rank 0")
    assert list(pipe.lines_of(b"10%|# ", 1.0)) == []
    assert list(pipe.lines_of(b"| 1/10", 2.0)) == []
    assert list(pipe.lines_of(b"\r20%|##", 3.0)) == [Line("rank 0", "10%|# | 1/10", 2.0)]
    assert list(pipe.lines_of(b"\r\n\nnext\n", 4.0)) == [
        Line("rank 0", "20%|##", 3.0),
        Line("rank 0", "next", 4.0),
    ]
    assert list(pipe.lines_of(b"rest", 5.0)) == []
    assert list(pipe.lines_of(b"", 6.0)) == [Line("rank 0", "rest", 5.0)]
