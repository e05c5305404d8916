"""A command whose lines count in no format that is known is told what would read them."""

import re
from collections.abc import Callable

import pytest
from test_log_reader import reader_of

from gpuscale.measure.worker.log_reader import CommandError
from gpuscale.workload.log_formats import by_regex
from gpuscale.workload.log_formats.unread import UnreadLines


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (lambda n: f"step {5706 + n} loss 0.1{n * 7 % 5}64", r"step (?P<step>\d+)"),
        (
            lambda n: f"2026-11-22 15:03:{n % 60:02d},5 fit: step {n:5}/900, loss 1e-0{n % 9}",
            r"step\s*(?P<step>\d+)",
        ),
        (lambda n: f"t={n * 12345} step={n} loss=2", r"step=(?P<step>\d+)"),
        (lambda n: f"epoch {n // 25} batch [{n % 25}/25]", r"batch \[(?P<step>\d+)"),
        (lambda n: f"{{'step': {n}, 'loss': 0.{n * 7 % 5}}}", r"step.: (?P<step>\d+)"),
        (lambda n: f"Epoch: 1 [{n * 640}/60000 ({n}%)] Loss: 2", r"Epoch: \d+ \[(?P<step>\d+)"),
        (lambda n: f"15:00:{n % 60} [{n}] 0.{n * 7 % 5}", r"^\s*[-+.,:\deE]+ \[(?P<step>\d+)"),
    ],
)
def test_a_pattern_for_counting_lines(line: Callable[[int], str], pattern: str) -> None:
    unread = UnreadLines()
    for number in range(40):
        unread.take("the command", line(number), number * 0.5)
    assert unread.counting is not None
    assert unread.counting.line == line(39)
    assert unread.counting.pattern == pattern
    mark = by_regex(pattern).read(line(12))
    assert mark is not None
    assert str(mark.step) in re.findall(r"\d+", line(12))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (lambda n: f"step 3: loss {n * 7 % 5}", 1.0),
        (lambda n: f"waiting for {n} s, {n}% of the time", 1.0),
        (lambda n: f"2026-11-22 15:03:{n:02d} compiling", 1.0),
        (lambda n: f"loss 0.{n:03d}", 1.0),
        (lambda n: f"step {n}", 0.1),
        (lambda n: f"step {min(n, 15)}", 1.0),
        (lambda n: f'{{"time_ms": {1580000000000 + n}, "key": "step_start"}}', 1.0),
        (lambda n: f"loss {n} #" if n % 2 else f"loss {n} 3", 0.3),
    ],
    ids=[
        "one step",
        "seconds and shares",
        "times",
        "decimals",
        "too quick",
        "too few",
        "clocks",
        "signs",
    ],
)
def test_lines_that_count_no_steps_are_none(line: Callable[[int], str], seconds: float) -> None:
    unread = UnreadLines()
    for number in range(40):
        unread.take("the command", line(number), number * seconds)
    assert unread.counting is None


LINES = [(number * 1.0, f"round {number} loss 0.5") for number in range(40)]


def test_a_command_is_not_waited_for_where_its_lines_are_of_a_training() -> None:
    with pytest.raises(CommandError) as error:
        reader_of(None, LINES).validate_lines(0, is_late=False)
    assert error.value.failure.kind == "unread"
    assert error.value.failure.message == (
        "no format knows lines like 'round 39 loss 0.5'; give --step-regex 'round (?P<step>\\d+)', "
        "if that number counts steps"
    )


def test_a_command_that_may_only_start_is_waited_for_until_it_is_late() -> None:
    starting = reader_of(None, [(number * 1.0, f"it has file {number}") for number in range(40)])
    named = reader_of("timm", LINES)
    for reader, said in ((starting, "no format knows lines"), (named, "timm reads no lines")):
        reader.validate_lines(0, is_late=False)
        with pytest.raises(CommandError, match=said):
            reader.validate_lines(0, is_late=True)
