"""What a reader tells of a command at its end: its windows, its figures, or why it has none."""

from collections.abc import Iterable
from typing import Any

import pytest
from builders import COMMAND, request
from changing import replace
from statements import known

from gpuscale.measure.worker.log_reader import FigureReader, LogReader
from gpuscale.measure.worker.output import COMMAND_SOURCE, CommandError, LastWords, Line
from gpuscale.records import TimingPlan
from gpuscale.records.metrics import OpenMetric
from gpuscale.records.request import CommandRequest

TIMING = TimingPlan(warmup_steps=2, warmup_s=1.0, windows=20, window_s=0.5, run_seconds=20.0)


def reader(*, command: CommandRequest = COMMAND, gpus: int = 1, **asked: Any) -> LogReader:
    kind = LogReader if command.figure is None else FigureReader
    return kind(request(gpus, command=command, timing=TIMING, **asked))


def steps(count: int, *, samples: int | None = None, source: str = COMMAND_SOURCE) -> list[Line]:
    of_step = "" if samples is None else f', "samples": {samples}'
    texts = [f'GPUSCALE {{"step": {step}{of_step}}}' for step in range(count)]
    return [Line(source, text, 100 + step * 0.1) for step, text in enumerate(texts)]


def read(made: LogReader, *parts: Iterable[Line]) -> LogReader:
    for lines in parts:
        made.take([*lines])
    return made


def refusal(made: LogReader) -> str:
    with pytest.raises(CommandError) as refused:
        made.outcome(known(made.windows), started_s=0, clock_s=0)
    return refused.value.failure.message


def test_windows_have_the_time_of_the_calendar_and_are_no_more_than_planned() -> None:
    made = read(reader(gpus=2), steps(200, samples=256))
    told = made.outcome(known(made.windows), started_s=99.0, clock_s=1e9)
    assert (told.batch_per_gpu, told.warmup_steps, told.steps_per_window) == (128, 10, 5)
    assert told.warmup_s == pytest.approx(1.0)
    assert len(told.windows) == 20 < len(known(made.windows).spans)
    first, second, *_ = told.windows
    assert (first.started_at_s, first.time_s) == pytest.approx((1e9 + 101.0, 0.5))
    assert second.started_at_s == pytest.approx(1e9 + 101.5)
    assert made.progress() == ("window", 37, 20)
    assert reader().progress() == ("window", 0, 10)


def test_lines_that_came_at_once_show_no_steps() -> None:
    made = read(reader(), steps(200))
    late = known(made.windows)._replace(spans=[(101.0, 101.5), (101.5, 101.5)])
    with pytest.raises(CommandError, match="arrive many at once, so they were buffered"):
        made.outcome(late, started_s=99.0, clock_s=0)
    burst = [line._replace(arrived_s=100 + n // 50 + n * 1e-5) for n, line in enumerate(steps(900))]
    assert "arrive many at once" in refusal(read(reader(), burst))


def test_a_loss_that_is_no_number_ends_the_run_with_its_line() -> None:
    for loss in ('"nan"', '"inf"'):
        line = Line(COMMAND_SOURCE, f'  GPUSCALE {{"step": 7, "loss": {loss}}} ', 3.0)
        with pytest.raises(CommandError) as refused:
            read(reader(), steps(5), [line])
        failure = refused.value.failure
        assert failure.message == f"the loss is not a finite number: {line.text.strip()}"
        assert failure.detail.splitlines()[-1] == line.text
        assert refused.value.steps_reported == 4


def test_a_batch_that_the_command_contradicts_is_refused() -> None:
    said = refusal(read(reader(gpus=2), steps(200, samples=1), steps(2)))
    assert said.startswith("the command reports 1 sample a step, and a batch of 128 on 2 GPUs")
    # The last line with a number counts, also if lines without one follow.
    made = read(reader(gpus=2), steps(200, samples=256), steps(2))
    assert made.global_batch() == 256
    assert read(reader(), steps(200)).global_batch() == 128


def test_a_batch_that_only_the_command_knows_is_read_from_its_lines() -> None:
    own = replace(COMMAND, batch_from_output=True)
    assert read(reader(command=own, gpus=2), steps(200, samples=64)).global_batch() == 64
    unknown = reader(command=own, gpus=2, batch_per_gpu=None)
    assert "does not print how many samples a step has" in refusal(read(unknown, steps(200)))
    odd = read(reader(command=own, gpus=2), steps(200, samples=65))
    assert refusal(odd) == "65 samples of a step cannot be divided among 2 GPUs"


def test_too_few_windows_are_counted() -> None:
    said = read(reader(), steps(30)).explain_incomplete()
    assert said == (
        "30 lines had a step, up to 29, which makes 3 windows of at least 0.5 s after the warm-up, "
        "of 10 needed; let it train longer, or print more often"
    )


def test_steps_that_several_ranks_print_into_one_pipe_are_counted_once() -> None:
    # One rank is a step ahead of the other.
    printed = [0, *(step for n in range(100) for step in (n + 1, n))]
    texts = [f'GPUSCALE {{"step": {step}}}' for step in printed]
    lines = [Line(COMMAND_SOURCE, text, 100 + n // 2 * 0.1) for n, text in enumerate(texts)]
    assert windows_in(reader(gpus=2), lines)
    # A single rank that counts down begins anew each time, and so does one with a pipe of its own.
    assert not windows_in(reader(), lines)
    assert not windows_in(reader(command=replace(COMMAND, launch="per-rank"), gpus=2), lines)


def windows_in(made: LogReader, lines: list[Line]) -> int:
    windows = read(made, lines).windows
    return 0 if windows is None else len(windows.spans)


def test_ranks_with_pipes_of_their_own_are_read_rather_than_a_copy_of_their_lines() -> None:
    ranks = (steps(150, source="rank 0"), steps(160, source="rank 1"))
    made = read(reader(gpus=2), steps(200), *ranks)
    assert made.has_rank_lines
    assert "160 lines had a step, up to 159" in made.explain_incomplete()
    alone = read(reader(gpus=2), steps(200))
    assert not alone.has_rank_lines
    assert "200 lines had a step" in alone.explain_incomplete()


def test_a_bar_that_comes_before_the_training_is_none_of_its_steps() -> None:
    bar = [Line(COMMAND_SOURCE, f" 10%|█  | {n}/200 [00:07<00:00, 13.33it/s]", n) for n in range(9)]
    assert read(reader(), bar).has_steps
    made = read(reader(), bar, steps(30))
    assert "30 lines had a step, up to 29" in made.explain_incomplete()


def test_a_step_regex_whose_group_is_no_number_is_refused() -> None:
    words = reader(command=replace(COMMAND, step_regex=r"step (?P<step>\w+)"))
    with pytest.raises(CommandError) as refused:
        read(words, [Line(COMMAND_SOURCE, "step one", 1.0)])
    assert refused.value.failure.kind == "invalid"


def test_without_an_exception_the_latest_lines_are_the_last_words() -> None:
    made = read(reader(), steps(2), [Line("rank 0", "\x1b[1mbye\x1b[0m", 9.0)])
    lines = (*(line.text for line in steps(2)), "bye")
    assert made.last_words(0) == LastWords(COMMAND_SOURCE, None, None, lines)
    assert made.last_words(-9).exit_code == -9


NAMES = ("copy", "scale")
METRICS = tuple(OpenMetric(name=name, unit="GB/s", more_is_better=True) for name in NAMES)
STREAM = replace(COMMAND, figure=r"Copy:\s*(?P<copy>\S+)|Scale:\s*(?P<scale>\S+)", metrics=METRICS)


def figures(*texts: str, source: str = COMMAND_SOURCE) -> list[Line]:
    return [Line(source, text, 1.0) for text in texts]


def test_the_last_value_of_each_figure_counts() -> None:
    made = read(reader(command=STREAM), figures("Copy: 1.5", "Scale: 2", "Copy: 3"))
    assert isinstance(made, FigureReader)
    assert made.progress() == ("figure", 2, 2)
    assert made.explain_incomplete() == ""
    assert made.figures().values == (("copy", 3.0), ("scale", 2.0))
    assert made.figures().failure is None


def test_figures_are_those_of_the_process_that_printed_the_most() -> None:
    parts = (figures("Copy: 1", source="a"), figures("Copy: 2", "Scale: 4", source="b"))
    made = read(reader(command=STREAM), *parts, figures("Copy: 3", source="c"))
    assert isinstance(made, FigureReader)
    assert made.found == {"copy": "2", "scale": "4"}


NEEDED = "and a number above 0 is needed; see its last lines"


@pytest.mark.parametrize(
    ("texts", "kind", "said"),
    [
        (["Copy: 1"], "unread", "no line matches --figure for scale; see its last lines"),
        (["nothing"], "unread", "no line matches --figure for copy, scale; see its last lines"),
        (["Copy: 1", "Scale: 0"], "invalid", f"--figure takes '0' for scale, {NEEDED}"),
    ],
)
def test_a_figure_missing_or_not_positive_is_named(texts: list[str], kind: str, said: str) -> None:
    made = read(reader(command=STREAM), figures(*texts))
    assert isinstance(made, FigureReader)
    told = made.figures()
    assert told.values == ()
    failure = known(told.failure)
    assert (failure.kind, failure.message, failure.detail) == (kind, said, "\n".join(texts))
