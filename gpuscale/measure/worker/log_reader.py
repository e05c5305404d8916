"""Read a command's output as it arrives: recognise the format, and turn steps into windows."""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gpuscale.base.errors import UsageError
from gpuscale.base.units import counted
from gpuscale.measure.worker.marks import Series, Windows, comes_in_bursts, count_of, windows_of
from gpuscale.measure.worker.output import (
    COMMAND_SOURCE,
    KEPT_LINES,
    SHOWN_LINES,
    LastWords,
    Line,
    last_words,
)
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.request import CommandOutcome, CommandWindow
from gpuscale.workload.log_formats import FORMATS, LogFormat, Mark, Recognition, by_regex, plain
from gpuscale.workload.log_formats.unread import UnreadLines

FEWEST_WINDOWS = 10
_STANDSTILL = 5
"""A command counts as hung if a step takes this many times as long as the longest step before."""
_MOST_STEPS = 10**9
"""Maximum number of steps that the record of a run can hold."""
_SAME_BATCH = 1.5
"""Factor by which reported and measured samples/s may differ without contradicting the batch."""
_BY_SAMPLES = ("samples", "tokens")


class CommandError(Exception):
    """Raised if a command gives no result; `failure` says why."""

    def __init__(self, failure: Failure, *, steps_told: float = 0.0) -> None:
        super().__init__(failure.message)
        self.failure, self.steps_told = failure, steps_told


class LogReader:
    """Reads the output lines of a command, and turns the steps in them into windows."""

    def __init__(self, request: RunRequest, *, shared_pipe: bool) -> None:
        """`shared_pipe` is True if several ranks may print into one pipe."""
        command = request.command
        assert command is not None
        self._request, self._command, self._shared = request, command, shared_pipe
        self._latest = deque[str](maxlen=SHOWN_LINES)
        self._latest_of = defaultdict[str, deque[Line]](lambda: deque(maxlen=KEPT_LINES))
        self._recognition, self._unread = Recognition(), UnreadLines()
        self._lines: list[Line] = []
        """All lines so far, kept while the recognised format may still change."""
        self._series: dict[str, Series] = {}
        """The series of steps, keyed by the source of the lines."""
        self._samples: int | None = None
        self._format: LogFormat | None = None
        if command.log_format is not None:
            self._format = FORMATS[command.log_format]
        elif command.step_regex is not None:
            self._format = by_regex(command.step_regex)
        self._is_settled = self._format is not None

    def take(self, lines: Sequence[Line]) -> None:
        """Read lines; raise CommandError if a line makes a valid result impossible."""
        lines = [line._replace(text=plain(line.text)) for line in lines]
        self._latest.extend(line.text for line in lines)
        for line in lines:
            self._latest_of[line.source].append(line)
        for line in self._lines_to_read(lines):
            try:
                mark = None if self._format is None else self._format.read(line.text)
            except UsageError as error:
                # --step-regex took something else than a number from the line.
                raise CommandError(Failure(kind="invalid", message=str(error))) from None
            if mark is not None:
                self._take_mark(mark, line)
        if not self.has_steps:
            for line in lines:
                self._unread.take(*line)

    def _lines_to_read(self, new: list[Line]) -> list[Line]:
        """Return the new lines, or all lines so far if the recognised format has changed."""
        if self._is_settled:
            return new
        for line in new:
            self._recognition.take(line.text)
        self._lines += new
        fitting = self._recognition.fitting
        if len(fitting) > 1:
            names = ", ".join(one.name for one in fitting)
            problem = "lines of the command fit several formats; give --log-format with one of"
            raise self.failed(f"{problem} {names}", "unread")
        if not fitting:
            del self._lines[:-KEPT_LINES]
            return new
        # A bar may be that of a download, before the first line of the training itself.
        self._is_settled = not fitting[0].generic or len(self._lines) > KEPT_LINES
        if fitting[0] is self._format:
            return new
        self._format = fitting[0]
        self._series.clear()
        return self._lines

    def _take_mark(self, mark: Mark, line: Line) -> None:
        if mark.loss is not None and not math.isfinite(mark.loss):
            raise self.failed(f"the loss is no finite number: {line.text.strip()}")
        self._samples = mark.samples_per_step or self._samples
        if line.source not in self._series:
            is_shared = self._shared and line.source == COMMAND_SOURCE
            self._series[line.source] = Series(shared=is_shared)
        series = self._series[line.source]
        if mark.step is not None:
            series.add(mark, self._steps(mark.step, series.latest), line.arrived_s)
            if mark.figure is not None:
                series.figures.append((line.arrived_s, mark.figure))
        elif mark.validated:
            series.interrupt()

    def _steps(self, counter: int, before: float) -> float:
        """Convert a counter to steps since the start; `before` is the result for the last line."""
        assert self._format is not None
        if self._format.counts in _BY_SAMPLES:
            ranks = 1 if self._format.of_all_ranks else self._request.gpus
            return counter * ranks / self.global_batch
        return before + counter if self._format.since_last else counter

    @property
    def global_batch(self) -> int:
        """Samples per step over all GPUs; CommandError if neither lines nor options give them."""
        asked, gpus = self._request.batch_per_gpu, self._request.gpus
        if asked is not None and not self._command.tells_batch:
            expected = asked * gpus
            if self._samples not in (None, expected):
                raise self.failed(
                    f"the command tells {counted(self._samples or 0, 'sample')} a step, and a "
                    f"batch of {asked} on {counted(gpus, 'GPU')} makes {expected}; give the "
                    "--batch that a counted step has on a GPU",
                )
            return expected
        if self._samples is None:
            raise self.failed(
                "the command does not tell how many samples a step has; give --batch N (on each "
                "GPU) or --samples-per-step N (over all)",
                "unread",
            )
        if self._samples % gpus:
            problem = f"{self._samples} samples of a step cannot be divided among {gpus} GPUs"
            raise self.failed(problem)
        return self._samples

    @property
    def windows(self) -> Windows | None:
        """Windows found so far in the output of the process with most steps; None in warm-up."""
        series = self._leading()
        return None if series is None else windows_of(series.stretches, self._request.timing)

    def outcome(self, windows: Windows, *, started_s: float, clock_s: float) -> CommandOutcome:
        """Return the outcome for the launcher; CommandError if the windows are implausible.

        `started_s` is the command's start on the monotonic clock; Unix time is `clock_s` seconds
        ahead of the monotonic clock.
        """
        series = self._leading()
        assert series is not None
        if max(windows.warmup_steps, windows.steps) > _MOST_STEPS:
            raise self.failed(
                f"the number that was taken for the step went up to {series.latest:.3g}, so it "
                "counts something else; say with --step-regex where the step stands",
            )
        spans = windows.spans[: windows.wanted]
        is_late = any(end_s <= begin_s for begin_s, end_s in spans)
        if is_late or comes_in_bursts(series.stretches, started_s):
            raise self.failed(
                "lines of the command arrive many at once, so they were buffered and their moments "
                "tell nothing; let it flush each line (flush=True), or start it by stdbuf -oL",
            )
        step_s = statistics.median(end_s - begin_s for begin_s, end_s in spans) / windows.steps
        reported_step_s = self._reported_step_s(series, spans, step_s)
        return CommandOutcome(
            batch_per_gpu=self.global_batch // self._request.gpus,
            warmup_steps=windows.warmup_steps,
            warmup_s=windows.warmup_s,
            steps_per_window=windows.steps,
            windows=tuple(
                CommandWindow(started_at_s=begin_s + clock_s, time_s=end_s - begin_s)
                for begin_s, end_s in spans
            ),
            reported_step_s=reported_step_s,
        )

    def _reported_step_s(
        self, series: Series, spans: Sequence[tuple[float, float]], step_s: float
    ) -> float | None:
        """Return the command's own figure for the seconds per step: the median over these windows.

        Returns None if the command reports none, or only an average that includes the warm-up.
        Raises CommandError if reported samples/s contradict the batch and measured time.
        """
        figure, reads = series.median_figure(spans[0][0], spans[-1][1]), self._format
        assert reads is not None
        if figure is None or reads.span == "run" or reads.unit in (None, "tokens/s"):
            return None
        if reads.unit != "samples/s":
            return figure if reads.unit == "s/step" else 1 / figure
        batch, gpus = self.global_batch, self._request.gpus
        reported_per_s = figure if reads.of_all_ranks else figure * gpus
        measured_per_s = batch / step_s
        ratio = measured_per_s / reported_per_s
        # Counters of samples need no batch.
        if reads.counts not in _BY_SAMPLES and max(ratio, 1 / ratio) > _SAME_BATCH:
            raise self.failed(
                f"the lines report {reported_per_s:.4g} samples/s, and a batch of "
                f"{batch / gpus:g} on each GPU would make {measured_per_s:.4g}: the command seems "
                f"to train on about {round(batch / gpus / ratio)}; give that with --batch, or "
                "write {batch} where the command takes it. If the lines count otherwise, read the "
                "steps alone, by --step-regex"
            )
        return batch / reported_per_s

    def told_so_far(self) -> str:
        """Describe how many steps an unfinished command has reported, and what to do about it."""
        series = self._leading()
        if series is None:
            return self._unread_so_far()
        windows, stretches = self.windows, series.stretches
        found, count = 0 if windows is None else len(windows.spans), count_of(stretches)
        if max(map(len, stretches)) < 2:
            told = f"told {count} steps, and none was later than the one before"
            told = told if count > 1 else f"told step {series.latest:g} and no later one"
            return f"its lines {told}; let it train longer, or say with --step-regex what counts up"
        return (
            f"{count} lines told a step, which makes {counted(found, 'window')} "
            f"of at least {self._request.timing.window_s:g} s after the warm-up, and "
            f"{FEWEST_WINDOWS} are needed; let it train longer, or print more often"
        )

    def _unread_so_far(self) -> str:
        name = None if self._format is None else self._format.name
        has_batch = self._request.batch_per_gpu is not None or self._samples is not None
        return self._unread.reason(name, self._last_line(), has_batch=has_batch)

    def _last_line(self) -> str:
        return next((text.strip() for text in reversed(self._latest) if text.strip()), "")

    def validate_lines(self, rank: int, *, is_late: bool) -> None:
        """Raise CommandError if rank 0 prints counters in a format that gpuscale does not know.

        Until the command has timed out, only lines that surely come from training count, and only
        if the user has not specified the format. Other ranks may print anything.
        """
        counting = None if rank or self.has_steps else self._unread.counting
        is_sure = counting is not None and counting.of_training and not self._is_settled
        if is_sure or (is_late and counting is not None):
            raise self.failed(self._unread_so_far(), "unread")

    def standstill(self, now_s: float) -> str | None:
        """Return a message if the command hangs; None otherwise, or before the second step."""
        series = self._leading()
        moments = [] if series is None else [p.at_s for points in series.stretches for p in points]
        longest_s = max((later - earlier for earlier, later in pairwise(moments)), default=0.0)
        if series is None or not longest_s or now_s - moments[-1] < _STANDSTILL * longest_s:
            return None
        return (
            f"the command hangs: no step was told in the last {now_s - moments[-1]:.0f} s, after "
            f"step {series.latest:g}, and its last line is: {self._last_line()}"
        )

    @property
    def has_heard_ranks(self) -> bool:
        """True if lines have come from ranks that a starter such as torchrun created."""
        return any(source != COMMAND_SOURCE for source in self._latest_of)

    @property
    def has_steps(self) -> bool:
        """True once a line has reported a step."""
        return self._leading() is not None

    def _leading(self) -> Series | None:
        """Return the series with the most steps; the first such series if all ranks print steps."""
        told = {source: series for source, series in self._series.items() if series.stretches}
        # In `torchrun … | tee log` the shell may print the ranks' lines again, mixed and later.
        ranks = [series for source, series in told.items() if source != COMMAND_SOURCE]
        candidates = ranks or told.values()
        return max(candidates, key=lambda series: count_of(series.stretches), default=None)

    def last_words(self, exit_codes: Mapping[str, int]) -> LastWords:
        """Describe the end of the process that ended the command, or if unknown of the command."""
        of_command = LastWords(COMMAND_SOURCE, None, None, tuple(self._latest))
        return last_words(self._latest_of, exit_codes) or of_command

    def failed(
        self,
        message: str,
        kind: FailureKind = "invalid",
        lines: Sequence[str] = (),
        rank: int | None = None,
    ) -> CommandError:
        """Return an error with this message and with `lines`, or else the last lines of output."""
        series, detail = self._leading(), "\n".join(lines or self._latest)
        failure = Failure(kind=kind, message=message, detail=detail, rank=rank)
        return CommandError(failure, steps_told=0.0 if series is None else series.latest)
