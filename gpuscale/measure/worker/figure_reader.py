"""Read figures from a command's output: the last match of each group counts."""

import math
from collections import defaultdict
from collections.abc import Sequence

from gpuscale.measure.worker.log_reader import CommandError, LogReader
from gpuscale.measure.worker.output import Line
from gpuscale.records import RunRequest
from gpuscale.records.request import FigureOutcome
from gpuscale.workload.figures import FigureReader as Reader
from gpuscale.workload.figures import new_reader
from gpuscale.workload.log_formats import plain


class FigureReader(LogReader):
    """Reads the output lines of a command for figures, without timing anything."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request, shared_pipe=False)
        figure = self._command.figure
        assert figure is not None
        self._readers = defaultdict[str, Reader](lambda: new_reader(figure))
        self._found = defaultdict[str, dict[str, str | float]](dict)
        """For each source of lines, the last value of each metric."""

    def take(self, lines: Sequence[Line]) -> None:
        """Keep the last lines, and the last value of each metric."""
        super().take(lines)
        for line in lines:
            self._found[line.source] |= self._readers[line.source](plain(line.text))

    def _lines_to_read(self, new: list[Line]) -> list[Line]:
        return []

    def validate_lines(self, rank: int, *, is_late: bool) -> None:
        """Accept any lines, since a command that prints figures need not count steps."""

    @property
    def found(self) -> dict[str, str | float]:
        """Values, by metric, of the source that has most of them; if several have, of the first."""
        return max((self._found[source] for source in sorted(self._found)), key=len, default={})

    def figures(self) -> FigureOutcome:
        """Return the figures of a command that ended well, or a failure if a figure is missing."""
        try:
            if lacking := self.told_so_far():
                raise self.failed(lacking, "unread")
            values = tuple((name, self._number(name, text)) for name, text in self.found.items())
        except CommandError as error:
            return FigureOutcome(values=(), failure=error.failure)
        return FigureOutcome(values=values)

    def _number(self, name: str, text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.failed(
                f"--figure takes '{text}' for {name}, and a number above 0 is needed; see the last "
                "lines below"
            )
        return value

    def told_so_far(self) -> str:
        """Return a message that names the metrics without a value; empty if all have one."""
        lacking = [metric.name for metric in self._command.metrics if metric.name not in self.found]
        named = ", ".join(lacking)
        return f"no line matches --figure for {named}; see the last lines below" if lacking else ""
