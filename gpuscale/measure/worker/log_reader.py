"""Read timed windows of steps, or printed metrics, from a command's output as it arrives."""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

from gpuscale.base.errors import UsageError
from gpuscale.base.text import counted
from gpuscale.measure.worker.output import (
    COMMAND_SOURCE,
    KEPT_LINES,
    SHOWN_LINES,
    CommandError,
    LastWords,
    Line,
    UnreadLines,
    last_words,
)
from gpuscale.measure.worker.windows import (
    FEWEST_WINDOWS,
    Series,
    Windows,
    comes_in_bursts,
    windows_of,
)
from gpuscale.records import Failure, FailureKind, RunRequest
from gpuscale.records.evidence import Window
from gpuscale.records.request import CommandOutcome, FigureOutcome
from gpuscale.workload import step_log_formats
from gpuscale.workload.command_case import NO_BATCH
from gpuscale.workload.printed_figures import FigureParser, new_parser, positive
from gpuscale.workload.step_log_formats import LogFormat, Mark, plain

_MOST_STEPS = 10**9
"""Maximum number of steps that the record of a run can hold; larger step numbers are ignored."""
_SAME_BATCH = 1.5
"""Largest ratio between reported and measured samples/s that is consistent with the batch size."""


class LogReader:
    """Reads the output lines of a command, and divides the reported steps into timed windows."""

    def __init__(self, request: RunRequest) -> None:
        command = request.command
        assert command is not None
        self._request, self._command = request, command
        self._shared = request.gpus > 1 and request.launch != "per-rank"
        """True if one pipe may contain the lines of several ranks."""
        self.latest = deque[str](maxlen=SHOWN_LINES)
        self._latest_of = defaultdict[str, deque[Line]](lambda: deque(maxlen=KEPT_LINES))
        self._recognition, self._unread = step_log_formats.Recognition(), UnreadLines()
        self._looked_at = 0
        self._series: dict[str, Series] = {}
        self._samples: int | None = None
        self._format: LogFormat | None = None
        if command.log_format is not None:
            self._format = step_log_formats.FORMATS[command.log_format]
        elif command.step_regex is not None:
            self._format = step_log_formats.by_regex(command.step_regex)
        self._is_settled = self._format is not None or command.figure is not None

    def take(self, lines: Sequence[Line]) -> None:
        """Read lines; raise CommandError if a line makes a valid result impossible."""
        lines = [line._replace(text=plain(line.text)) for line in lines]
        self.latest.extend(line.text for line in lines)
        for line in lines:
            self._latest_of[line.source].append(line)
        self._recognise(lines)
        for line in lines:
            try:
                mark = None if self._format is None else self._format.read(line.text)
            except UsageError as error:
                # The group of --step-regex matched something other than a number.
                raise CommandError(Failure(kind="invalid", message=str(error))) from None
            if mark is not None:
                self._take_mark(mark, line)
        if not self.has_steps and self._command.figure is None:
            for line in lines:
                self._unread.take(line.text, line.arrived_s)

    def _recognise(self, lines: Sequence[Line]) -> None:
        """Choose the format that fits the lines so far, unless the choice is already final."""
        if self._is_settled:
            return
        for line in lines:
            self._recognition.take(line.text)
        self._looked_at += len(lines)
        fitting = self._recognition.fitting
        if len(fitting) > 1:
            names = ", ".join(one.name for one in fitting)
            problem = "lines of the command fit several formats; give --log-format with one of"
            raise self.failed(f"{problem} {names}", "unread")
        if fitting and fitting[0] is not self._format:
            self._format = fitting[0]
            self._series.clear()
        # A progress bar may belong to a download that precedes the training.
        if fitting:
            self._is_settled = not fitting[0].generic or self._looked_at > KEPT_LINES

    def _take_mark(self, mark: Mark, line: Line) -> None:
        if mark.loss is not None and not math.isfinite(mark.loss):
            raise self.failed(f"the loss is not a finite number: {line.text.strip()}")
        self._samples = mark.samples_per_step or self._samples
        is_shared = self._shared and line.source == COMMAND_SOURCE
        series = self._series.setdefault(line.source, Series(shared=is_shared))
        if mark.step is not None and mark.step <= _MOST_STEPS:
            series.add(mark, mark.step, line.arrived_s)
            if mark.samples_per_s is not None:
                series.speeds.append((line.arrived_s, mark.samples_per_s))
        elif mark.validated:
            series.interrupt()

    def global_batch(self) -> int:
        """Return the samples per step over all GPUs; raise CommandError if unknown or invalid."""
        asked, gpus = self._request.batch_per_gpu, self._request.gpus
        if asked is not None and not self._command.batch_from_output:
            expected = asked * gpus
            if self._samples is not None and self._samples != expected:
                raise self.failed(
                    f"the command reports {counted(self._samples, 'sample')} a step, and a "
                    f"batch of {asked} on {counted(gpus, 'GPU')} makes {expected}; give the "
                    "--batch that a counted step has on a GPU"
                )
            return expected
        if self._samples is None:
            raise self.failed(NO_BATCH, "unread")
        if self._samples % gpus:
            problem = f"{self._samples} samples of a step cannot be divided among {gpus} GPUs"
            raise self.failed(problem)
        return self._samples

    @property
    def windows(self) -> Windows | None:
        """Windows so far, from the process that reports the most steps; None during the warm-up."""
        series = self._leading()
        return None if series is None else windows_of(series.stretches, self._request.timing)

    def progress(self) -> tuple[str, int, int]:
        """Return (label, windows done, windows wanted), or (notice, 0, 0) if lines show no step."""
        if self._unread.count and not self.has_steps:
            return self._unread.notice, 0, 0
        if (windows := self.windows) is None:
            return "window", 0, FEWEST_WINDOWS
        return "window", len(windows.spans), windows.wanted

    def outcome(self, windows: Windows, *, started_s: float, clock_s: float) -> CommandOutcome:
        """Return the outcome for the launcher; raise CommandError if windows are implausible.

        `started_s` is the command's start on the monotonic clock; adding `clock_s` gives Unix time.
        """
        series = self._leading()
        assert series is not None
        spans = windows.spans[: windows.wanted]
        is_late = any(end_s <= begin_s for begin_s, end_s in spans)
        if is_late or comes_in_bursts(series.stretches, started_s):
            raise self.failed(
                "lines of the command arrive many at once, so they were buffered and do not show "
                "when steps ended; let it flush each line (flush=True), or start it by stdbuf -oL"
            )
        self._validate_batch(series, spans, windows.steps)
        return CommandOutcome(
            batch_per_gpu=self.global_batch() // self._request.gpus,
            warmup_steps=windows.warmup_steps,
            warmup_s=windows.warmup_s,
            steps_per_window=windows.steps,
            windows=tuple(
                Window(started_at_s=begin_s + clock_s, time_s=end_s - begin_s, busy_s=())
                for begin_s, end_s in spans
            ),
        )

    def _validate_batch(
        self, series: Series, spans: Sequence[tuple[float, float]], steps: int
    ) -> None:
        """Raise CommandError if the reported samples/s contradict the batch size and step time."""
        reported_per_s, gpus = series.median_speed(spans[0][0], spans[-1][1]), self._request.gpus
        if reported_per_s is None:
            return
        step_s = statistics.median(end_s - begin_s for begin_s, end_s in spans) / steps
        measured_per_s = self.global_batch() / step_s
        ratio = measured_per_s / reported_per_s
        if max(ratio, 1 / ratio) > _SAME_BATCH:
            batch = self.global_batch() / gpus
            raise self.failed(
                f"the lines report {reported_per_s:.4g} samples/s, and a batch of {batch:g} on "
                f"each GPU would make {measured_per_s:.4g}: the command seems to train on about "
                f"{round(batch / ratio)}; give that with --batch, or write {{batch}} where the "
                "command takes it. If the lines count otherwise, use --step-regex for the steps"
            )

    def explain_incomplete(self) -> str:
        """Return why a command's output does not yield enough windows, and what to do about it."""
        series, windows, timing = self._leading(), self.windows, self._request.timing
        if series is None:
            why = self._unread.reason(None if self._format is None else self._format.name)
            needs_batch = self._command.batch_from_output
            return f"{why}; and --batch N, unless its lines print samples" if needs_batch else why
        found = counted(0 if windows is None else len(windows.spans), "window")
        return (
            f"{series.count} lines had a step, up to {series.latest:g}, which makes "
            f"{found} of at least {timing.window_s:g} s after the warm-up, of {FEWEST_WINDOWS} "
            "needed; let it train longer, or print more often"
        )

    def validate_lines(self, rank: int, *, is_late: bool) -> None:
        """Raise CommandError if rank 0 reports training progress that gpuscale cannot read.

        Other ranks may print anything. If the user has specified a format, matching lines may still
        follow, so no error is raised until `is_late` is true, at the timeout.
        """
        is_unread = not self.has_steps and self._unread.are_training
        if is_unread and rank == 0 and (is_late or not self._is_settled):
            raise self.failed(self.explain_incomplete(), "unread")

    @property
    def has_rank_lines(self) -> bool:
        """True if a line came through the separate pipe of a rank that torchrun started."""
        return any(source != COMMAND_SOURCE for source in self._latest_of)

    @property
    def has_steps(self) -> bool:
        """True once a line has reported a step."""
        return self._leading() is not None

    def _leading(self) -> Series | None:
        """Return the series with the most steps; None if no line has reported a step."""
        timed = {source: series for source, series in self._series.items() if series.stretches}
        # In `torchrun … | tee log`, the command prints the ranks' lines again, mixed and later.
        ranks = [series for source, series in timed.items() if source != COMMAND_SOURCE]
        return max(ranks or timed.values(), key=lambda series: series.count, default=None)

    def last_words(self, exit_code: int) -> LastWords:
        """Return evidence from the process that made the command fail; if unknown, recent lines."""
        of_command = LastWords(COMMAND_SOURCE, None, None, tuple(self.latest))
        return last_words(self._latest_of, exit_code) or of_command

    def failed(
        self,
        message: str,
        kind: FailureKind = "invalid",
        lines: Sequence[str] = (),
        rank: int | None = None,
    ) -> CommandError:
        """Return a CommandError; its detail is `lines` or, if empty, the latest lines of output."""
        series, detail = self._leading(), "\n".join(lines or self.latest)
        failure = Failure(kind=kind, message=message, detail=detail, rank=rank)
        return CommandError(failure, steps_reported=0.0 if series is None else series.latest)


class FigureReader(LogReader):
    """Reads the metrics that a command prints (`--figure`), without timing the command's steps."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request)
        figure = self._command.figure
        assert figure is not None
        self._parsers = defaultdict[str, FigureParser](lambda: new_parser(figure))
        self._found = defaultdict[str, dict[str, str | float]](dict)

    def take(self, lines: Sequence[Line]) -> None:
        """Read lines; keep the most recent lines, and the latest value of each metric."""
        super().take(lines)
        for line in lines:
            self._found[line.source] |= self._parsers[line.source](plain(line.text))

    @property
    def found(self) -> dict[str, str | float]:
        """Number or text found for each metric, from the process that printed the most metrics."""
        return max((self._found[source] for source in sorted(self._found)), key=len, default={})

    def progress(self) -> tuple[str, int, int]:
        """Return progress as (label, metrics found, metrics wanted)."""
        return "figure", len(self.found), len(self._command.metrics)

    def figures(self) -> FigureOutcome:
        """Return the values of all metrics, or a failure if one is missing or not positive."""
        if lacking := self.explain_incomplete():
            return FigureOutcome(values=(), failure=self.failed(lacking, "unread").failure)
        values = []
        for name, text in self.found.items():
            if (value := positive(text)) is None:
                problem = f"--figure takes '{text}' for {name}, and a number above 0 is needed"
                failure = self.failed(f"{problem}; see its last lines").failure
                return FigureOutcome(values=(), failure=failure)
            values.append((name, value))
        return FigureOutcome(values=tuple(values))

    def explain_incomplete(self) -> str:
        """Return a message that names the metrics without a value; empty if all have one."""
        names = (metric.name for metric in self._command.metrics)
        lacking = ", ".join(name for name in names if name not in self.found)
        return lacking and f"no line matches --figure for {lacking}; see its last lines"
